"""Imports of a module, and its changes to `sys.path` and `__path__`, from its syntax tree."""

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shardline.identity.literals import Bindings, Literals
from shardline.identity.names import absolute, imported_modules, source_of

_FLAG = "TYPE_CHECKING"
_TYPING = {"typing", "typing_extensions"}
_IMPORTERS = {"import_module", "__import__", "run_module"}
_EDITS_PATH = re.compile(rb"\bpath\b|\baddsitedir\b")
_ADDERS = {"insert", "append", "extend"}


@dataclass(frozen=True, kw_only=True)
class Module:
    """Imports of a module; all fields are empty for a compiled module.

    Attributes:
        imports: absolute dotted names; for `from a import b` both `a` and `a.b`.
        stars: modules from which the module imports `*`.
        exports: texts in `__all__`.
        sys_path: expressions for the folders that the module adds to `sys.path`.
        edits_sys_path: whether the module changes `sys.path` in any way.
        own_path: expressions for the folders that the module adds to its `__path__`; None if it
            does not change `__path__`.
        bindings: bindings of the names in `sys_path` and `own_path`.
    """

    imports: frozenset[str] = frozenset()
    stars: frozenset[str] = frozenset()
    exports: frozenset[str] = frozenset()
    sys_path: tuple[ast.expr, ...] = ()
    edits_sys_path: bool = False
    own_path: tuple[ast.expr, ...] | None = None
    bindings: Bindings = field(default_factory=lambda: Bindings(()))


def parse_quietly(content: bytes) -> ast.Module:
    """Return the syntax tree of a source without warnings, which Python prints when it imports the module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(content)


def parse_module(content: bytes, name: str, *, is_package: bool) -> Module:
    """Return the imports in the source of a module.

    Args:
        content: the source.
        name: dotted name of the module, to resolve its relative imports.
        is_package: whether the module is the `__init__` of a package.

    Raises:
        SyntaxError, ValueError, RecursionError: the source is not valid Python.
    """
    tree = parse_quietly(content)
    nodes = list(ast.walk(tree))
    package = name if is_package else name.rpartition(".")[0]
    bindings = Bindings(nodes)
    literals = Literals(bindings=bindings, known={"__name__": name, "__package__": package})
    never_run = never_run_conditions(nodes) if _FLAG.encode() in content else frozenset()
    finder = _Finder(list(_walk_executed(tree, never_run)) if never_run else nodes, literals)
    names = set(finder.imported())
    if any(importer.encode() in content for importer in _IMPORTERS):
        names |= {name for node in finder.nodes for name in finder.imported_by(node)}
    names_path = bool(_EDITS_PATH.search(content))
    sys_path = tuple(finder.added_to(finder.sys_paths)) if names_path else ()
    own_path = tuple(finder.added_to({"__path__"})) if b"__path__" in content else None
    return Module(
        imports=frozenset(names - {""}),
        stars=frozenset(finder.stars()) - {""},
        exports=frozenset(literals.texts(ast.Name("__all__")) if b"__all__" in content else ()),
        sys_path=sys_path,
        edits_sys_path=names_path and finder.edits_sys_path(),
        own_path=own_path,
        bindings=bindings if sys_path or own_path else Bindings(()),
    )


def static_importers(
    tree: ast.Module, text: bytes, name: str, package: str, never_run: frozenset[str]
) -> dict[ast.AST, tuple[str, ...]]:
    """Return the modules that calls of `import_module` and similar functions import, by node of the call."""
    if not any(importer.encode() in text for importer in _IMPORTERS):
        return {}
    known = {"__name__": name, "__package__": package}
    literals = Literals(bindings=Bindings(list(ast.walk(tree))), known=known)
    finder = _Finder(list(_walk_executed(tree, never_run)), literals)
    found = {node: tuple(sorted({*finder.imported_by(node)} - {""})) for node in finder.nodes}
    return {node: names for node, names in found.items() if names}


class _Finder:
    def __init__(self, nodes: Sequence[ast.AST], literals: Literals) -> None:
        self.nodes = nodes
        self._literals = literals
        self._package = literals.known["__package__"]

    def imported(self) -> Iterator[str]:
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from imported_modules(node, self._package)
        yield from self._loaded_at_use()

    def _loaded_at_use(self) -> Iterator[str]:
        """Yield the modules of `shardline` that it imports when code reads them as attributes."""
        imports = [node for node in self.nodes if isinstance(node, ast.Import)]
        aliases = [alias for node in imports for alias in node.names if alias.name == "shardline"]
        names = {alias.asname or alias.name for alias in aliases}
        for node in self.nodes if names else ():
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in names:
                    yield f"shardline.{attribute}"

    def stars(self) -> Iterator[str]:
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                yield source_of(node, self._package)

    def added_to(self, paths: set[str]) -> Iterator[ast.expr]:
        """Yield the expressions for folders that code adds to one of some lists."""
        for node in self.nodes:
            match node:
                case ast.Call(func=ast.Attribute(value=owner, attr=method), args=args):
                    added = method in _ADDERS and ast.unparse(owner) in paths
                    if added or (method == "addsitedir" and paths is self.sys_paths):
                        yield from args[method == "insert" :]
                case (
                    ast.Assign(targets=[target], value=value)
                    | ast.AugAssign(target=target, value=value)
                ):
                    place = target.value if isinstance(target, ast.Subscript) else target
                    if ast.unparse(place) in paths:
                        yield from _summands(value)

    def edits_sys_path(self) -> bool:
        """Return whether a statement assigns to `sys.path` or calls one of its methods."""
        for node in self.nodes:
            match node:
                case ast.Call(func=ast.Attribute(attr="addsitedir")):
                    return True
                case ast.Call(func=ast.Attribute(value=place)):
                    places = [place]
                case ast.Assign(targets=places) | ast.Delete(targets=places):
                    pass
                case ast.AugAssign(target=place):
                    places = [place]
                case _:
                    continue
            parts = (part for place in places for part in ast.walk(place))
            if any(isinstance(p, ast.expr) and ast.unparse(p) in self.sys_paths for p in parts):
                return True
        return False

    @cached_property
    def sys_paths(self) -> set[str]:
        """Names of `sys.path` in the module."""
        found = {"sys.path"}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found |= {f"{a.asname}.path" for a in node.names if a.name == "sys" and a.asname}
            elif isinstance(node, ast.ImportFrom) and node.module == "sys":
                found |= {a.asname or a.name for a in node.names if a.name == "path"}
        bound = self._literals.bindings.by_name.items()
        attributes = ((n, v) for n, values in bound for v in values if isinstance(v, ast.Attribute))
        return found | {name for name, value in attributes if ast.unparse(value) in found}

    def imported_by(self, node: ast.AST) -> Iterator[str]:
        """Yield the modules that a call of `import_module` or a similar function imports."""
        if not isinstance(node, ast.Call):
            return
        importer = self._importer(node.func)
        if importer == "__import__":
            yield from self._imported_by_builtin(node)
        elif importer:
            texts = self._texts(node, 0, "mod_name" if importer == "run_module" else "name")
            packages = self._texts(node, 1, "package") if importer == "import_module" else ()
            for name in texts:
                yield from (absolute(name, p) for p in packages or (self._package,))
                if importer == "run_module":
                    yield f"{name}.__main__"
        elif any(
            map(self._importer, node.args)
        ):  # passed as an argument, such as to `map` or `partial`
            for argument in node.args:
                texts = self._literals.texts(argument)
                yield from (absolute(name, self._package) for name in texts)

    def _imported_by_builtin(self, node: ast.Call) -> Iterator[str]:
        """Yield the modules that `__import__(name, globals, locals, fromlist, level)` imports."""
        level = _argument(node, 4, "level")
        dots = level.value if isinstance(level, ast.Constant) else 0
        for name in self._texts(node, 0, "name"):
            base = absolute("." * dots + name if isinstance(dots, int) else name, self._package)
            yield base
            yield from (f"{base}.{part}" for part in self._texts(node, 3, "fromlist") if base)

    def _texts(self, node: ast.Call, place: int, keyword: str) -> tuple[str, ...]:
        return self._literals.texts(_argument(node, place, keyword))

    def _importer(self, node: ast.expr, within: frozenset[str] = frozenset()) -> str:
        """Return the importing function that an expression refers to, under any name; else an empty text."""
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
                pass
            case ast.Name(id=name) | ast.Attribute(attr=name):
                pass
            case _:
                return ""
        name = self._renamed.get(name, name)
        if name in _IMPORTERS:
            return name if name != "run_module" or self._has_runpy else ""
        if name in within:
            return ""
        bound = self._literals.bindings.by_name.get(name, ())
        return next(filter(None, (self._importer(v, within | {name}) for v in bound)), "")

    @cached_property
    def _renamed(self) -> dict[str, str]:
        """Importing functions that `from a import b as c` renames, by new name."""
        return {
            alias.asname: alias.name
            for node in self.nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.asname and alias.name in _IMPORTERS
        }

    @cached_property
    def _has_runpy(self) -> bool:
        names = (n for n in self.nodes if isinstance(n, ast.Import | ast.ImportFrom))
        return any("runpy" in (getattr(n, "module", ""), *(a.name for a in n.names)) for n in names)


def _argument(node: ast.Call, place: int, keyword: str) -> ast.expr | None:
    named = (given.value for given in node.keywords if given.arg == keyword)
    return node.args[place] if len(node.args) > place else next(named, None)


def _summands(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the summands of `[a, b] + c`, each of which may contain folders."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _summands(node.left)
        yield from _summands(node.right)
    else:
        yield node


def _walk_executed(node: ast.AST, never_run: frozenset[str]) -> Iterator[ast.AST]:
    """Walk a tree without the bodies of `if TYPE_CHECKING`, which never run."""
    yield node
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and ast.unparse(node.test) in never_run:
        children = node.orelse
    for child in children:
        yield from _walk_executed(child, never_run)


def never_run_conditions(nodes: Sequence[ast.AST]) -> frozenset[str]:
    """Return the conditions that are false: `TYPE_CHECKING`, unless it may not be the one of `typing`."""
    stars = bound = False
    harmless: set[ast.AST] = set()  # nodes that bind the flag to the one of typing, or to False
    for node in nodes:
        match node:
            case (
                ast.Assign(targets=[target], value=ast.Constant(value=False))
                | ast.AnnAssign(target=ast.Name() as target, value=ast.Constant(value=False))
            ):
                harmless.add(target)
                bound |= isinstance(target, ast.Name) and target.id == _FLAG
            case ast.ImportFrom(module=module, level=level) if module in _TYPING and not level:
                harmless |= {alias for alias in node.names if not alias.asname}
                bound |= any(alias.name in (_FLAG, "*") for alias in node.names)
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                stars = True
            case ast.Import():
                harmless |= {a for a in node.names if a.asname is None or a.name in _TYPING}
    if stars and not bound:
        return frozenset()
    other = {name for node in nodes if node not in harmless for name in _rebound(node)}
    if _FLAG in other:
        return frozenset()
    return frozenset({_FLAG} if "typing" in other else {_FLAG, f"typing.{_FLAG}"})


def _rebound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node may bind: all texts in its fields, except for reads."""
    if isinstance(node, ast.keyword) or isinstance(getattr(node, "ctx", None), ast.Load):
        return
    if isinstance(node, ast.ImportFrom):  # its aliases are separate nodes
        return
    if isinstance(node, ast.alias):
        yield node.asname or node.name
        return
    for _, value in ast.iter_fields(node):
        yield from (v for v in (value if isinstance(value, list) else [value]) if type(v) is str)
