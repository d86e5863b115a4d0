"""Kind of the object that a dataset's source names, found in parsed source without an import."""

import ast
from typing import Literal

from shardline.identity.code_index import CodeIndex
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
        any other class, `function`, or `unknown` if a base class is in an installed package.
    """
    module, _, name = path.partition(":")
    return _Bases(code).of_name(module, name)


class _Bases:
    def __init__(self, code: CodeIndex) -> None:
        self._code = code
        self._seen: set[tuple[str, str]] = set()

    def of_name(self, module: str, name: str) -> Kind:
        """Return the kind of a name in a module."""
        top = module.partition(".")[0]
        if top == "shardline":
            return "source"
        if top in _LIGHTNING and name == "LightningDataModule":
            return "module"
        if top in ("torch", "builtins", "abc", "typing"):
            return "dataset"
        file = self._code.find(module)
        if (module, name) in self._seen or file is None or file.suffix != ".py":
            return "unknown"
        self._seen.add((module, name))
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
        if not found.bases and not methods & {"__getitem__", "__iter__"}:
            return "source"  # neither, which is an error of a source
        order: tuple[Kind, ...] = ("source", "module", "unknown")
        return next((kind for kind in order if kind in kinds), "dataset")
