"""Names of a module: their scopes, references to them, and names that let code reach more."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import resolve_name

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Imported:
    """Binding of an import: a module, or a name in a module.

    Attributes:
        module: absolute dotted name of the module.
        name: name in the module; None if the module itself is bound.
    """

    module: str
    name: str | None = None


@dataclass
class Scope:
    """Scope of names: a module, a class body, or a function (also a lambda or a comprehension).

    Attributes:
        kind: `module`, `class` or `function`.
        parent: surrounding scope; None for a module.
        number: number of the scope within its unit, in the order in which scopes open.
        kept: names whose spelling counts: parameters, nested definitions.
        local: other names bound in this scope.
        imports: bindings of import statements in this scope.
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
        """Return whether a name is bound in this scope itself."""
        if name in self.outside or name in self.enclosing:
            return False
        return name in self.kept or name in self.local or name in self.imports

    def owner(self, name: str) -> "Scope":
        """Return the scope that a name belongs to, by Python's rules."""
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
    """Return the absolute name of a module whose name may begin with dots; empty if above the top-level package."""
    try:
        return resolve_name(name, package)
    except (ImportError, ValueError):
        return ""


def source_of(node: ast.ImportFrom, package: str) -> str:
    """Return the module in `from ... import`; empty if above the top-level package."""
    return absolute("." * node.level + (node.module or ""), package)


def imported_modules(node: ast.Import | ast.ImportFrom, package: str) -> tuple[str, ...]:
    """Return the modules that an import statement may execute; for `from a import b` both `a` and `a.b`."""
    if isinstance(node, ast.Import):
        return tuple(alias.name for alias in node.names)
    module = source_of(node, package)
    below = (f"{module}.{alias.name}" for alias in node.names if alias.name != "*")
    return (module, *below) if module else ()


def imported_names(
    node: ast.Import | ast.ImportFrom, package: str
) -> Iterator[tuple[str, Imported]]:
    """Yield the names that an import statement binds, with their bindings, except for `*`."""
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
    """Add all names that statements or expressions bind to their scope."""
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
    """Yield the parts of a node that bind names in the scope around the node."""
    if isinstance(node, FUNCTIONS):
        yield from (*node.decorator_list, *defaults_of(node.args), *annotations_of(node))
    elif isinstance(node, ast.ClassDef):
        yield from (*node.decorator_list, *node.bases, *node.keywords)
    elif isinstance(node, ast.Lambda):
        yield from defaults_of(node.args)
    elif isinstance(
        node, COMPREHENSIONS
    ):  # `:=` binds outside of a comprehension, its targets inside
        yield from (part for one in node.generators for part in (one.iter, *one.ifs))
        yield from elements_of(node)
    else:
        yield from ast.iter_child_nodes(node)


def elements_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions for the elements of a comprehension."""
    for name in ("elt", "key", "value"):
        if part := getattr(node, name, None):
            yield part


def defaults_of(args: ast.arguments) -> Iterator[ast.expr]:
    """Yield the defaults of parameters, which are evaluated where the function is defined."""
    yield from args.defaults
    yield from filter(None, args.kw_defaults)


def annotations_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    """Yield the annotations of a function's parameters and return value."""
    args = node.args
    for one in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
        if one and one.annotation:
            yield one.annotation
    if node.returns:
        yield node.returns


def chain_of(node: ast.expr) -> tuple[ast.expr, list[str]]:
    """Return the base and the attributes of an expression: `a` and `["b", "c"]` for `a.b.c`."""
    chain: list[str] = []
    while isinstance(node, ast.Attribute):
        chain.insert(0, node.attr)
        node = node.value
    return node, chain


def is_text(node: ast.stmt) -> bool:
    """Return whether a statement is only a string, such as a docstring."""
    return isinstance(node, ast.Expr) and (
        isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )


@dataclass(frozen=True)
class Ref:
    """Reference to a name of the module, with attributes.

    Attributes:
        chain: `("helpers", "f")` for `helpers.f`.
        line: line number of the reference.
        use: empty for a read, else `Store`, `Del` or `Import`.
        imported: bindings of the first name by imports inside the function; empty for a name of
            the module.
        deferred: whether the reference is in the body of a function, which runs later.
    """

    chain: tuple[str, ...]
    line: int = 0
    use: str = ""
    imported: tuple[Imported, ...] = ()
    deferred: bool = False


@dataclass(frozen=True)
class ImportRun:
    """Import at the place where it is executed.

    Attributes:
        modules: absolute dotted names; for `from a import b` both `a` and `a.b`.
        line: line number of the import.
        escapes: whether code gets the module itself, as from `import_module`.
    """

    modules: tuple[str, ...]
    line: int = 0
    escapes: bool = False


@dataclass(frozen=True)
class Note:
    """Construct that lets code reach more than it names.

    Attributes:
        effect: code that counts because of the construct, see `_BY_EFFECTS`.
        text: text for users.
        line: line number of the construct.
    """

    effect: str
    text: str
    line: int


Token = str | Ref | ImportRun | Note


@dataclass
class Written:
    """Definition as a list of tokens.

    Attributes:
        tokens: all tokens, in order.
        parts: start and end of the tokens of each method of a class, by its name.
    """

    tokens: list[Token] = field(default_factory=list)
    parts: dict[str, list[tuple[int, int]]] = field(default_factory=dict)


# Effects of a construct, with the code that counts because of it:
#   module       all definitions of its module
#   globals      the same, in their order, and the modules that its names are bound to
#   program      the same in every imported module
#   classes      all classes of every imported module, in their order
#   annotations  annotations of functions
#   docstrings   docstrings
#   text         the source text of every reached definition
#   places       names of modules
#   patches      the order of all executed code, since any name may be bound again
#   main         code under `if __name__ == "__main__"`

# Full names; each includes all names below it.
_BY_EFFECTS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("module",): ("builtins.getattr", "operator.attrgetter", "operator.methodcaller"),
    ("patches",): ("builtins.setattr", "builtins.delattr"),
    ("globals",): (
        "builtins.vars", "builtins.globals", "builtins.locals", "builtins.eval", "builtins.exec",
        "builtins.compile", "builtins.dir",
    ),
    ("program",): (
        "builtins.__build_class__", "inspect.stack", "inspect.currentframe", "inspect.getmodule",
        "sys._getframe", "sys._current_frames", "sys.modules", "sys.settrace", "sys.setprofile",
        "gc", "pickle", "dill", "cloudpickle", "joblib.load", "shelve", "pkgutil.resolve_name",
        "pydoc.locate", "unittest.mock",
    ),
    ("globals", "annotations"): ("inspect",),
    ("text",): (
        "inspect.getsource", "inspect.getsourcelines", "inspect.getsourcefile",
        "inspect.findsource", "inspect.getcomments", "linecache", "tokenize", "dis",
    ),
    ("docstrings",): ("inspect.getdoc",),
    ("main", "program"): ("runpy",),
    ("main",): (
        "multiprocessing", "torch.multiprocessing", "concurrent.futures.ProcessPoolExecutor",
    ),
    ("text", "annotations"): (
        "torch.jit.script", "torch.jit.script_method", "torch.jit.script_if_tracing",
        "torch.jit.ScriptModule", "torch.jit.interface", "torch.jit.CompilationUnit", "triton",
        "taichi", "tilelang", "numba", "cupy",
    ),
    ("annotations",): (
        "typing.get_type_hints", "typing_extensions.get_type_hints", "functools.singledispatch",
        "functools.singledispatchmethod", "annotationlib", "attrs", "beartype", "cattrs",
        "jaxtyping", "pydantic", "torch.library", "typeguard",
    ),
    ("annotations", "docstrings"): ("fire", "tap", "typer", "tyro"),
    ("annotations", "program"): ("hydra",),
    ("annotations", "docstrings", "classes"): (
        "jsonargparse", "lightning.pytorch.cli", "pytorch_lightning.cli",
    ),
}  # fmt: skip
_NAMES = {name: effects for effects, names in _BY_EFFECTS.items() for name in names}
# Attributes of any object.
_ATTRIBUTES = {
    **dict.fromkeys(
        ("__globals__", "__builtins__", "f_globals", "f_back", "f_locals", "f_builtins", "gi_frame",
         "tb_frame"),
        "program",
    ),
    **dict.fromkeys(
        ("__annotations__", "get_type_hints", "__type_params__", "__orig_bases__"), "annotations"
    ),
    **dict.fromkeys(("__code__", "getsource", "getsourcelines"), "text"),
    **dict.fromkeys(("__doc__", "getdoc"), "docstrings"),
    "__subclasses__": "classes",
    "__module__": "places",
}  # fmt: skip
# Functions that use one of these may read local variables by name.
_READS_LOCALS = frozenset(
    {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "stack", "f_locals",
     "co_varnames", "getargvalues", "save_hyperparameters", "query", "evaluate", "__code__"}
)  # fmt: skip
_REASONS = {"builtins.getattr": "getattr with a computed name"}
SPECIAL = frozenset(_ATTRIBUTES)


def notes_of_name(dotted: str, line: int) -> list[Note]:
    """Return the notes of an imported or built-in name."""
    found: dict[str, None] = {}
    shown = _REASONS.get(dotted, dotted.removeprefix("builtins."))
    parts = dotted.split(".")
    for end in range(1, len(parts) + 1):
        found.update(dict.fromkeys(_NAMES.get(".".join(parts[:end]), ())))
    if dotted == "torch.jit":  # the module itself, passed on
        found.update(dict.fromkeys(_NAMES["torch.jit.script"]))
    return [Note(effect, shown, line) for effect in found]


def notes_of_attribute(name: str, line: int) -> list[Note]:
    """Return the notes of an attribute, of any object."""
    return [Note(_ATTRIBUTES[name], name, line)] if name in _ATTRIBUTES else []


def loads_code(node: ast.Call) -> bool:
    """Return whether a call loads pickled objects, whose classes are found by name."""
    return any(
        one.arg == "weights_only"
        and not (isinstance(one.value, ast.Constant) and one.value.value is True)
        for one in node.keywords
    )


def reads_locals(nodes: list[ast.AST]) -> bool:
    """Return whether code uses something that reads local variables by name."""
    return any(
        (isinstance(node, ast.Name) and node.id in _READS_LOCALS)
        or (isinstance(node, ast.Attribute) and node.attr in _READS_LOCALS)
        for node in nodes
    )
