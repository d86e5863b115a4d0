"""User code by reachable definitions: which edits count, and which do not, rule by rule."""
# ruff: noqa: E501 - tables of short programs

from pathlib import Path

import pytest

from tests.support.reached import ENTRY, reached

Files = dict[str, str]
NET = "class Net:\n    def forward(self, x):\n        return helper(x)\n"


def digests(tmp_path: Path, before: Files, after: Files, entry: str = ENTRY) -> tuple[str, str]:
    return (
        reached(tmp_path / "before", before, entry).digest,
        reached(tmp_path / "after", after, entry).digest,
    )


# rule: (text of models.py, before -> after)
A_METHOD, B_METHOD = "    def a(self): return 1\n", "    def b(self): return 2\n"
COUNTS = {
    "a function that is called": ("def helper(x): return {}\n" + NET, "x", "x + 1"),
    "a function by way of another": ("def deep(): return {}\ndef helper(x): return deep()\n" + NET, "1", "2"),
    "a constant that is read": ("SIZE = {}\nclass Net:\n    def f(self): return SIZE", "1", "2"),
    "a method that nothing calls": ("class Net:\n    def on_train_end(self): return {}", "1", "2"),
    "a class attribute": ("class Net:\n    size = {}", "1", "2"),
    "an inherited method": ("class Base:\n    def f(self): return {}\nclass Net(Base): pass", "1", "2"),
    "a subclass": ("class Net: pass\nclass Small(Net):\n    size = {}", "1", "2"),
    "a subclass of a subclass": ("class Net: pass\nclass A(Net): pass\nclass B(A): size = {}", "1", "2"),
    "a class attribute's annotation": ("class Net:\n    size: {} = 1", "int", "float"),
    "the name of a parameter": ("class Net:\n    def __init__(self, {0}): self.a = {0}", "width", "size"),
    "the name of an argument": ("def helper(x, **k): return k\nclass Net:\n    def f(self): helper(1, {}=2)", "a", "b"),
    "a default": ("class Net:\n    def f(self, x={}): return x", "1", "2"),
    "a mutable default": ("class Net:\n    def f(self, x=[{}]): return x", "1", "2"),
    "a function that is a default": ("def pick(): return {}\nclass Net:\n    def f(self, x=pick): return x()", "1", "2"),
    "a statement with effects": ("import torch\ntorch.manual_seed({})\nclass Net: pass", "1", "2"),
    "the order of effects": ("REG = []\nREG.append({0}1)\nREG.append(1)\nclass Net: pass", "", "2 - "),
    "a decorated function": ("def register(f): return f\n@register\ndef apart(): return {}\nclass Net: pass", "1", "2"),
    "what a decorated function calls": ("REG = []\ndef apart(): return {}\n@REG.append\ndef f(): return apart()\nclass Net: pass", "1", "2"),
    "a decorator of a package": ("from pkgs import reg\n@reg\ndef apart(): return {}\nclass Net: pass", "1", "2"),
    "a function handed to a call": ("REG = []\ndef apart(): return {}\nREG.append(apart)\nclass Net: pass", "1", "2"),
    "a class with a metaclass": ("class M(type): pass\nclass A(metaclass=M): size = {}\nclass Net: pass", "1", "2"),
    "a class whose base has __init_subclass__": ("class B:\n    def __init_subclass__(cls): print(cls)\nclass A(B): size = {}\nclass Net: pass", "1", "2"),
    "a class of a base that may keep a register": ("from pkgs import Base\nclass A(Base): size = {}\nclass Net: pass", "1", "2"),
    "classes, where __subclasses__ is read": ("class A: size = {}\nclass Net:\n    def f(self): return object.__subclasses__()", "1", "2"),
    "a patched function": ("import torch\ndef new(): return {}\ntorch.relu = new\nclass Net: pass", "1", "2"),
    "a patched method": ("def new(self): return {}\nclass Net: pass\nNet.forward = new", "1", "2"),
    "a name that is bound twice": ("N = {}\nM = [N]\nN = 2\nclass Net:\n    def f(self): return M", "1", "3"),
    "a name that is bound conditionally": ("import sys\nif sys.argv:\n    N = {}\nelse:\n    N = 0\nclass Net:\n    def f(self): return N", "1", "2"),
    "a name that a function binds": ("N = 1\ndef put():\n    global N\n    N = {}\nclass Net:\n    def f(self): return N", "1", "2"),
    "a try with imports": ("try:\n    import fast\nexcept ImportError:\n    fast = {}\nclass Net: pass", "1", "2"),
    "what getattr with a computed name may find": ("def do_a(): return {}\ndef f(o, n): return getattr(o, n)\nclass Net:\n    def f(self): return f(self, 'x')", "1", "2"),
    "what globals may give": ("def apart(): return {}\nclass Net:\n    def f(self, n): return globals()[n]()", "1", "2"),
    "what eval may name": ("def apart(): return {}\nclass Net:\n    def f(self, n): return eval(n)", "1", "2"),
    "what vars may give": ("def apart(): return {}\nclass Net:\n    def f(self, n): return vars()[n]", "1", "2"),
    "what inspect may find": ("import inspect\ndef apart(): return {}\nclass Net:\n    def f(self): return inspect.getmembers(self)", "1", "2"),
    "a local variable, where locals is read": ("class Net:\n    def f(self):\n        {} = 1\n        return locals()", "a", "b"),
    "a local variable that a text names": ("class Net:\n    def f(self, frame):\n        {} = 1\n        return frame.query('x > @a')", "a", "b"),
    "annotations, where something reads them": ("from pydantic import validate_call\ndef helper(x: {}): return x\n" + NET + "Net.f = validate_call(helper)", "int", "float"),
    "an annotation that does something": ("class Net:\n    def f(self, x: print({})): pass", "1", "2"),
    "a docstring, where something reads it": ("class Net:\n    def f(self):\n        '{}'\n        return self.f.__doc__", "a", "b"),
    "text that torch.jit.script reads": ("import torch\ndef helper(x):\n    # type: ({}) -> int\n    return x\nhelper = torch.jit.script(helper)\n" + NET, "int", "float"),
    "text that Triton reads": ("import triton\n@triton.jit\ndef helper(x):\n    y = x  # {}\n    return y\n" + NET, "a", "b"),
    "a lambda": ("helper = lambda x: x + {}\n" + NET, "1", "2"),
    "a partial": ("from functools import partial\ndef full(a): return {}\nNet = partial(full, 1)", "1", "2"),
    "a name of another package": ("import numpy as np\nclass Net:\n    def f(self): return np.{}", "ones", "zeros"),
    "a global in place of a local name": ("N = 1\nclass Net:\n    def f(self):\n        {} = 2\n        return N", "N", "M"),
    "global in place of a local name": ("N = 1\nclass Net:\n    def f(self):\n        {}\n        N = 2\n        return N", "pass", "global N"),
    "the name of the class": ("class Net:\n    name = 1\nclass {}(Net): pass", "A", "B"),
    "a definition below its use": ("{}def g(): return 1\n{}class Net: pass", ("", "g()\n"), ("g()\n", "")),
    "the unit of a nested class": ("class Net:\n    class Inner:\n        size = {}", "1", "2"),
    "an import that may have effects": ("{}\nclass Net: pass", "import gym_maze", "import gym_cart"),
    "the order of methods, which code may read": ("class Net:\n{0[0]}{0[1]}", ((A_METHOD, B_METHOD),), ((B_METHOD, A_METHOD),)),
    "the module's name": ("class Net:\n    where = __name__ + '{}'", "1", "2"),
}  # fmt: skip

DOES_NOT_COUNT = {
    "a function that nothing reaches": ("def apart(): return {}\nclass Net: pass", "1", "2"),
    "another class": ("class Wide:\n    def forward(self): return {}\nclass Net: pass", "1", "2"),
    "another class of the same foreign base": ("from torch import nn\nclass Wide(nn.Module): size = {}\nclass Net(nn.Module): pass", "1", "2"),
    "a constant that nothing reads": ("SIZE = {}\nclass Net: pass", "1", "2"),
    "a new function": ("{}\nclass Net: pass", "", "def apart(): return 1"),
    "a new constant": ("{}\nclass Net: pass", "", "TABLE = [1, 2, len('ab')]"),
    "a function with a listed decorator": ("from functools import lru_cache\n@lru_cache(maxsize=4)\ndef apart(): return {}\nclass Net: pass", "1", "2"),
    "a compiled function that nothing reaches": ("import torch\n@torch.compile\ndef apart(): return {}\nclass Net: pass", "1", "2"),
    "a dataclass that nothing reaches": ("from dataclasses import dataclass, field\n@dataclass\nclass C:\n    a: list = field(default_factory=list)\n    b: int = {}\nclass Net: pass", "1", "2"),
    "a comment": ("class Net:  {}\n    size = 1", "# a", "# b"),
    "a docstring": ("class Net:\n    '{}'\n    def f(self):\n        '''Doc.'''\n        return 1", "A.", "B."),
    "the module's docstring": ("'{}'\nclass Net: pass", "A.", "B."),
    "formatting": ("class Net:\n    def f(self, a,\n{}b): return (a\n+ b)", "", "      "),
    "the name of a local variable": ("class Net:\n    def f(self, x):\n        {0} = x\n        return [{0} for _ in x]", "total", "result"),
    "the names of loop and other local variables": ("class Net:\n    def f(self, x):\n        for {0}, *b in x:\n            with x as {1}: b = {0}\n        try: ...\n        except ValueError as {2}: raise {2}\n        return {{{1}: {0} for {0} in x if ({3} := 1)}}, {3}", ("a", "c", "d", "e"), ("k", "l", "m", "n")),
    "the name of a captured variable": ("class Net:\n    def f(self):\n        {0} = 1\n        def g():\n            nonlocal {0}\n            {0} += 1\n        return g", "a", "b"),
    "the name of a local import": ("class Net:\n    def f(self):\n        import numpy as {0}\n        return {0}.ones", "np", "numpy"),
    "annotations of functions": ("from torch import Tensor\nclass Net:\n    def f(self, x{}, *y): return x", "", ": Tensor"),
    "an annotation of what is returned": ("class Net:\n    def f(self){}: return 1", "", " -> 'int | None'"),
    "annotations of local variables": ("class Net:\n    def f(self):\n        x{} = 1\n        return x", "", ": int"),
    "the order of functions": ("{}def c(): pass\n{}class Net:\n    def f(self): return a(), b()", ("def a(): return 1\n", "def b(): return 2\n"), ("def b(): return 2\n", "def a(): return 1\n")),
    "how a package is called": ("import numpy{0}\nclass Net:\n    def f(self): return {1}.ones", ("", "numpy"), (" as np", "np")),
    "from where in a package a name is taken": ("{}\nclass Net:\n    def f(self): return {}", ("from torch import nn", "nn.Linear"), ("import torch.nn", "torch.nn.Linear")),
    "an unused import": ("{}\nclass Net: pass", "", "import json, os\nimport torch.nn.functional as F"),
    "imports for type checkers": ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\nclass Net: pass", "import a", "import b"),
    "what runs as a script alone": ("class Net: pass\nif __name__ == '__main__':\n    print({})", "1", "2"),
    "the name of a logger's module": ("import logging\nlog = {}\nclass Net:\n    def f(self): log.info('a')", "logging.getLogger(__name__)", "(logging.getLogger(__name__))"),
    "a global that a local name hides": ("x = {}\nclass Net:\n    def f(self):\n        x = 1\n        return x", "1", "2"),
    "a global that a parameter hides": ("x = {}\nclass Net:\n    def f(self, x): return x", "1", "2"),
    "a global that a comprehension hides": ("x = {}\nclass Net:\n    def f(self, y): return [x for x in y]", "1", "2"),
    "a global that a local import hides": ("json = {}\nclass Net:\n    def f(self):\n        import json\n        return json.loads", "1", "2"),
    "help of a command line": ("'{}'\nimport argparse\nclass Net:\n    def f(self): return argparse.ArgumentParser(description=__doc__)", "a", "b"),
}  # fmt: skip


def filled(text: str, values: str | tuple[str, ...]) -> str:
    return text.format(*((values,) if isinstance(values, str) else values))


@pytest.mark.parametrize("rule", COUNTS)
def test_counts(tmp_path: Path, rule: str) -> None:
    text, before, after = COUNTS[rule]
    files = ({"models": filled(text, before)}, {"models": filled(text, after)})
    old, new = digests(tmp_path, *files)
    assert old != new


@pytest.mark.parametrize("rule", DOES_NOT_COUNT)
def test_does_not_count(tmp_path: Path, rule: str) -> None:
    text, before, after = DOES_NOT_COUNT[rule]
    files = ({"models": filled(text, before)}, {"models": filled(text, after)})
    old, new = digests(tmp_path, *files)
    assert old == new
