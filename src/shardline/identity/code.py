"""Digest of the code that a stage runs: the import closure, parsed, without comments.

Modules are found and parsed, never imported, so this is cheap enough for the
Snakefile and safe for code whose import is slow or has side effects. Imports
made from computed names cannot be seen; docs/identity.md says what to do then.
"""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardline.errors import ConfigError
from shardline.identity.canonical import DIGEST_LENGTH

_PACKAGE_DIR = Path(__file__).parents[1]
_NEVER_RUN = {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def import_roots(workdir: Path) -> tuple[Path, ...]:
    """Return the folders that hold a project's own code, in import order.

    These are the working directory and every import path entry that is neither
    the standard library nor a folder of installed packages: what is installed
    counts through the environment digest instead.
    """
    installed = {Path(sysconfig.get_path(key)).resolve() for key in ("purelib", "platlib")}
    installed |= {Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib")}
    roots = [workdir.resolve()]
    for entry in sys.path:
        path = Path(entry or ".").resolve()
        if path.is_dir() and path.name != "lib-dynload" and path not in {*installed, *roots}:
            roots.append(path)
    return tuple(roots)


@dataclass(frozen=True, kw_only=True)
class Module:
    """One parsed module.

    Attributes:
        definitions: digest of each function and method, of each class's own
            statements, and of the module's remaining statements (`<module>`).
        imports: absolute dotted names that the module imports.
        names: names bound at the top level; holds `*` after a star import.
    """

    definitions: dict[str, str]
    imports: frozenset[str]
    names: frozenset[str]


@dataclass
class CodeIndex:
    """Finds and digests modules below the import roots, each parsed once.

    Attributes:
        roots: folders that are searched for a module, in import order.
    """

    roots: Sequence[Path]
    _files: dict[str, Path | None] = field(default_factory=dict)
    _modules: dict[str, Module] = field(default_factory=dict)
    _closures: dict[tuple[str, ...], tuple[dict[str, dict[str, str]], frozenset[str]]] = field(
        default_factory=dict
    )

    def find(self, name: str) -> Path | None:
        """Return the file of a dotted module name, or None if it is not project code."""
        if name not in self._files:
            self._files[name] = self._find(name)
        return self._files[name]

    def _find(self, name: str) -> Path | None:
        top, *rest = name.split(".")
        if top == "shardline":  # wherever it is installed, it is ours and counts by file
            return _module_file(_PACKAGE_DIR.parent, name)
        if top in sys.stdlib_module_names:
            return None
        return next((f for root in self.roots if (f := _module_file(root, name))), None)

    def module(self, name: str) -> Module:
        """Return a project module, parsed.

        Raises:
            ConfigError: the file is not valid Python; the message names file and line.
        """
        if name not in self._modules:
            path = self.find(name)
            assert path is not None, f"{name} is not project code"
            try:
                tree = ast.parse(path.read_bytes(), filename=str(path))
            except (SyntaxError, ValueError) as error:
                line = getattr(error, "lineno", None) or 1
                raise ConfigError(
                    f"{path}, line {line}: not valid Python ({getattr(error, 'msg', error)}); "
                    "mend it before the pipeline can tell what it would change"
                ) from None
            self._modules[name] = _parse(tree, name, is_package=path.name == "__init__.py")
        return self._modules[name]

    def closure(self, *entries: str) -> tuple[dict[str, dict[str, str]], frozenset[str]]:
        """Digest every project module that the entry modules import, directly or not.

        Args:
            entries: dotted module names; those that are not project code count
                as third-party imports.

        Returns:
            The definitions' digests by module, and the top-level names of the
            third-party packages that these modules import.
        """
        key = tuple(sorted(set(entries)))
        if key not in self._closures:
            self._closures[key] = self._closure(key)
        return self._closures[key]

    def _closure(self, entries: tuple[str, ...]) -> tuple[dict[str, dict[str, str]], frozenset[str]]:
        code: dict[str, dict[str, str]] = {}
        third_party: set[str] = set()
        pending = list(entries)
        while pending:
            name = pending.pop()
            if name in code:
                continue
            if self.find(name) is None:
                # `from package import name` is looked up as package.name, which may be no module
                if not self._is_inside_project(name):
                    third_party.add(name.partition(".")[0])
                continue
            module = self.module(name)
            code[name] = module.definitions
            pending.extend(module.imports)
            pending.extend(p for p in _parents(name) if self.find(p))
        return code, frozenset(third_party - set(sys.stdlib_module_names))

    def _is_inside_project(self, name: str) -> bool:
        return any(self.find(parent) for parent in _parents(name))


def _module_file(root: Path, name: str) -> Path | None:
    base = root.joinpath(*name.split("."))
    for candidate in (base / "__init__.py", base.with_name(base.name + ".py")):
        if candidate.is_file():
            return candidate
    return None


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _parse(tree: ast.Module, name: str, *, is_package: bool) -> Module:
    package = name if is_package else name.rpartition(".")[0]
    return Module(
        definitions=_definitions(_DropDocstrings().visit(tree)),
        imports=frozenset(_imports(tree, package)),
        names=frozenset(_bound_names(tree.body)),
    )


class _DropDocstrings(ast.NodeTransformer):
    """Drop every string that stands alone as a statement: it has no effect."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [s for s in body if not _is_docstring(s)] or [ast.Pass()]  # type: ignore[attr-defined]
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
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    for node in _walk_executed(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _walk_executed(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without what stands under `if TYPE_CHECKING`, which never runs."""
    yield node
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and ast.unparse(node.test) in _NEVER_RUN:
        children = node.orelse
    for child in children:
        yield from _walk_executed(child)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base


def _bound_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, _DEFINITIONS):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        else:
            for child in ast.walk(node):
                if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                    yield child.id
                elif isinstance(child, _DEFINITIONS):
                    yield child.name
                elif isinstance(child, ast.Import | ast.ImportFrom):
                    yield from (a.asname or a.name.partition(".")[0] for a in child.names)
