"""What the source of a class or script shows before it is imported: its methods, the packages that it needs."""

import ast
import sys
from pathlib import Path
from typing import NamedTuple

from shardline.identity.code_index import CodeIndex
from shardline.identity.module_imports import parse_quietly
from shardline.identity.module_search import OURS
from shardline.identity.scopes import Imported, imported_names

# whose classes have nothing of the user's
_PLAIN = {"abc", "builtins", "lightning", "pytorch_lightning", "torch", "typing"}


class _Source(NamedTuple):
    """A module: its classes, and what its imports bind, by name."""

    classes: dict[str, ast.ClassDef]
    imports: dict[str, Imported]


def has_method(code: CodeIndex, path: str, method: str) -> bool | None:
    """Return whether a class or a base class of it defines a method.

    Args:
        code: where modules are found.
        path: import path of the class, such as `mypkg.models:Net`.

    Returns:
        None where no definition was found and a class cannot be seen, such as one of an installed package.
    """
    module, _, name = path.partition(":")
    return _Search(code, method).in_module(module, name)


def needed_packages(code: CodeIndex, entry: str = "__main__") -> list[str]:
    """Return the top-level names that a program's own modules import unconditionally.

    What stands in a function, or below `try` or `if`, may never be imported, and is left out.

    Args:
        code: where the program's modules are found.
        entry: the module that it begins with.
    """
    needed: set[str] = set()
    pending, seen = [entry], {entry}
    while pending:
        module = pending.pop()
        path = code.find(module)
        assert path is not None
        outline = code.outline(path, module, is_main=module == "__main__")
        for name in (name for one in outline.importing for name in one.modules):
            top = name.partition(".")[0]
            if code.find(top) is None:
                needed.add(top)
            elif code.find(name) and name not in seen:
                seen.add(name)
                pending.append(name)
    return sorted(needed - sys.stdlib_module_names - set(OURS))


class _Search:
    def __init__(self, code: CodeIndex, method: str) -> None:
        self._code, self._method = code, method
        self._seen: set[tuple[str, str]] = set()
        self._sources: dict[str, _Source] = {}

    def in_module(self, module: str, name: str) -> bool | None:
        """Return what is known of the class that a name stands for in a module."""
        if (module, name) in self._seen:
            return False
        self._seen.add((module, name))
        file = self._code.find(module)
        if file is None or file.suffix != ".py":
            return False if module.partition(".")[0] in _PLAIN else None
        if module not in self._sources:
            self._sources[module] = _read(file, module)
        return self._named(module, self._sources[module], name)

    def _named(self, module: str, source: _Source, name: str) -> bool | None:
        if name in source.classes:
            return self._in_class(module, source, source.classes[name])
        if name in source.imports:
            found = source.imports[name]
            return self.in_module(found.module, found.name) if found.name else None
        return False if name == "object" else None

    def _in_class(self, module: str, source: _Source, node: ast.ClassDef) -> bool | None:
        if any(self._method in _bound(statement) for statement in node.body):
            return True
        found = [self._base(module, source, base) for base in node.bases]
        return True if True in found else None if None in found else False

    def _base(self, module: str, source: _Source, base: ast.expr) -> bool | None:
        if isinstance(base, ast.Name):
            return self.in_module(module, base.id)
        first, _, rest = ast.unparse(base).partition(".")
        if first not in source.imports or not rest.replace(".", "").isidentifier():
            return None
        inner, _, name = rest.rpartition(".")
        found = source.imports[first]
        return self.in_module(".".join(filter(None, (found.module, found.name, inner))), name)


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a class binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _read(file: Path, module: str) -> _Source:
    tree = parse_quietly(file.read_bytes())
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    classes: dict[str, ast.ClassDef] = {}
    imports: dict[str, Imported] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports |= imported_names(node, package)
    return _Source(classes, imports)
