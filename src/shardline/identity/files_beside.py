"""Files that a module reads by a literal path beside itself, which count like its code."""

import ast
import os.path
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from shardline.core.canonical import DIGEST_LENGTH
from shardline.core.digests import file_sha256
from shardline.identity.literals import RESOURCES, Bindings, Literals, Texts
from shardline.identity.names import FUNCTIONS, Imported
from shardline.identity.outline import Outline
from shardline.identity.reach import Key, Reach

_OF_TEXT = {
    "format", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rpartition", "rsplit",
    "rstrip", "split", "strip", "upper",
}  # fmt: skip

Elsewhere = Callable[[str], Iterator[str]]
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


class CallSite(NamedTuple):
    """Call, with the literals of the module that contains it."""

    node: ast.Call
    literals: Callable[[], Literals]


class CodeModule(NamedTuple):
    """Nodes of a module, with its path literals."""

    nodes: Sequence[ast.AST]
    literals: "PathLiterals"


@dataclass(frozen=True, kw_only=True)
class PathLiterals(Literals):
    """Evaluates paths of files, also through functions, their callers and other modules.

    Attributes:
        elsewhere: texts of a name, or of the return values of `name()`, in the imported modules.
        calls: calls of a name in the program.
        packages: folders of a package of the project.
    """

    elsewhere: Elsewhere
    calls: Callable[[str], Sequence[CallSite]]
    packages: Elsewhere
    _done: dict[str, Texts] = field(default_factory=dict)

    def named(self, name: str) -> Texts:
        """Return the texts that a name of the module, or a call `name()`, can have."""
        return self._bound(name)

    def _bound(self, name: str) -> Texts:
        if name not in self._done:
            self._done[name] = ()  # as of `Literals`
            own = super()._bound(name) if not name.endswith("()") else ()
            more = (*self._returned(name), *self._given(name), *self.elsewhere(name))
            self._done[name] = tuple(dict.fromkeys((*own, *more)))
        return self._done[name]

    def _texts(self, node: ast.AST | None) -> Iterator[str]:
        match node:
            case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=None)):
                for text in self.texts(value):
                    yield from (text, text[_number(lower) : _number(upper)])
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                parts = right.elts if isinstance(right, ast.Tuple) else [right]
                for text, *given in self._product([left, *parts]):
                    with suppress(TypeError, ValueError):
                        yield text % tuple(given)
            case _:
                yield from super()._texts(node)

    def _called(self, node: ast.Call) -> Iterator[str]:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        owner = getattr(node.func, "value", None)
        subject = node.args[0] if node.args else owner
        if name in ("with_name", "with_suffix", "with_stem") and owner and node.args:
            for text, part in self._product([owner, node.args[0]]):
                folder, file = os.path.split(text)
                stem, suffix = os.path.splitext(file)  # noqa: PTH122
                changed = {
                    "with_name": part,
                    "with_suffix": stem + part,
                    "with_stem": part + suffix,
                }
                yield os.path.join(folder, changed[name])  # noqa: PTH118
        elif name == "splitext" or (
            name == "split" and subject is not owner and not _is_text(owner)
        ):
            for text in self.texts(subject):
                yield from getattr(os.path, name)(text)
        elif name == "expanduser":
            yield from self.texts(subject)
        elif name in RESOURCES and node.args:
            for text, *parts in self._product(node.args):
                yield from (os.path.join(folder, *parts) for folder in self.packages(text))  # noqa: PTH118
        if name in _OF_TEXT and owner:
            yield from self._of_text(name, owner, node.args)
        yield from super()._called(node)
        yield from self._bound(f"{name}()")

    def _of_text(self, name: str, owner: ast.expr, args: Sequence[ast.expr]) -> Iterator[str]:
        counts = [
            one.value for one in args if isinstance(one, ast.Constant) and type(one.value) is int
        ]
        given = [
            one for one in args if not (isinstance(one, ast.Constant) and type(one.value) is int)
        ]
        for text, *parts in self._product([owner, *given]):
            with suppress(TypeError, ValueError, LookupError, AttributeError):
                made = getattr(text, name)(*parts, *counts)
                yield from [made] if isinstance(made, str) else made

    def _is_own_package(self, node: ast.Call) -> bool:
        """Return whether the first argument is the module's package, as text or as imported."""
        first = node.args[0] if node.args else None
        dotted = ast.unparse(first) if isinstance(first, ast.Name | ast.Attribute) else ""
        return super()._is_own_package(node) or bool(dotted and dotted == self.known["__package__"])

    def _returned(self, name: str) -> Iterator[str]:
        for function in (
            self._functions.get(name.removesuffix("()"), ()) if name.endswith("()") else ()
        ):
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and node.value:
                    yield from self.texts(node.value)

    def _given(self, parameter: str) -> Iterator[str]:
        """Yield the texts that callers pass for a parameter of the module's functions."""
        for name, function in self._taking.get(parameter, ()):
            places = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
            for call in self.calls(name):
                is_method = places[:1] in (["self"], ["cls"])
                named = dict(zip(places[is_method:], call.node.args, strict=False))
                named |= {one.arg: one.value for one in call.node.keywords if one.arg}
                yield from call.literals().texts(named.get(parameter))

    @cached_property
    def _functions(self) -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Functions and methods by name; `__init__` by the name of its class."""
        found: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        for node in self.bindings.nodes:
            if isinstance(node, FUNCTIONS):
                found.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                made = (
                    one
                    for one in node.body
                    if isinstance(one, FUNCTIONS) and one.name == "__init__"
                )
                found.setdefault(node.name, []).extend(made)
        return found

    @cached_property
    def _taking(self) -> dict[str, list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]]:
        """Functions and the names by which they are called, by parameter."""
        found: dict[str, list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]] = {}
        for name, functions in self._functions.items():
            for one in functions:
                for arg in (*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs):
                    found.setdefault(arg.arg, []).append((name, one))
        return found


def calls_in(node: ast.AST | None) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls in a statement, each with the last part of the called name."""
    for one in ast.walk(node) if node else ():
        if isinstance(one, ast.Call):
            name = getattr(one.func, "attr", getattr(one.func, "id", ""))
            if name:
                yield name, one


def _number(node: ast.expr | None) -> int | None:
    try:
        value = ast.literal_eval(node) if node else None
    except ValueError:
        return None
    return value if isinstance(value, int) else None


def _is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant)


@dataclass
class Beside:
    """Finds the files that reached definitions read.

    A folder may come from an imported module (`from pkg.paths import HERE`), and the name of a file
    from a caller (`load("vocab.txt")`).

    Attributes:
        found: the reached code.
    """

    found: Reach
    _sources: dict[str, CodeModule] = field(default_factory=dict)
    _opened: set[Path] = field(default_factory=set)  # packages named by `importlib.resources`

    def files(self) -> dict[Key, dict[str, str]]:
        """Return the files that definitions and statements read, with digests of their bytes.

        Returns:
            Digests by path relative to the folder of the definition's module. Only existing files count,
            below a package, or the folder if there is none, of the module or of a module it imports.
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
        """Labels of modules that may name a folder, by their own label and by labels of their importers."""
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
        """Return the labels of executed modules from which a module imports names."""
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
        """Return the folder of a module's outermost package, or of the module if it has no package."""
        outline = self.found.outline(label)
        package = outline.setting.package if outline.setting else ""
        folder = self.found.program.files[label].parent.resolve()
        return folder.parents[package.count(".") - 1] if "." in package else folder

    def _source(self, label: str) -> CodeModule:
        """Return the nodes and path literals of a module."""
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
        """Return a function that looks up a name in the modules that a module imports."""

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
        """Calls in all executed modules, by the last part of the called name."""
        found: dict[str, list[CallSite]] = {}
        for label, outline in self.found.run.items():
            for unit in outline.units:
                for name, call in calls_in(unit.node):
                    place = CallSite(call, partial(self._literals, label))
                    found.setdefault(name, []).append(place)
        return found


def _reading(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions that may be a path, except for paths that are written to."""
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
