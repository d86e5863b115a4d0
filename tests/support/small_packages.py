"""Small projects that import their parts in every form, and edits of them, for hypothesis.

A project is its files: text by path. `work` and `more` are the import roots, in this order;
`work/lib` and `extra` are found only by code that adds them to `sys.path`. The module
`app` (or `p.app`) has a function `call()`, whose value some other module gives.
"""

from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

ROOTS = ("work", "more")
Project = dict[str, str]

# How a module `{full}` = `{parent}.{leaf}` is imported as `m`; those that name `{parent}` need one.
ABSOLUTE = (
    "import {full} as m",
    "from {full} import value\nclass m: value = staticmethod(value)",
    "from {parent} import {leaf} as m",
    "try:\n    import nowhere as m\nexcept ImportError:\n    import {full} as m",
    "def find():\n    import {full} as m\n    return m\nm = find()",
    "import importlib\nm = importlib.import_module('{full}')",
    "import importlib\nm = importlib.import_module(name='{full}')",
    "import importlib as il\nm = il.import_module(package=None, name='{full}')",
    "from importlib import import_module as load\nm = load('{full}')",
    "import importlib\nload = importlib.import_module\nm = load('{full}')",
    "from importlib import import_module\nfirst = second = import_module\nm = second('{full}')",
    "from importlib import import_module\nclass Loader:\n    def __init__(self): self.load = import_module\n"
    "m = Loader().load('{full}')",
    "from importlib import import_module\ndef find(load=import_module): return load('{full}')\nm = find()",
    "import importlib\nm = getattr(importlib, 'import_module')('{full}')",
    "import functools, importlib\nm = functools.partial(importlib.import_module, '{full}')()",
    "from importlib import import_module\n(m,) = map(import_module, ['{full}'])",
    "from importlib import import_module\nm = import_module('.{leaf}', '{parent}')",
    "from importlib import import_module\nm = import_module('.{leaf}', package='{parent}')",
    "from importlib import import_module\nPLACE = '{parent}'\nm = import_module('.{leaf}', PLACE)",
    "from importlib import import_module\nNAME = '{full}'\nm = import_module(NAME)",
    "from importlib import import_module\nfor name in ['{full}']: m = import_module(name)",
    "from importlib import import_module\n(m,) = [import_module(name) for name in ('{full}',)]",
    "from importlib import import_module\nMODELS = {{'a': '{full}'}}\nm = import_module(MODELS['a'])",
    "from importlib import import_module\nMODELS = {{'a': '{full}'}}\n"
    "for key, name in MODELS.items(): m = import_module(name)",
    "import os\nfrom importlib import import_module\nm = import_module(os.environ.get('NO_SUCH', '{full}'))",
    "from importlib import import_module\ndef find(name='{full}'): return import_module(name)\nm = find()",
    "from importlib import import_module\nclass C: NAME = '{full}'\nm = import_module(C().NAME)",
    "from importlib import import_module\nm = import_module('{parent}' + '.' + '{leaf}')",
    "from importlib import import_module\nLEAF = '{leaf}'\nm = import_module(f'{parent}.{{LEAF}}')",
    "import sys\n__import__('{full}')\nm = sys.modules['{full}']",
    "m = __import__('{parent}', fromlist=['{leaf}']).{leaf}",
    "m = __import__('{parent}', globals(), locals(), ('{leaf}',), 0).{leaf}",
    "import builtins\nm = builtins.__import__(name='{full}', fromlist=['value'])",
    "load = __import__\nm = load('{full}', None, None, ['value'])",
    "import importlib\nm = importlib.__import__('{full}', fromlist=['value'])",
    "import runpy\nclass m: value = staticmethod(runpy.run_module('{full}')['value'])",
    "from runpy import run_module as run\nclass m: value = staticmethod(run(mod_name='{full}')['value'])",
    "import runpy as r\nclass m: value = staticmethod(r.run_module('{parent}')['value'])",
    "from {parent} import *\nm = {leaf}",
    "TYPE_CHECKING = True\nif TYPE_CHECKING:\n    import {full} as m",
    "from typing import TYPE_CHECKING\nTYPE_CHECKING = not TYPE_CHECKING\nif TYPE_CHECKING:\n    import {full} as m",
    "from flags import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {full} as m\nelse:\n    m = None",
    "from flags import *\nif TYPE_CHECKING:\n    import {full} as m\nelse:\n    m = None",
    "import flags as typing\nif typing.TYPE_CHECKING:\n    import {full} as m\nelse:\n    m = None",
    "import typing\ntyping.TYPE_CHECKING = True\nif typing.TYPE_CHECKING:\n    import {full} as m",
    "def find(TYPE_CHECKING=True):\n    if TYPE_CHECKING:\n        import {full} as m\n        return m\nm = find()",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import {full} as m",
    "TYPE_CHECKING = False\nif not TYPE_CHECKING:\n    import {full} as m",
)  # fmt: skip
# From a module of the same package.
RELATIVE = (
    "from . import {leaf} as m",
    "from .{leaf} import value\nclass m: value = staticmethod(value)",
    "from importlib import import_module\nm = import_module('.{leaf}', __package__)",
    "from importlib import import_module\nm = import_module('.{leaf}', __name__.rpartition('.')[0])",
    "from importlib import import_module\nm = import_module(f'{{__package__}}.{leaf}')",
    "from importlib import import_module\nm = import_module(__package__ + '.{leaf}')",
    "m = __import__('{leaf}', globals(), locals(), ['value'], 1)",
    "m = __import__('', globals(), None, ['{leaf}'], level=1).{leaf}",
    "import runpy\nclass m: value = staticmethod(runpy.run_module(__package__ + '.{leaf}')['value'])",
)
# How a folder beside `work/app.py` gets into `sys.path`; `{up}` is where `work` is from the file.
PATHS = (
    "import sys\nsys.path.insert(0, '{folder}')",
    "import sys\nsys.path.append('{folder}')",
    "import sys\nsys.path.extend(['{folder}'])",
    "import sys\nsys.path += ['{folder}']",
    "import sys\nsys.path[:0] = ['{folder}']",
    "import sys\nsys.path[0] = '{folder}'",
    "import sys\nsys.path.insert(0, '{folder}')\ndel sys.path[1]",
    "import sys\nsys.path.append('{folder}')\nsys.path.pop(0)",
    "import sys\nsys.path = ['{folder}', *sys.path]",
    "import sys\nsys.path = sys.path + ['{folder}']",
    "import sys as s\ns.path.insert(1, '{folder}')",
    "from sys import path\npath.insert(0, '{folder}')",
    "from sys import path as places\nplaces.append('{folder}')",
    "import sys\nplaces = sys.path\nplaces.insert(0, '{folder}')",
    "import sys\nfor folder in ('{folder}',): sys.path.insert(0, folder)",
    "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), {up}'{folder}'))",
    "import os, sys\nsys.path.insert(0, os.path.abspath('{folder}'))",
    "import os, sys\nHERE = os.path.dirname(os.path.abspath(__file__))\nsys.path.append(HERE + '/' + {up}'/{folder}')",
    "import os, sys\nsys.path.append(os.path.join(os.getcwd(), '{folder}'))",
    "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).resolve().parent / {up}'{folder}'))",
    "import sys\nfrom pathlib import Path\nROOT = Path(__file__).parents[0]\n"
    "sys.path.insert(0, str(ROOT.joinpath({up}'{folder}').absolute()))",
    "import pathlib, sys\nsys.path.insert(0, f\"{{pathlib.Path.cwd()}}/{folder}\")",
    "import site\nsite.addsitedir('{folder}')",
)  # fmt: skip
INITS = (
    "",
    "N = 1\ndef value(): return ('init', N)\n",
    "from .{leaf} import value\n",
    "from . import {leaf}\nvalue = {leaf}.value\n",
    "__all__ = ['{leaf}']\n",
    "names = ('{leaf}',)\n__all__ = []\n__all__ += list(names)\n",
    "from .{leaf} import *\n__all__ = ['value', '{leaf}']\n",
    "import pkgutil\n__path__ = pkgutil.extend_path(__path__, __name__)\n__all__ = ['{leaf}']\n",
    "import os\n__path__.append(os.path.join(os.path.dirname(__file__), 'impl'))\n__all__ = ['{leaf}']\n",
    "def __getattr__(name):\n    if name == '{leaf}':\n        from . import {leaf}\n        return {leaf}\n"
    "    raise AttributeError(name)\n",
)  # fmt: skip
# Two readings of nearly the same text; each gives `value`.
PROGRAMS = (
    "N = {n}\ndef value(): return N\n",
    "N = {n}\ndef value():\n    'Doc.'\n    return N, value.__doc__\n",
    "'Module {n}.'\ndef value(): return __doc__\n",
    "class P:\n    'Of {n}.'\ndef value(): return P.__doc__\n",
    "import inspect\ndef value():\n    'Of {n}.'\n    return inspect.getdoc(value)\n",
    "N = {n}\ndef P(c): return c\nclass Q: x = N\nclass R(Q): pass\ndef value(): return R.__mro__[1].__name__, N\n",
    "N = {n}\nclass Q: x = N\n@Q.__call__\nclass R: pass\ndef value(): return type(R).__name__\n",
    "class P:\n    def __init__(self, *a): self.n = {n}\n@P\nclass Q: pass\ndef value(): return type(Q).__name__\n",
    "class P:\n    def __init__(self, *a): self.n = {n}\nclass Q(P): pass\ndef value(): return type(Q).__name__\n",
    "class A: x = {n}\nclass A:\n    y = 2\n    z = 3\ndef value(): return sorted(vars(A))\n",
    "class A:\n    x = {n}\n    y = 2\nclass A: z = 3\ndef value(): return sorted(vars(A))\n",
    "def f(a={n}, *, b=2): return a, b\ndef value(): return f(3)\n",
    "def f(a, *, b={n}): return a, b\ndef value(): return f(a=3)\n",
    "def value():\n    x = {n}\n    def g():\n        nonlocal x\n        x = 2\n    g()\n    return x\n",
    "def value():\n    x = {n}\n    def g():\n        x = 2\n    g()\n    return x\n",
    "def value(): return [*range({n})], (y := {n}), y\n",
    "def value():\n    match {n}:\n        case 1 | 2: return 'low'\n        case n if n > 4: return f'{{n!r:>4}}'\n"
    "        case _: return f'{{n:>4}}' if (n := {n}) else None\n",
    "import asyncio\nasync def f(): return {n}\ndef value(): return f.__code__.co_flags, {n}\n",
    "def value():\n    assert {n} > 2, 'low'\n    return __debug__, {n}\n",
    "def value():\n    try: return 1 // ({n} - 3)\n    except ZeroDivisionError: return 'none'\n    finally: pass\n",
    "x = {n}\ndel (x)\ndef value(): return 'x' in globals()\n",
)  # fmt: skip


@st.composite
def projects(draw: st.DrawFn) -> tuple[str, Project]:
    """Return the entry module and the files of a project."""
    full = draw(st.sampled_from(["h", "p.h", "p.q.h"]))
    relative = full == "p.h" and draw(st.booleans())
    entry = "p.app" if relative else "app"
    folder = (
        "work" if relative else draw(st.sampled_from(["work", "work", "more", "work/lib", "extra"]))
    )
    files: Project = {"work/flags.py": f"TYPE_CHECKING = {draw(st.booleans())}\n"}
    parent, _, leaf = full.rpartition(".")
    names = {"full": full, "parent": parent, "leaf": leaf}
    text = _form(draw, names, relative=relative)
    if draw(st.booleans()):  # through another module
        files["work/mid.py"] = f"{text}\ndef value(): return m.value()\n"
        if relative:
            files["work/p/mid.py"] = files.pop("work/mid.py")
        place = "p.mid" if relative else "mid"
        text = _form(
            draw,
            {"full": place, "parent": place.rpartition(".")[0], "leaf": "mid"},
            relative=relative,
        )
    if folder in ("work/lib", "extra"):
        text = _with_folder(draw, files, folder) + text
    files[f"work/{entry.replace('.', '/')}.py"] = f"{text}\ndef call(): return m.value()\n"
    _add_module(draw, files, folder, full, extra_init=draw(st.sampled_from(INITS)).format(**names))
    for _ in range(draw(st.integers(0, 2))):
        path, content = draw(decoys())
        files.setdefault(path, content)
    return entry, files


def _form(draw: st.DrawFn, names: dict[str, str], *, relative: bool) -> str:
    forms = [form for form in ABSOLUTE if names["parent"] or "{parent}" not in form]
    return draw(st.sampled_from(RELATIVE if relative and draw(st.booleans()) else forms)).format(
        **names
    )


def _with_folder(draw: st.DrawFn, files: Project, folder: str) -> str:
    """Return what adds a folder to `sys.path`, in place or in a module `paths`."""
    named = "lib" if folder == "work/lib" else "../extra"
    if draw(st.booleans()):
        return draw(st.sampled_from(PATHS)).format(folder=named, up="") + "\n"
    text = draw(st.sampled_from(PATHS)).format(folder=named, up="'../' ")
    files["work/setup/paths.py"] = text + "\n"
    return "import setup.paths\n"


def _add_module(
    draw: st.DrawFn, files: Project, folder: str, full: str, *, extra_init: str
) -> None:
    path = Path(folder, *full.split("."))
    for package in path.parents:
        if package.is_relative_to(folder) and package != Path(folder) and draw(st.integers(0, 3)):
            files[str(package / "__init__.py")] = extra_init if package == path.parent else ""
    text = draw(programs())
    if "impl" in files.get(str(path.parent / "__init__.py"), "") and draw(st.booleans()):
        path = path.parent / "impl" / path.name
    if draw(st.integers(0, 4)) == 0:
        files[str(path / "__init__.py")] = text
        if draw(st.booleans()):
            files[str(path / "__main__.py")] = draw(programs())
    else:
        files[f"{path}.py"] = text


def programs() -> st.SearchStrategy[str]:
    """Return texts of modules that have `value`."""
    return st.builds(lambda text, n: text.format(n=n), st.sampled_from(PROGRAMS), st.integers(1, 5))


def decoys() -> st.SearchStrategy[tuple[str, str]]:
    """Return files that may hide a module, or that nothing imports."""
    folders = st.sampled_from(["work", "more", "work/lib", "extra"])
    leaves = st.sampled_from(
        ["h.py", "h/__init__.py", "h/x.py", "p.py", "p/__init__.py", "p/h.py", "p/__main__.py", "p/impl/h.py",
         "p/h/__init__.py", "p/q.py", "p/q/__init__.py", "p/q/h.py", "mid.py", "typing.py", "other.py"]
    )  # fmt: skip
    return st.tuples(st.builds("{}/{}".format, folders, leaves), programs())


@st.composite
def edits(draw: st.DrawFn, project: Project, entry: str) -> Project:
    """Return the files after one edit, most often one that the call's value shows."""
    files = dict(project)
    kept = f"work/{entry.replace('.', '/')}.py"
    path = draw(st.sampled_from(sorted(files)))
    changed = draw(st.sampled_from(EDITS))(draw, files, path)
    changed.setdefault(kept, project[kept])
    return changed


def _constant(draw: st.DrawFn, files: Project, path: str) -> Project:
    paths = [p for p in sorted(files) if any(c.isdigit() for c in files[p])] or [path]
    path = draw(st.sampled_from(paths))
    digits = [i for i, c in enumerate(files[path]) if c.isdigit()]
    if digits:
        at = draw(st.sampled_from(digits))
        files[path] = files[path][:at] + draw(st.sampled_from("0123456789")) + files[path][at + 1 :]
    return files


def _program(draw: st.DrawFn, files: Project, path: str) -> Project:
    paths = [p for p in sorted(files) if "value()" in files[p] and "m.value()" not in files[p]]
    files[draw(st.sampled_from(paths or [path]))] = draw(programs())
    return files


def _same(draw: st.DrawFn, files: Project, path: str) -> Project:
    text = files[path]
    same = st.sampled_from(
        [f"# why\n{text}", f"{text}\n\n# end\n", text.replace("    ", "  "), f"{text}\n'stray'\n"]
    )
    files[path] = draw(same)
    return files


def _added(draw: st.DrawFn, files: Project, path: str) -> Project:
    name, text = draw(decoys())
    return {**files, name: text}


def _removed(draw: st.DrawFn, files: Project, path: str) -> Project:
    del files[path]
    return files


def _swapped(draw: st.DrawFn, files: Project, path: str) -> Project:
    other = draw(st.sampled_from(sorted(files)))
    files[path], files[other] = files[other], files[path]
    return files


def _moved(draw: st.DrawFn, files: Project, path: str) -> Project:
    text = files.pop(path)
    top, _, rest = path.partition("/")
    files[f"{'more' if top == 'work' else 'work'}/{rest}"] = text
    return files


EDITS: tuple[Callable[[st.DrawFn, Project, str], Project], ...] = (
    _constant, _constant, _constant, _program, _program, _same, _added, _removed, _swapped, _moved,
)  # fmt: skip


def write(base: Path, files: Project) -> list[Path]:
    """Write a project and return its import roots."""
    for root in ROOTS:
        (base / root).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)
    return [base / root for root in ROOTS]
