"""The paths that an expression can name: literals, also through functions, callers and other modules."""

import ast
import os.path
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from shardline.identity.literals import RESOURCES, Literals, Texts
from shardline.identity.scopes import FUNCTIONS

_OF_TEXT = {
    "format", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rpartition", "rsplit",
    "rstrip", "split", "strip", "upper",
}  # fmt: skip

Elsewhere = Callable[[str], Iterator[str]]


class CallSite(NamedTuple):
    """A call, and what evaluates its arguments where it stands."""

    node: ast.Call
    literals: Callable[[], Literals]


class CodeModule(NamedTuple):
    """A module as a place of paths."""

    nodes: Sequence[ast.AST]
    literals: "PathLiterals"


@dataclass(frozen=True, kw_only=True)
class PathLiterals(Literals):
    """Evaluates more than `Literals` does, for paths of files, whose text decides what is taken.

    Attributes:
        elsewhere: the texts of a name in the modules that the module imports; of what a function
            returns for `name()`.
        calls: the program's calls of a name.
        packages: the folders of a package of the project.
    """

    elsewhere: Elsewhere
    calls: Callable[[str], Sequence[CallSite]]
    packages: Elsewhere
    _done: dict[str, Texts] = field(default_factory=dict)

    def named(self, name: str) -> Texts:
        """Return the texts that a name of the module can have; of `name()`, what it returns."""
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
        """Return whether the first argument is the module's package, by text or as it was imported."""
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
        """Yield what callers give for a parameter of a function of the module."""
        for name, function in self._taking.get(parameter, ()):
            places = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
            for call in self.calls(name):
                is_method = places[:1] in (["self"], ["cls"])
                named = dict(zip(places[is_method:], call.node.args, strict=False))
                named |= {one.arg: one.value for one in call.node.keywords if one.arg}
                yield from call.literals().texts(named.get(parameter))

    @cached_property
    def _functions(self) -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Functions and methods by name; `__init__` by that of its class."""
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
        """Functions, with the name that they are called by, by parameter."""
        found: dict[str, list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]] = {}
        for name, functions in self._functions.items():
            for one in functions:
                for arg in (*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs):
                    found.setdefault(arg.arg, []).append((name, one))
        return found


def calls_in(node: ast.AST | None) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of a statement, with the last part of the name that each calls."""
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
