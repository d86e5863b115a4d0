"""Which scope a name belongs to, to distinguish local names from a module's."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import resolve_name

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Imported:
    """What an import binds a name to: a module, or a name in it.

    Attributes:
        module: absolute dotted name.
        name: what is taken from it; None where the module itself is bound.
    """

    module: str
    name: str | None = None


@dataclass
class Scope:
    """One scope: a module, a class body, or a function (also a lambda or a comprehension).

    Attributes:
        kind: `module`, `class` or `function`.
        number: of its unit, in the order in which they open.
        kept: names whose spelling counts: parameters, nested definitions.
        local: other names that are bound here.
        imports: what import statements here bind.
        outside: names declared `global`.
        enclosing: names declared `nonlocal`.
    """

    kind: str
    parent: "Scope | None" = None
    number: int = 0
    kept: set[str] = field(default_factory=set)
    local: set[str] = field(default_factory=set)
    imports: dict[str, list[Imported]] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)
    enclosing: set[str] = field(default_factory=set)

    def binds(self, name: str) -> bool:
        """Return whether a name is bound in this very scope."""
        if name in self.outside or name in self.enclosing:
            return False
        return name in self.kept or name in self.local or name in self.imports

    def owner(self, name: str) -> "Scope":
        """Return the scope that a name belongs to, as the compiler finds it."""
        scope, own = self, True
        while scope.parent is not None:
            if name in scope.outside:
                break
            if (own or scope.kind != "class") and scope.binds(name):
                return scope
            scope, own = scope.parent, False
        while scope.parent is not None:
            scope = scope.parent
        return scope


def absolute(name: str, package: str) -> str:
    """Return the module of a name that may begin with dots; nothing if above the top, as Python refuses it."""
    try:
        return resolve_name(name, package)
    except (ImportError, ValueError):
        return ""


def source_of(node: ast.ImportFrom, package: str) -> str:
    """Return the module that `from ... import` takes names from; nothing if above the top."""
    return absolute("." * node.level + (node.module or ""), package)


def imported_modules(node: ast.Import | ast.ImportFrom, package: str) -> tuple[str, ...]:
    """Return the modules that an import statement may execute; of `from a import b` both `a` and `a.b`."""
    if isinstance(node, ast.Import):
        return tuple(alias.name for alias in node.names)
    module = source_of(node, package)
    below = (f"{module}.{alias.name}" for alias in node.names if alias.name != "*")
    return (module, *below) if module else ()


def imported_names(
    node: ast.Import | ast.ImportFrom, package: str
) -> Iterator[tuple[str, Imported]]:
    """Yield what an import statement binds, but for `*`."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            yield alias.asname or top, Imported(alias.name if alias.asname else top)
        return
    module = source_of(node, package)
    for alias in node.names:
        if alias.name != "*":
            yield alias.asname or alias.name, Imported(module, alias.name)


def function_scope(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, parent: Scope, package: str
) -> Scope:
    """Return the scope of a function's parameters and body."""
    args = node.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    named += [one for one in (args.vararg, args.kwarg) if one]
    scope = Scope("function", parent, kept={one.arg for one in named})
    collect(node.body if isinstance(node.body, list) else [node.body], scope, package)
    return scope


def comprehension_scope(generators: Sequence[ast.comprehension], parent: Scope) -> Scope:
    """Return the scope of a comprehension's own variables."""
    names = (
        part.id
        for one in generators
        for part in ast.walk(one.target)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    )
    return Scope("function", parent, local=set(names))


def collect(nodes: Iterable[ast.AST], scope: Scope, package: str) -> None:
    """Add to a scope all names that some statements or expressions bind in it."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        _bind(node, scope, package)
        pending.extend(_within(node))


def _bind(node: ast.AST, scope: Scope, package: str) -> None:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            scope.kept.add(name)
        case ast.Import() | ast.ImportFrom():
            for name, imported in imported_names(node, package):
                scope.imports.setdefault(name, []).append(imported)
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            scope.local.add(name)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            scope.local.add(name)
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            scope.local.add(name)
        case ast.Global(names=names):
            scope.outside.update(names)
        case ast.Nonlocal(names=names):
            scope.enclosing.update(names)


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that bind names in the scope that it stands in."""
    if isinstance(node, FUNCTIONS):
        yield from (*node.decorator_list, *defaults_of(node.args), *annotations_of(node))
    elif isinstance(node, ast.ClassDef):
        yield from (*node.decorator_list, *node.bases, *node.keywords)
    elif isinstance(node, ast.Lambda):
        yield from defaults_of(node.args)
    elif isinstance(node, COMPREHENSIONS):  # `:=` binds outside, the targets inside
        yield from (part for one in node.generators for part in (one.iter, *one.ifs))
        yield from elements_of(node)
    else:
        yield from ast.iter_child_nodes(node)


def elements_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions that a comprehension makes its values of."""
    for name in ("elt", "key", "value"):
        if part := getattr(node, name, None):
            yield part


def defaults_of(args: ast.arguments) -> Iterator[ast.expr]:
    """Yield the defaults of parameters, which are evaluated where the function is defined."""
    yield from args.defaults
    yield from filter(None, args.kw_defaults)


def annotations_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    """Yield the annotations of a function's parameters and of what it returns."""
    args = node.args
    for one in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
        if one and one.annotation:
            yield one.annotation
    if node.returns:
        yield node.returns


def chain_of(node: ast.expr) -> tuple[ast.expr, list[str]]:
    """Return what attributes are read of, and the attributes: `a` and `["b", "c"]` of `a.b.c`."""
    chain: list[str] = []
    while isinstance(node, ast.Attribute):
        chain.insert(0, node.attr)
        node = node.value
    return node, chain


def is_text(node: ast.stmt) -> bool:
    """Return whether a statement is a text alone, as a docstring."""
    return isinstance(node, ast.Expr) and (
        isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
