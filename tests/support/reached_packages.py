"""Small projects of many definitions, of which `app:call` reaches some, and edits of them.

Drawn by `random.Random`, so that a case is named by its seed alone.
"""

import ast
import random
import re
from collections.abc import Callable
from pathlib import Path

from tests.support.features import read_features

FEATURES = read_features()
Project = dict[str, str]  # text by dotted name of the module
MODULES = ("app", "lib", "base", "other", "pkg", "pkg.sub", "pkg.other")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")


def project(rng: random.Random) -> tuple[Project, list[str]]:
    """Return a project, and the names of the features that it holds."""
    names = rng.sample(sorted(FEATURES), rng.randint(1, 4))
    parts: dict[str, list[str]] = {name: [] for name in MODULES}
    calls = []
    for number, name in enumerate(names):
        expression, modules = FEATURES[name]
        calls.append(expression.format(i=number))
        for module, text in modules.items():
            parts[module].append(text.format(i=number))
    files = {name: "\n".join(texts) + "\n" for name, texts in parts.items()}
    probe = "".join(f"    out.append(({call}))\n" for call in calls)
    files["app"] += f"def call():\n    out = []\n{probe}    return out\n"
    return files, names


def edited(files: Project, rng: random.Random) -> tuple[Project, str]:
    """Return the files after one or two edits, and the kinds of these."""
    kinds = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        kind = rng.choice(EDITS)
        changed = kind(dict(files), rng)
        if "def call(" in changed["app"] and all(map(_parses, changed.values())):
            files = changed
            kinds.append(kind.__name__.strip("_"))
    return files, "+".join(kinds)


def write(root: Path, files: Project) -> Path:
    """Write the modules below a folder, and return it."""
    for name, text in files.items():
        is_package = any(other.startswith(f"{name}.") for other in files)
        path = root.joinpath(*name.split("."), *(["__init__"] if is_package else []))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)
    return root


def _parses(text: str) -> bool:
    try:
        compile(text, "m", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _module(files: Project, rng: random.Random) -> str:
    return rng.choice([name for name, text in files.items() if text.strip()])


def _statements(text: str) -> list[str]:
    return [ast.unparse(one) for one in ast.parse(text).body]


def _digit(files: Project, rng: random.Random) -> Project:
    name = _module(files, rng)
    text = files[name]
    places = [m.start() for m in re.finditer(r"(?<![\w'])\d", text)]
    if places:
        at = rng.choice(places)
        files[name] = text[:at] + rng.choice("0123456789") + text[at + 1 :]
    return files


def _name(files: Project, rng: random.Random) -> Project:
    """Put one name in the place of another, wherever it stands."""
    name = _module(files, rng)
    words = list(_NAME.finditer(files[name]))
    others = [m.group() for text in files.values() for m in _NAME.finditer(text)]
    if words:
        one = rng.choice(words)
        text = files[name]
        files[name] = text[: one.start()] + rng.choice(others) + text[one.end() :]
    return files


def _removed(files: Project, rng: random.Random) -> Project:
    name = _module(files, rng)
    parts = _statements(files[name])
    del parts[rng.randrange(len(parts))]
    files[name] = "\n".join(parts) + "\n"
    return files


def _swapped(files: Project, rng: random.Random) -> Project:
    name = _module(files, rng)
    parts = _statements(files[name])
    first, second = rng.randrange(len(parts)), rng.randrange(len(parts))
    parts[first], parts[second] = parts[second], parts[first]
    files[name] = "\n".join(parts) + "\n"
    return files


def _inserted(files: Project, rng: random.Random) -> Project:
    """Add a statement that may shadow, patch or extend what is there."""
    name = _module(files, rng)
    parts = _statements(files[name])
    known = sorted({m.group() for text in files.values() for m in _NAME.finditer(text)})
    one, two = rng.choice(known), rng.choice(known)
    module = rng.choice([m for m in MODULES if m != name])
    text = rng.choice(INSERTS).format(one=one, two=two, n=rng.randrange(10), module=module)
    parts.insert(rng.randint(0, len(parts)), text)
    files[name] = "\n".join(parts) + "\n"
    return files


INSERTS = (
    "def {one}(*a, **k): return {n}",
    "{one} = {n}",
    "{one} = {two}",
    "class {one}: size = {n}",
    "class Extra({one}): size = {n}",
    "import {module}",
    "from {module} import *",
    "from {module} import {one}",
    "from {module} import {one} as {two}",
    "import {module}\n{module}.{one} = lambda *a: {n}",
    "import {module}\nif hasattr({module}, '{one}'): {module}.{one} = {n}",
    "try:\n    from {module} import {one}\nexcept ImportError:\n    {one} = {n}",
    "try:\n    del {one}\nexcept NameError: pass",
    "if {n} > 4:\n    {one} = {n}",
    "for {one} in range({n}): pass",
    "def unused_{one}(): return {two}",
    "def unused_{one}():\n    global {two}\n    {two} = {n}",
    "@print\ndef unused_{one}(): return {n}",
    "def __getattr__(name): return {n}",
    "({one} := {n})",
    "import builtins\nbuiltins.len = lambda x: {n}",
    "try:\n    {one}.{two} = {n}\nexcept Exception: pass",
    "try:\n    {one}.append({n})\nexcept Exception: pass",
    "try:\n    {one}()\nexcept Exception: pass",
)


def _moved(files: Project, rng: random.Random) -> Project:
    """Move a definition into another module, and import it from there."""
    name = _module(files, rng)
    body = ast.parse(files[name]).body
    defined = [one for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef)]
    if not defined:
        return files
    one = rng.choice(defined)
    target = rng.choice([module for module in MODULES if module != name] + ["moved"])
    body[body.index(one)] = ast.parse(f"from {target} import {one.name}").body[0]
    if rng.random() < 0.5:
        body.insert(
            0, body.pop(body.index(next(s for s in body if getattr(s, "module", "") == target)))
        )
    files[name] = "\n".join(map(ast.unparse, body)) + "\n"
    imports = [ast.unparse(s) for s in ast.parse(files[name]).body if isinstance(s, ast.Import | ast.ImportFrom)
               and getattr(s, "module", "") != target] if rng.random() < 0.7 else []  # fmt: skip
    files[target] = "\n".join([*imports, files.get(target, ""), ast.unparse(one)]) + "\n"
    return files


def _renamed(files: Project, rng: random.Random) -> Project:
    """Give one name another spelling throughout a module, often that of a local variable."""
    name = _module(files, rng)
    words = sorted({m.group() for m in _NAME.finditer(files[name])})
    old = rng.choice(words)
    new = rng.choice([f"{old}_new", "fresh", rng.choice(words)])
    files[name] = re.sub(rf"\b{old}\b", new, files[name])
    return files


def _harmless(files: Project, rng: random.Random) -> Project:
    name = _module(files, rng)
    text = files[name]
    kind = rng.randrange(6)
    if kind == 0:
        files[name] = f"# why\n{ast.unparse(ast.parse(text))}\n"
    elif kind == 1:
        files[name] = text + "\n\ndef added(): return 1\nclass Added: pass\nADDED = [1, 2]\n"
    elif kind == 2:
        files[name] = re.sub(r"\b(total|tmp|kept|out|got|first|rest|y|z|w)\b", r"\1_x", text)
    elif kind == 3:
        files[name] = re.sub(r"(def \w+\(x)\)", r"\1: int)", text)
    elif kind == 4:
        files[name] = re.sub(r"(def \w+\([^\n]*\):)\n", r"\1\n    'Doc.'\n", text)
    else:
        files[name] = "import json\n" + text
    return files


EDITS: tuple[Callable[[Project, random.Random], Project], ...] = (
    _digit, _digit, _digit, _digit, _name, _name, _removed, _swapped, _swapped, _inserted, _inserted,
    _inserted, _moved, _renamed, _renamed, _harmless, _harmless,
)  # fmt: skip
