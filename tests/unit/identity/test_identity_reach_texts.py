"""Definitions that are written alike compile alike, but for the names of local variables."""
# ruff: noqa: E501 - short programs

import ast
import dis
import random
import types
from typing import Any

import pytest

from tests.support.campaigns import campaign_seed
from tests.unit.identity.test_identity_collisions import CORPUS, changed, written

CASES = 1500
SCOPES = (
    "x = 1\ndef f(a, b=2):\n    c = a\n    def g(d, *e, k=b):\n        nonlocal c\n        c += d\n        h = [c for c in e if c]\n"
    "        return lambda c, i=h: (c, d, i, x)\n    return g, c, b",
    "def f(a):\n    x = [i for i in a]\n    y = {j: (i, j) for i, j in a for k in i if (z := k)}\n    return x, y, z, (i for i in x)",
    "def f():\n    try:\n        import a.b as c, d\n        from e import g\n    except (c, d) as h:\n        x = h\n    with g as y, y as (z, *w): pass\n"
    "    for i in x: del z\n    return c.b, d.e, g, i, w",
    "y = 0\ndef f(x):\n    global y, z\n    y = x\n    z = y\n    def g():\n        y = 1\n        def h(): return y, z, w\n        w = 2\n        return h\n"
    "    return g",
    "def f(x):\n    match x:\n        case [a, *b] if a: return b\n        case {'k': c, **d} | {'k': d, 'l': c}: return c, d\n"
    "        case int(e) as g: return e, g\n    return [lambda: n for n in x], {m async for m in x}",
    "class A:\n    x = 1\n    y = [x for z in x if y]\n    def f(self, x):\n        a = x\n        return [self.x for a in (y, a)], __class__\n"
    "    def g(self):\n        b, c = self.f(y), x\n        return b, c, lambda b: (b, c)",
)  # fmt: skip
CELLS = {"MAKE_CELL", "COPY_FREE_VARS", "LOAD_CLOSURE", "RESUME", "NOP", "EXTENDED_ARG", "CACHE"}
Owner = dict[str, tuple[int, ...]]  # the code object that a local name belongs to, as a path


def meaning(
    code: types.CodeType, numbers: dict[object, int], outer: Owner, path: tuple[int, ...] = ()
) -> list[Any]:
    """Return a code object's instructions, with numbers for local variables that are no parameters."""
    count = (
        code.co_argcount
        + code.co_kwonlyargcount
        + bool(code.co_flags & 4)
        + bool(code.co_flags & 8)
    )
    kept = set(code.co_varnames[:count])
    owner = outer | dict.fromkeys((*code.co_varnames, *code.co_cellvars), path)
    found: list[Any] = [code.co_name, code.co_flags & ~16, code.co_varnames[:count]]
    found += [code.co_argcount, code.co_posonlyargcount]
    steps = list(dis.get_instructions(code))
    for place, step in enumerate(steps):
        value, name = step.argval, step.opname.replace("DEREF", "FAST")  # the owner says it
        closure = name == "BUILD_TUPLE" and steps[place - 1].opname == "LOAD_CLOSURE"
        if step.opname in CELLS or closure:
            continue
        if isinstance(value, types.CodeType):
            value = meaning(value, numbers, owner, (*path, place))
        elif "FAST" in name:
            of = owner[value]
            spoken = value in kept or (
                of != path and (of, value) in numbers and numbers[of, value] < 0
            )
            for parameter in kept:
                numbers[path, parameter] = -1
            value = value if spoken else numbers.setdefault((of, value), len(numbers))
        elif name == "LOAD_CONST":
            value = (type(value).__name__, repr(value))
        elif name == "MAKE_FUNCTION":
            value &= ~8  # a closure: its variables have their owners
        found.append((name, value))
    return found


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("number", [campaign_seed()], ids="seed={}".format)
def test_what_is_written_alike_compiles_alike(number: int) -> None:
    chance = random.Random(number)
    texts = [*CORPUS, *SCOPES, *SCOPES]
    known: dict[str, tuple[Any, str]] = {}
    for case in range(CASES):
        tree = ast.parse(texts[case % len(texts)])
        try:
            for _ in range(chance.choice([0, 1, 1, 2])):
                changed(tree, chance)
            text = ast.unparse(ast.fix_missing_locations(tree))  # one layout for one tree
            code = compile(text, "m", "exec", dont_inherit=True)
        except Exception:
            continue  # a tree that is no program: what `ast` and the compiler then raise is anything
        found = [meaning(one, {}, {}) for one in code.co_consts if isinstance(one, types.CodeType)]
        other, as_other = known.setdefault(written(text), (found, text))
        assert found == other, f"seed {number}: written alike\n{text}\n\nand\n\n{as_other}"
    print(f"seed {number}: {len(known)} texts of {CASES} cases")
    assert len(known) > CASES / 5
