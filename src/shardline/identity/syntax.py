"""What one Python file means: its definitions, imports and names, without comments and layout."""

import ast
import hashlib
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardline.core.canonical import DIGEST_LENGTH
from shardline.identity.imports import Imports, imports_of
from shardline.identity.literals import Bindings, Literals
from shardline.identity.scopes import DEFINITIONS, is_text

_DOCUMENTED = (ast.Module, *DEFINITIONS)


@dataclass(frozen=True, kw_only=True)
class Module(Imports):
    """One parsed module.

    Attributes:
        digest: of its statements, without comments, docstrings and layout.
        names: names bound at the top level; holds `*` where more may be.
        exports: the texts in `__all__`.
        bindings: what the names in `sys_path` and `own_path` are bound to.
    """

    digest: str
    names: frozenset[str]
    exports: frozenset[str] = frozenset()
    bindings: Bindings = field(default_factory=lambda: Bindings(()))


def parse_quietly(content: bytes) -> ast.Module:
    """Return a source's tree; Python's warnings come when it imports the module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(content)


def parse_module(content: bytes, name: str, *, is_package: bool) -> Module:
    """Parse a module's source.

    Args:
        name: the module's dotted name, from which its relative imports start.
        is_package: whether this is a package's `__init__`.

    Raises:
        SyntaxError, ValueError, RecursionError: it is not valid Python.
    """
    tree = parse_quietly(content)
    package = name if is_package else name.rpartition(".")[0]
    nodes = list(ast.walk(tree))
    bindings = Bindings(nodes)
    literals = Literals(bindings=bindings, known={"__name__": name, "__package__": package})
    found = imports_of(tree, nodes, content, literals)
    keeps_docstrings = _DOCSTRING.search(content) is not None and _uses_docstrings(nodes)
    return Module(
        names=frozenset(_bound_names(tree.body)),
        exports=frozenset(literals.texts(ast.Name("__all__")) if b"__all__" in content else ()),
        **vars(found),
        bindings=bindings if found.sys_path or found.own_path else Bindings(()),
        digest=_hash(
            ast.dump(_Normalize(keeps_docstrings).visit(tree)).encode(errors="surrogatepass")
        ),
    )


def binary_module(content: bytes) -> Module:
    """Return a compiled module, which counts by its bytes."""
    return Module(digest=_hash(content), names=frozenset("*"))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]


_DOCSTRING = re.compile(rb"__doc__|getdoc")
_HELP = {"description", "epilog", "help", "usage"}  # what a command line shows


def _uses_docstrings(nodes: Sequence[ast.AST]) -> bool:
    """Return whether a module reads a docstring for more than the help of its command line."""
    help_texts = {
        node
        for keyword in nodes
        if isinstance(keyword, ast.keyword) and keyword.arg in _HELP
        for node in ast.walk(keyword.value)
    }
    return any(
        "__doc__"
        in (getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "value", ""))
        or "getdoc" in (getattr(node, "id", ""), getattr(node, "attr", ""))
        for node in nodes
        if node not in help_texts
    )


class _Normalize(ast.NodeTransformer):
    """Drop what has no effect: docstrings, and what a formatter may write in two ways."""

    def __init__(self, keeps_docstrings: bool) -> None:
        self._keeps_docstrings = keeps_docstrings

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = body[:1] if self._keeps_docstrings and isinstance(node, _DOCUMENTED) else []
            rest = [s for s in body[len(kept) :] if not is_text(s)]
            node.body = kept + rest or [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        node.kind = None  # u"text" is "text"
        return node

    def visit_Delete(self, node: ast.Delete) -> ast.AST:
        self.generic_visit(node)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Tuple):
            node.targets = node.targets[0].elts  # `del (a, b)` is `del a, b`
        return node


def _bound_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, DEFINITIONS):
            yield "*" if node.name == "__getattr__" else node.name
        else:
            for child in ast.walk(node):
                yield from _names_of(child)


def _names_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, DEFINITIONS):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
