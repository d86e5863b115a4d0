"""What one Python file means: its definitions, imports and names, without comments and layout."""

import ast
import hashlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import resolve_name

from shardline.identity.canonical import DIGEST_LENGTH

_NEVER_RUN = {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
_IMPORTERS = {"import_module", "__import__"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, kw_only=True)
class Module:
    """One parsed module.

    Attributes:
        definitions: digest of each function and method, of each class's own
            statements, and of the module's remaining statements (`<module>`).
        imports: absolute dotted names that the module imports.
        names: names bound at the top level; holds `*` where more may be.
    """

    definitions: dict[str, str]
    imports: frozenset[str]
    names: frozenset[str]


def parse_module(content: bytes, name: str, *, is_package: bool) -> Module:
    """Parse a module's source.

    Args:
        name: the module's dotted name, from which its relative imports start.
        is_package: whether this is a package's `__init__`.

    Raises:
        SyntaxError, ValueError, RecursionError: it is not valid Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python says them again when it imports the module
        tree = ast.parse(content)
    package = name if is_package else name.rpartition(".")[0]
    return Module(
        definitions=_definitions(_Normalize().visit(tree)),
        imports=frozenset(filter(None, _imports(tree, package))),
        names=frozenset(_bound_names(tree.body)),
    )


def binary_module(content: bytes) -> Module:
    """Return a compiled module, which counts by its bytes."""
    definitions = {"<binary>": hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]}
    return Module(definitions=definitions, imports=frozenset(), names=frozenset("*"))


class _Normalize(ast.NodeTransformer):
    """Drop what has no effect: docstrings, and what a formatter may write in two ways."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [s for s in body if not _is_docstring(s)] or [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        node.kind = None  # u"text" is "text"
        return node

    def visit_Delete(self, node: ast.Delete) -> ast.AST:
        self.generic_visit(node)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Tuple):
            node.targets = node.targets[0].elts  # `del (a, b)` is `del a, b`
        return node


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _definitions(tree: ast.Module) -> dict[str, str]:
    texts: dict[str, list[str]] = {"<module>": []}
    for node in tree.body:
        if not isinstance(node, _DEFINITIONS):
            texts["<module>"].append(ast.dump(node))
            continue
        texts["<module>"].append(f"def {node.name}")  # keeps the order of definitions
        if isinstance(node, ast.ClassDef):
            for name, text in _class_definitions(node):
                texts.setdefault(name, []).append(text)
        else:
            texts.setdefault(node.name, []).append(ast.dump(node))
    return {name: _hash("\n".join(parts)) for name, parts in texts.items()}


def _class_definitions(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    head: list[str] = [ast.dump(part) for part in (*node.bases, *node.keywords)]
    head += [ast.dump(decorator) for decorator in node.decorator_list]
    for statement in node.body:
        if isinstance(statement, _DEFINITIONS):
            yield f"{node.name}.{statement.name}", ast.dump(statement)
            head.append(f"def {statement.name}")
        else:
            head.append(ast.dump(statement))
    yield node.name, "\n".join(head)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGEST_LENGTH]


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    for node in _walk_executed(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), package)
            yield base
            if base:
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Call):
            yield _absolute(_literal_import(node), package)


def _walk_executed(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without what stands under `if TYPE_CHECKING`, which never runs."""
    yield node
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and ast.unparse(node.test) in _NEVER_RUN:
        children = node.orelse
    for child in children:
        yield from _walk_executed(child)


def _literal_import(node: ast.Call) -> str:
    """Return the module that `import_module("name")` imports; empty for any other call."""
    function = getattr(node.func, "attr", getattr(node.func, "id", None))
    if function not in _IMPORTERS or not node.args:
        return ""
    name = getattr(node.args[0], "value", None)
    return name if isinstance(name, str) else ""


def _absolute(name: str, package: str) -> str:
    try:
        return resolve_name(name, package)
    except ImportError:
        return ""  # above the top-level package, which Python refuses as well


def _bound_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, _DEFINITIONS):
            yield "*" if node.name == "__getattr__" else node.name
        else:
            for child in ast.walk(node):
                yield from _names_of(child)


def _names_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, _DEFINITIONS):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
