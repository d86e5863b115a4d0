"""Kind of the object that a dataset's source names, found in parsed source without an import."""

import ast
import sys
import sysconfig
from pathlib import Path
from typing import Literal

from shardline.identity.code_index import CodeIndex, find_in
from shardline.identity.module_imports import parse_quietly
from shardline.identity.names import DEFINITIONS, FUNCTIONS, Imported, imported_names

Kind = Literal["source", "module", "dataset", "function", "unknown"]
PYTHON_DATA: tuple[Kind, ...] = ("module", "dataset", "function")  # surely no `Source`
_LIGHTNING = ("pytorch_lightning", "lightning")


def kind_of(code: CodeIndex, path: str) -> Kind:
    """Return the kind of the object of an import path.

    Args:
        code: index of the project's modules.
        path: import path, such as `mypkg.data:Flowers`.

    Returns:
        `source` for a subclass of Shardline's `Source`, and for a class that is none of these, `module` for a
        LightningDataModule, `dataset` for
        any other class, `function`, or `unknown` if a base class is in a package that is not installed here.
    """
    module, _, name = path.partition(":")
    return _Bases(code, (module, name)).of_name(module, name)


def kind_in_project(code: CodeIndex, path: str) -> Kind:
    """Return the kind of an object by the project's own code, which is the same on every machine.

    `unknown` if a base class is in an installed package. Identities contain what follows from this kind, so its rules
    never change: for example, a class that inherits from one without `__getitem__` and `__iter__` is a `source`.
    """
    module, _, name = path.partition(":")
    return _Bases(code).of_name(module, name)


def _installed_file(module: str) -> Path | None:
    """Return the file of a module of an installed package."""
    folders = tuple({Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")})
    file = None
    for name in module.split("."):
        found = find_in(folders, name, top=False)
        if found is None:
            return None
        file, folders = found.file, found.folders
    return file


class _Bases:
    """Search of base classes.

    Args:
        code: index of the project's modules.
        entry: module and name of the object, to search in installed packages too; None for the project alone.
    """

    def __init__(self, code: CodeIndex, entry: tuple[str, str] | None = None) -> None:
        self._code, self._entry = code, entry
        self._seen: dict[tuple[str, str], Kind] = {}

    def of_name(self, module: str, name: str) -> Kind:
        """Return the kind of a name in a module."""
        top = module.partition(".")[0]
        if top == "shardline":
            return "source"
        if top in _LIGHTNING and name == "LightningDataModule":
            return "module"
        if top in ("torch", "builtins", "abc", "typing"):
            return "dataset"
        if (module, name) not in self._seen:
            self._seen[module, name] = "unknown"
            found = self._in_file(module, name)
            if self._entry is None:
                return found
            self._seen[module, name] = found
        return self._seen[module, name]

    def _in_file(self, module: str, name: str) -> Kind:
        file = self._code.find(module)
        if file is None and self._entry:
            if module.partition(".")[0] in sys.stdlib_module_names:
                return "dataset"
            file = _installed_file(module)
        if file is None or file.suffix != ".py":
            return "unknown"
        tree = parse_quietly(file.read_bytes())
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        bound: dict[str, ast.stmt | Imported] = {}
        for node in ast.walk(tree):
            if isinstance(node, DEFINITIONS):
                bound.setdefault(node.name, node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                bound |= dict(imported_names(node, package))
        return self._of_bound(bound, name, module)

    def _of_bound(
        self, bound: dict[str, ast.stmt | Imported], name: str, module: str, rest: str = ""
    ) -> Kind:
        found = bound.get(name)
        if isinstance(found, Imported):
            inner, _, last = rest.rpartition(".")
            dotted = ".".join(filter(None, (found.module, found.name if rest else None, inner)))
            return self.of_name(dotted, last if rest else found.name or "")
        if isinstance(found, FUNCTIONS):
            return "function"
        if not isinstance(found, ast.ClassDef):
            return "dataset" if name == "object" else "unknown"
        kinds, others = set(), {key: of for key, of in bound.items() if key != name}
        for base in found.bases:
            node = base.value if isinstance(base, ast.Subscript) else base  # Dataset[tuple]
            first, _, deeper = ast.unparse(node).partition(".")
            kinds.add(self._of_bound(others, first, module, deeper))
        methods = {one.name for one in found.body if isinstance(one, FUNCTIONS)}
        is_whole = self._entry in (None, (module, name))  # else a base class, as of a mixin
        if is_whole and not found.bases and not methods & {"__getitem__", "__iter__"}:
            return "source"  # neither, which is an error of a source
        order: tuple[Kind, ...] = ("source", "module", "unknown")
        return next((kind for kind in order if kind in kinds), "dataset")
