"""Texts that an expression can have, as far as the source of its module determines them."""

import ast
import os.path
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, product

_MOST = 64  # combinations of one expression; nobody writes a longer list by hand
_SAME = {"str", "fspath", "as_posix", "list", "tuple", "sorted", "set", "values", "items"}
_ABSOLUTE = {"abspath", "realpath", "resolve", "absolute"}
_PATHS = {"Path", "PurePath", "PosixPath", "PurePosixPath"}
RESOURCES = {"files", "get_data", "open_binary", "open_text", "read_binary", "read_text"}
_WORKDIR = {"getcwd", "cwd"}

Texts = tuple[str, ...]


class Bindings:
    """Expressions that each name or attribute of a module is bound to, anywhere in the module.

    A loop variable is bound to the list of the loop, a parameter to its default.
    """

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        """Store all nodes of the module; they are searched at the first lookup."""
        self.nodes = nodes

    @cached_property
    def by_name(self) -> dict[str, list[ast.expr]]:
        """Expressions by name."""
        found: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            for target, value in _bound_by(node):
                name = getattr(target, "id", getattr(target, "attr", getattr(target, "arg", None)))
                if isinstance(name, str):
                    found.setdefault(name, []).append(value)
        return found


@dataclass(frozen=True, kw_only=True)
class Literals:
    """Evaluates literals, names bound to literals, joined texts and paths, but no other code.

    Attributes:
        bindings: bindings of the module's names.
        known: texts of `__name__`, `__package__` and `__file__`, and the working
            directory as `.`; a missing key is unknown.
    """

    bindings: "Bindings"
    known: Mapping[str, str]
    _names: dict[str, Texts] = field(default_factory=dict)

    def texts(self, node: ast.AST | None) -> Texts:
        """Return the texts that an expression can have, each once; empty if they are unknown.

        For a list or dict, these are the texts of its elements, keys and values.
        """
        return tuple(dict.fromkeys(self._texts(node)))

    def _texts(self, node: ast.AST | None) -> Iterator[str]:
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.Attribute(value=path, attr="parent"):
                yield from map(_parent, self.texts(path))
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield from self._bound(name)
            case ast.JoinedStr(values=parts):
                yield from map("".join, self._product(parts))
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                yield from self.texts(value)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                yield from map("".join, self._product([left, right]))
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                yield from self._joined([left, right])
            case ast.Subscript(
                value=ast.Attribute(value=path, attr="parents"), slice=ast.Constant(value=int(up))
            ):
                for text in self.texts(path):
                    for _ in range(up + 1):
                        text = _parent(text)
                    yield text
            case ast.Call():
                yield from self._called(node)
            case ast.Subscript(value=value) | ast.Starred(value=value):
                yield from self.texts(value)
            case ast.List() | ast.Tuple() | ast.Set() | ast.Dict() | ast.IfExp() | ast.BoolOp():
                for child in ast.iter_child_nodes(node):
                    yield from self.texts(child)

    def _bound(self, name: str) -> Texts:
        if name in self.known:
            return (self.known[name],)
        if name not in self._names:
            self._names[name] = ()  # until its values are evaluated, which may contain the name
            values = self.bindings.by_name.get(name, ())
            self._names[name] = tuple(
                dict.fromkeys(text for value in values for text in self.texts(value))
            )
        return self._names[name]

    def _called(self, node: ast.Call) -> Iterator[str]:
        name = getattr(node.func, "attr", getattr(node.func, "id", None))
        owner = getattr(node.func, "value", None)
        subject = node.args[0] if node.args else owner  # argument, or object of a method
        if name in _WORKDIR and "." in self.known:
            yield self.known["."]
        elif name == "dirname":
            yield from map(os.path.dirname, self.texts(subject))
        elif name in _ABSOLUTE and "." in self.known:
            for text in self.texts(subject):
                yield os.path.normpath(os.path.join(self.known["."], text))  # noqa: PTH118
        elif name in _PATHS or (name == "join" and not isinstance(owner, ast.Constant)):
            yield from self._joined(node.args)
        elif name == "joinpath" and owner:
            yield from self._joined([owner, *node.args])
        elif name == "get":
            yield from (text for part in (owner, *node.args[1:]) for text in self.texts(part))
        elif name in RESOURCES and self._is_own_package(node):
            folder = os.path.dirname(self.known["__file__"])  # noqa: PTH120
            rest = self._product(node.args[1:])
            yield from (os.path.join(folder, *parts) for parts in rest)  # noqa: PTH118
        elif name in _SAME:
            yield from self.texts(subject)

    def _is_own_package(self, node: ast.Call) -> bool:
        """Return whether the first argument of a call is the module's own package, as in `resources.files`."""
        if not node.args or not {"__file__", "__package__"} <= self.known.keys():
            return False
        first = node.args[0]
        is_name = isinstance(first, ast.Name) and first.id in ("__name__", "__package__")
        return is_name or self.known["__package__"] in self.texts(first)

    def _joined(self, parts: list[ast.expr]) -> Iterator[str]:
        for texts in self._product(parts):
            yield os.path.join(*texts) if texts else "."  # noqa: PTH118

    def _product(self, parts: list[ast.expr]) -> Iterator[tuple[str, ...]]:
        return islice(product(*map(self.texts, parts)), _MOST)


def _parent(text: str) -> str:
    return os.path.dirname(os.path.normpath(text))  # noqa: PTH120


def _bound_by(node: ast.AST) -> Iterator[tuple[ast.AST, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _unpacked(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
        case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield from ((child, value) for child in ast.walk(target))
        case ast.arguments():
            places = [*node.posonlyargs, *node.args]
            if node.defaults:
                yield from zip(places[-len(node.defaults) :], node.defaults, strict=True)
            named = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            yield from ((arg, default) for arg, default in named if default)


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield the bindings of `a, b = x, y`; if the right side is no such list, each name is bound to all of it."""
    if isinstance(target, ast.Tuple | ast.List):
        values = getattr(value, "elts", [])
        if len(values) != len(target.elts):
            values = [value] * len(target.elts)
        for part, element in zip(target.elts, values, strict=True):
            yield from _unpacked(part, element)
    else:
        yield target, value
