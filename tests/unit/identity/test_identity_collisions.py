"""Different code is written differently: pairs that once had one digest, and what changes a program in one place."""

import ast
import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from shardline.identity.outline import outline_of

CORPUS = (
    "class P: x = 1\nclass O(int): pass\nclass Q(P, O): y = 2\n@P\n@O\nclass R: z = 3",
    "@wrap(1)\nclass A(Base, metaclass=M, key=2):\n    def f(self): return 1\n    @property\n"
    "    def g(self): ...\n    x: int = 3",
    "class A:\n    x = 1\n    def f(self): pass\n    y = 2\nclass A:\n    z = 3\n    def f(self): return 0\n"
    "def A(): pass",
    "class A:\n    class B:\n        x = 1\n    def B(self): pass\n    async def c(self): await d\nx = A\n"
    "class A(x): y = x",
    "def f(a, b=1, /, c=2, *d, e, g=3, **h): return f(a, *d, e=e, **h)\n"
    "async def f(*, x): return [i async for i in x]",
    "def f():\n    global a\n    a = b = 1\n    def g():\n        nonlocal b\n        b = (c := 2) + a\n"
    "    return g, lambda x, y=b: (x, *y)",
    "def f(x):\n    match x:\n        case [1, *rest] if rest: return rest\n"
    "        case {'a': 1, **kw} | {'b': kw}: return kw\n"
    "        case P(a, b=None) as p: return p\n        case -1 | 'x' | None: return\n        case _: pass",
    "def f(x, y):\n    for a, *b in x:\n        if a: continue\n        elif b: break\n    else:\n"
    "        del x[1:2, ::3], (y)\n"
    "    while x: x -= 1\n    with y as z, z: yield x\n    return (yield from z)",
    "try:\n    import a.b as c, d\n    from . import e as g\nexcept (A, B) as h:\n    raise C from h\n"
    "except D: pass\nelse: assert h, 'm'\n"
    "finally: print(f'{h!r:>{c}} {d} {{}}', b'x', 1.0, 1, True, 2j, ...)",
    "x = {1: 2, **y}\nz = {*x, 1} | {a for a in x if a for b in a}\nu = {k: v for k, v in x}\n"
    "w = x if y else z or u and not x < y <= z is not u\n"
    "v: int\n(v): int = ~x @ y // 2 ** -z\nt = x[1:, ...], x[*y], (1,), [2], ()",
    "@a\ndef f() -> int: return 1\n@b\ndef f(x: int = 2): return 2\nif x:\n    class C(D): pass\nelse:\n    @D\n"
    "    class C: pass",
)  # fmt: skip


def written(text: str) -> str:
    """Return all that counts of a module's definitions."""
    outline = outline_of(
        text.encode(), "p.q.r.s.t.m", is_package=False, is_main=True, is_own=lambda top: False
    )
    units = [
        outline.written(place, frozenset({"annotations", "docstrings"})).tokens
        for place in range(len(outline.units))
    ]
    imports = [(one.modules, one.names, one.binds) for one in outline.importing]
    fields = ("chain", "use", "imported", "modules")
    tokens = [
        token if isinstance(token, str) else (type(token).__name__, *(getattr(token, one, ()) for one in fields))
        for unit in units
        for token in (*unit, "end")
    ]  # fmt: skip
    return repr((tokens, imports))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("class Q(P): ...", "@P\nclass Q: ..."),
        ("class Q(p): ...", "@p\nclass Q: ..."),
        ("class Q(P, R): ...", "@R\nclass Q(P): ..."),
        ("@p\nclass Q(P): ...", "class Q(P, p): ..."),
        ("class Q(m.P[int]): ...", "@m.P[int]\nclass Q: ..."),
        ("class Q(f(1)): ...", "@f(1)\nclass Q: ..."),
        ("class A:\n x = 1\n y = 2\nclass A:\n z = 3", "class A:\n x = 1\nclass A:\n y = 2\n z = 3"),
        ("def A(): ...\nclass A:\n x = 1", "class A:\n x = 1\ndef A(): ..."),
    ],
)  # fmt: skip
def test_what_differs_is_written_in_two_ways(one: str, other: str) -> None:
    assert written(one) != written(other)


def changed(tree: ast.Module, chance: random.Random) -> None:
    """Change a tree in one place: what stands in a list, which of two nodes stands where, a name."""
    nodes = list(ast.walk(tree))
    lists = [v for n in nodes for _, v in ast.iter_fields(n) if isinstance(v, list)]
    match chance.choice(["beside", "beside", "move", "swap", "drop", "exchange", "scalar", "kind"]):
        case "beside":  # from a list to another of one node, as from bases to decorators
            owned = [[v for _, v in ast.iter_fields(n) if isinstance(v, list)] for n in nodes]
            beside = chance.choice([some for some in owned if len(some) > 1 and any(some)])
            source = chance.choice([one for one in beside if one])
            chance.choice(beside).append(source.pop(chance.randrange(len(source))))
        case "move":  # from any list to any other
            source = chance.choice([one for one in lists if one])
            node = source.pop(chance.randrange(len(source)))
            target = chance.choice(lists)
            target.insert(chance.randint(0, len(target)), node)
        case "swap":
            one = chance.choice([one for one in lists if one])
            i, j = chance.randrange(len(one)), chance.randrange(len(one))
            one[i], one[j] = one[j], one[i]
        case "drop":
            one = chance.choice([one for one in lists if one])
            del one[chance.randrange(len(one))]
        case "exchange":  # an expression by another one, or by none where it may be left out
            owner, field, _ = chance.choice(
                [(n, f, v) for n in nodes for f, v in ast.iter_fields(n) if isinstance(v, ast.expr)]
            )
            others: list[Any] = [n for n in nodes if isinstance(n, ast.expr)]
            setattr(owner, field, copy.deepcopy(chance.choice([None, *others])))  # no circles
        case "scalar":
            owner, field, value = chance.choice(
                [
                    (n, f, v)
                    for n in nodes
                    for f, v in ast.iter_fields(n)
                    if isinstance(v, str | int)
                ]
            )
            scalars = ["x", "P", 0, 1, 2, True, 1.0, -1]
            setattr(owner, field, chance.choice([s for s in scalars if s is not value]))
        case "kind":
            kinds: dict[type, Callable[..., ast.AST]] = {
                ast.FunctionDef: ast.AsyncFunctionDef, ast.AsyncFunctionDef: ast.FunctionDef,
                ast.List: ast.Tuple, ast.Tuple: ast.List, ast.Global: ast.Nonlocal,
                ast.Yield: ast.Await, ast.For: ast.AsyncFor, ast.With: ast.AsyncWith,
            }  # fmt: skip
            for owner in nodes:
                for field, value in ast.iter_fields(owner):
                    if type(value) in kinds and chance.random() < 0.5:
                        setattr(owner, field, kinds[type(value)](**dict(ast.iter_fields(value))))
