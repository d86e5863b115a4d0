"""Files that a module reads by a literal path beside itself: their bytes count as its code does."""

import ast
import os.path
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from shardline.core.canonical import DIGEST_LENGTH
from shardline.core.digests import file_sha256
from shardline.identity.literals import Bindings
from shardline.identity.outline import Outline
from shardline.identity.path_literals import CallSite, CodeModule, Elsewhere, PathLiterals, calls_in
from shardline.identity.reach import Key, Reach
from shardline.identity.scopes import Imported

_HINTS = ("__file__", "resources", "get_data")
_PATHS = (ast.BinOp, ast.Call, ast.JoinedStr)
_WRITING = {
    "mkdir",
    "rename",
    "rmdir",
    "symlink_to",
    "touch",
    "unlink",
    "write_bytes",
    "write_text",
}


@dataclass
class Beside:
    """Finds the files that reached definitions name.

    A folder may come from a module that is imported (`from pkg.paths import HERE`), a file's name
    from a caller (`load("vocab.txt")`).

    Attributes:
        found: what was reached.
    """

    found: Reach
    _sources: dict[str, CodeModule] = field(default_factory=dict)
    _opened: set[Path] = field(default_factory=set)  # packages named by `importlib.resources`

    def files(self) -> dict[Key, dict[str, str]]:
        """Return the files that definitions and statements name, with digests of their bytes.

        Returns:
            Digest by path from the folder of the definition's module; without what is not there, or
            below no package (of a module without one: folder) of the module and those that it imports.
        """
        named = {
            key: list(self._named(key)) for key in self.found.units if self._around.get(key[0])
        }
        return {key: files for key, found in named.items() if (files := self._below(key[0], found))}

    def _named(self, key: Key) -> Iterator[Path]:
        node = self.found.unit(key).node
        for expression in _reading(node) if node else ():
            for text in self._source(key[0]).literals.texts(expression):
                if "\0" not in text and Path(text).is_absolute() and Path(text).is_file():
                    yield Path(text).resolve()

    def _below(self, label: str, files: Iterable[Path]) -> dict[str, str]:
        path = self.found.program.files[label].resolve()
        folders = [*map(self._top, (label, *self._around[label])), *self._opened]
        found = {
            Path(os.path.relpath(file, path.parent)).as_posix(): file_sha256(file)[:DIGEST_LENGTH]
            for file in dict.fromkeys(files)
            if any(map(file.is_relative_to, folders)) and file != path
        }
        return dict(sorted(found.items()))

    @cached_property
    def _around(self) -> dict[str, set[str]]:
        """The modules that may name a folder, by label of those that import them, and by their own."""
        importers: dict[str, list[str]] = {}
        for label, outline in self.found.run.items():
            for one in self._modules(outline):
                importers.setdefault(one, []).append(label)
        found: dict[str, set[str]] = {}
        for label, outline in self.found.run.items():
            if any(hint in line for line in outline.source for hint in _HINTS):
                pending = [label]
                while pending:
                    importer = pending.pop()
                    known = found.setdefault(importer, set())
                    if label not in known:
                        known.add(label)
                        pending += importers.get(importer, [])
        return found

    def _modules(self, outline: Outline) -> dict[str, None]:
        """Return the labels of executed modules that a module's names are bound to, or lie in."""
        names = (
            name
            for bound in outline.symbols.values()
            for one in bound
            if isinstance(one, Imported)
            for name in (one.module, f"{one.module}.{one.name}")
        )
        return dict.fromkeys(label for name in names for label in self._labels.get(name, ()))

    @cached_property
    def _labels(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for label in self.found.run:
            found.setdefault(label.partition(" (")[0], []).append(label)
        return found

    def _top(self, label: str) -> Path:
        """Return the folder of the outermost package that a module lies in, or else its own."""
        outline = self.found.outline(label)
        package = outline.setting.package if outline.setting else ""
        folder = self.found.program.files[label].parent.resolve()
        return folder.parents[package.count(".") - 1] if "." in package else folder

    def _source(self, label: str) -> CodeModule:
        """Return a module as a place of paths."""
        if label not in self._sources:
            outline = self.found.outline(label)
            path = self.found.program.files[label]
            nodes = [n for unit in outline.units if unit.node for n in ast.walk(unit.node)]
            package = outline.setting.package if outline.setting else ""
            literals = PathLiterals(
                bindings=Bindings(nodes),
                known={"__file__": str(path), "__package__": package, ".": str(path.parent)},
                elsewhere=self._elsewhere(outline),
                calls=lambda name: self._calls.get(name, []),
                packages=self._packages,
            )
            self._sources[label] = CodeModule(nodes=nodes, literals=literals)
        return self._sources[label]

    def _literals(self, label: str) -> PathLiterals:
        return self._source(label).literals

    def _elsewhere(self, outline: Outline) -> Elsewhere:
        """Return what looks a name up in the modules that a module imports."""

        def texts(name: str) -> Iterator[str]:
            plain, call = name.removesuffix("()"), "()" if name.endswith("()") else ""
            for local, bound in outline.symbols.items():
                for one in (one for one in bound if isinstance(one, Imported)):
                    wanted = one.name if one.name and local == plain else plain
                    module = (
                        one.module
                        if one.name is None or local == plain
                        else f"{one.module}.{one.name}"
                    )
                    for label in self._labels.get(module, ()):
                        if label in self._around and wanted in self.found.outline(label).symbols:
                            yield from self._source(label).literals.named(f"{wanted}{call}")

        return texts

    def _packages(self, name: str) -> Iterator[str]:
        if not all(part.isidentifier() for part in name.split(".")):
            return
        for label in self.found.program.find(name):
            file = self.found.program.files[label]
            if file.name == "__init__.py":
                self._opened.add(file.parent.resolve())
                yield str(file.parent)

    @cached_property
    def _calls(self) -> dict[str, list[CallSite]]:
        """The calls of all executed modules, by the last part of the name that they call."""
        found: dict[str, list[CallSite]] = {}
        for label, outline in self.found.run.items():
            for unit in outline.units:
                for name, call in calls_in(unit.node):
                    place = CallSite(call, partial(self._literals, label))
                    found.setdefault(name, []).append(place)
        return found


def _reading(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions that may be a path, but for those that are written to."""
    if isinstance(node, ast.Call) and _writes(node):
        return
    if isinstance(node, _PATHS):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _reading(child)


def _writes(node: ast.Call) -> bool:
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name != "open":
        return name in _WRITING
    mode = next((one.value for one in node.keywords if one.arg == "mode"), None)
    place = 1 if isinstance(node.func, ast.Name) else 0
    if mode is None and len(node.args) > place:
        mode = node.args[place]
    return isinstance(mode, ast.Constant) and bool(set(str(mode.value)) & set("wax"))
