"""Purity: whether an expression, definition or statement only creates or binds a value, by its names alone."""

import ast
import builtins
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardline.identity.names import DEFINITIONS, FUNCTIONS, Imported, Scope, chain_of, defaults_of

# Full names of decorators that do not register the function anywhere.
PURE_DECORATORS = {
    "abc.abstractmethod",
    "builtins.classmethod",
    "builtins.property",
    "builtins.staticmethod",
    "contextlib.asynccontextmanager",
    "contextlib.contextmanager",
    "dataclasses.dataclass",
    "functools.cache",
    "functools.cached_property",
    "functools.lru_cache",
    "functools.total_ordering",
    "functools.wraps",
    "torch.compile",
    "torch.enable_grad",
    "torch.inference_mode",
    "torch.jit.export",
    "torch.jit.ignore",
    "torch.jit.script",
    "torch.jit.unused",
    "torch.no_grad",
    "torch.autograd.function.once_differentiable",
    "typing.final",
    "typing.overload",
    "typing.override",
    "typing.runtime_checkable",
    "typing_extensions.final",
    "typing_extensions.overload",
    "typing_extensions.override",
}  # fmt: skip
_PARTS_OF_PROPERTY = {"setter", "getter", "deleter"}
# Calls that create a value from their arguments, and call none of them.
PURE_CALLS = {
    "argparse.Namespace", "collections.Counter", "collections.OrderedDict", "collections.defaultdict",
    "collections.deque", "collections.namedtuple", "contextvars.ContextVar", "dataclasses.field",
    "datetime.timedelta", "decimal.Decimal", "enum.auto", "fractions.Fraction", "functools.partial",
    "logging.getLogger", "numpy.array", "numpy.asarray", "operator.attrgetter", "operator.itemgetter",
    "os.path.abspath", "os.path.dirname", "os.path.join", "os.path.realpath",
    "pathlib.Path", "pathlib.PurePath", "re.compile", "threading.Lock", "threading.RLock", "threading.local",
    "torch.Size", "torch.device", "types.MappingProxyType", "types.SimpleNamespace",
    "typing.NamedTuple", "typing.NewType", "typing.ParamSpec", "typing.TypeVar", "typing.TypeVarTuple",
    "typing.TypedDict", "typing.cast",
    *(f"builtins.{name}" for name in ("abs", "bool", "bytes", "classmethod", "complex", "dict", "enumerate",
      "float", "frozenset", "int", "len", "list", "object", "property", "range", "reversed", "round", "set",
      "slice", "staticmethod", "str", "sum", "tuple", "zip")),
    *(f"math.{name}" for name in ("ceil", "exp", "floor", "log", "log2", "prod", "radians", "sqrt")),
}  # fmt: skip
# Calls that iterate over their arguments, and so may exhaust a generator that has a name.
_ITERATING = {
    "collections.Counter", "collections.OrderedDict", "collections.deque", "numpy.array", "numpy.asarray",
    *(f"builtins.{name}" for name in ("bytes", "dict", "enumerate", "frozenset", "list", "reversed", "set",
      "sum", "tuple", "zip")),
    "math.prod",
}  # fmt: skip
_ITERATORS = {"builtins.enumerate", "builtins.reversed", "builtins.zip"}
_PURE_METHODS = {"absolute", "format", "joinpath", "lower", "resolve", "split", "upper"}
# Installed packages whose base classes do not register subclasses, and whose import changes no other package.
INERT_PACKAGES = {
    "lightning", "matplotlib", "numpy", "pandas", "PIL", "pytorch_lightning", "safetensors", "scipy",
    "shardline", "shardline_io", "torch", "torchmetrics", "torchvision", "tqdm", "typing_extensions", "yaml",
}  # fmt: skip
# Classes of these packages that do register subclasses, by a metaclass.
_REGISTERING = {
    "pandas.tseries.holiday.AbstractHolidayCalendar", "torch._export.verifier.Verifier", "yaml.YAMLObject",
}  # fmt: skip
_INERT_METACLASSES = {"abc.ABCMeta", "enum.EnumMeta", "builtins.type"}
_SIMPLE = (ast.Constant, ast.Name, ast.Attribute, ast.Lambda, ast.Tuple, ast.List, ast.Set, ast.Dict,
           ast.Starred, ast.IfExp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.JoinedStr, ast.FormattedValue,
           ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)  # fmt: skip
_DIVISIONS = (ast.Div, ast.FloorDiv, ast.Mod)

Dotted = Callable[[ast.expr], str]  # the full name of an imported or built-in object; else empty


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Context of a module in which its statements are classified and written.

    Attributes:
        package: package of the module, to resolve relative imports.
        scope: scope of the module.
        dotted: function that returns full names of imported and built-in objects.
        positions: position of the first binding of each name, counted in statements.
        imported_by: modules that calls import, by node of the call.
        never_run: conditions that are false, such as `TYPE_CHECKING`.
        lazy: whether annotations are not evaluated (`from __future__ import annotations`).
    """

    package: str
    scope: Scope
    dotted: Dotted
    positions: Mapping[str, int]
    imported_by: Mapping[ast.AST, tuple[str, ...]]
    never_run: frozenset[str]
    lazy: bool


def dotted_name(
    node: ast.expr, symbols: Mapping[str, Sequence[int | Imported]], is_own: Callable[[str], bool]
) -> str:
    """Return the full name of an imported or built-in object; empty if it is not certain.

    Args:
        node: a name with attributes.
        symbols: bindings of the module's names.
        is_own: function that returns whether the project has a module of a name.
    """
    base, chain = chain_of(node)
    if not isinstance(base, ast.Name):
        return ""
    bound = symbols.get(base.id, [])
    if not bound:
        return ".".join(["builtins", base.id, *chain]) if is_built_in(base.id) else ""
    only = bound[0]
    if len(bound) > 1 or not isinstance(only, Imported) or is_own(only.module.partition(".")[0]):
        return ""
    return ".".join([only.module, *filter(None, [only.name]), *chain])


def has_effects(node: ast.stmt, position: int, setting: Setting) -> bool:
    """Return whether a statement does more than bind names.

    Args:
        node: statement at the top level of a module.
        position: position in the module, counted in statements.
        setting: context of the module.
    """
    return not is_plain(node, setting.dotted) or not _is_bound(node, position, setting)


def _is_bound(node: ast.stmt, position: int, setting: Setting) -> bool:
    """Return whether all names that a statement reads immediately exist, so that it does not fail."""
    parts = [part for one in _eager(node) for part in ast.walk(one)]
    inner = {one.arg for one in parts if isinstance(one, ast.arg)}
    targets = (one.target for one in parts if isinstance(one, ast.comprehension))
    bound = [part for target in targets for part in ast.walk(target)]
    bound += parts if isinstance(node, ast.ClassDef) else []
    inner |= {one.id for one in bound if isinstance(one, ast.Name) and _is_store(one)}
    inner |= {one.name for one in parts if isinstance(one, DEFINITIONS)}
    read = {one.id for one in parts if isinstance(one, ast.Name) and not _is_store(one)}
    known = setting.positions
    return all(
        known[name] < position if name in known else is_built_in(name) or name == "__file__"
        for name in read - inner
    )


def _eager(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield the parts of a statement that run immediately, not later in a function."""
    if isinstance(node, FUNCTIONS):
        yield from (*node.decorator_list, *defaults_of(node.args))
    elif isinstance(node, ast.ClassDef):
        yield from (*node.decorator_list, *node.bases, *node.keywords)
        for one in node.body:
            yield from _eager(one)
        yield from (ast.arg(one.name) for one in node.body if isinstance(one, DEFINITIONS))
    elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Lambda):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (*defaults_of(node.value.args), *targets)
    else:
        yield node


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def is_inert(dotted: str) -> bool:
    """Return whether a base class is from the standard library or a package that registers no subclasses."""
    top, _, rest = dotted.partition(".")
    if top == "builtins":
        return isinstance(getattr(builtins, rest, None), type)
    if dotted in _REGISTERING:
        return False
    looks_like_a_class = rest.rpartition(".")[2].lstrip("_")[:1].isupper()
    return looks_like_a_class and (top in INERT_PACKAGES or top in sys.stdlib_module_names)


def is_pure(node: ast.AST, dotted: Dotted) -> bool:
    """Return whether the evaluation of an expression changes nothing.

    Operators and attributes are assumed to have no effects, since code that gives them effects
    contains a call too.
    """
    match node:
        case ast.Call():
            return _is_pure_call(node, dotted)
        case ast.Lambda(args=args):
            return all(is_pure(one, dotted) for one in defaults_of(args))
        case ast.BinOp(op=op, right=ast.Constant(value=0)) if isinstance(op, _DIVISIONS):
            return False
        case ast.BinOp(left=left, right=right):
            return is_pure(left, dotted) and is_pure(right, dotted)
        case ast.Subscript(
            value=value, slice=index
        ):  # `tuple[int]`; any other object may lack the key
            return bool(dotted(value)) and is_pure(index, dotted)
        case ast.comprehension(iter=iterated, ifs=ifs):
            return not _has_name(iterated) and all(is_pure(one, dotted) for one in (iterated, *ifs))
        case ast.Starred(value=value):
            return not _has_name(value) and is_pure(value, dotted)
        case ast.expr_context() | ast.operator() | ast.unaryop() | ast.cmpop() | ast.boolop():
            return True
    return isinstance(node, _SIMPLE) and all(
        is_pure(child, dotted) for child in ast.iter_child_nodes(node)
    )


def _is_pure_call(node: ast.Call, dotted: Dotted) -> bool:
    given = [*node.args, *(one.value for one in node.keywords)]
    if not all(is_pure(one, dotted) for one in given):
        return False
    if (name := dotted(node.func)) in PURE_CALLS:
        return name not in _ITERATING or not any(map(_has_name, node.args))
    match node.func:
        case ast.Attribute(value=ast.Call() | ast.Constant() as value, attr=method):
            return method in _PURE_METHODS and is_pure(value, dotted)
    return False


def _has_name(node: ast.expr) -> bool:
    """Return whether an expression is a name, which may refer to a generator."""
    return isinstance(node, ast.Name | ast.Attribute)


def _is_iterator(node: ast.expr | None, dotted: Dotted) -> bool:
    """Return whether an expression creates an iterator, which can be used only once."""
    if isinstance(node, ast.Call):
        return dotted(node.func) in _ITERATORS
    return isinstance(node, ast.GeneratorExp)


def is_pure_decorator(node: ast.expr, dotted: Dotted) -> bool:
    """Return whether a decorator has no effect elsewhere: it is listed, or part of a property."""
    if isinstance(node, ast.Attribute) and node.attr in _PARTS_OF_PROPERTY:
        return isinstance(node.value, ast.Name)
    if isinstance(node, ast.Call):
        given = [*node.args, *(one.value for one in node.keywords)]
        return dotted(node.func) in PURE_DECORATORS and all(is_pure(one, dotted) for one in given)
    return dotted(node) in PURE_DECORATORS


def is_plain(node: ast.stmt, dotted: Dotted) -> bool:
    """Return whether a statement, function or class definition has no effect except binding names.

    Effects of a class through its bases are not checked here, see `resolution.Hooks`.
    """
    if isinstance(node, FUNCTIONS):
        return all(is_pure_decorator(one, dotted) for one in node.decorator_list) and all(
            is_pure(one, dotted) for one in defaults_of(node.args)
        )
    if not isinstance(node, ast.ClassDef):
        return _is_plain_statement(node, dotted)
    return (
        all(is_pure_decorator(one, dotted) for one in node.decorator_list)
        and all(is_pure(one, dotted) for one in node.bases)
        and all(_is_inert_keyword(one, dotted) for one in node.keywords)
        and all(is_plain(one, dotted) for one in node.body)
    )


def _is_plain_statement(node: ast.stmt, dotted: Dotted) -> bool:
    match node:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=targets, value=value):
            unpacked = any(isinstance(one, ast.Tuple | ast.List) for one in targets)
            if _is_iterator(value, dotted) or (unpacked and _has_name(value)):
                return False
            return all(map(_is_name, targets)) and is_pure(value, dotted)
        case ast.AnnAssign(target=ast.Name(), annotation=annotation, value=value):
            return all(
                is_pure(one, dotted) or (isinstance(one, ast.Subscript) and not _calls(one))
                for one in (annotation, value)
                if one
            )
    return False


def _calls(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Call | ast.NamedExpr | ast.Await) for one in ast.walk(node))


def _is_inert_keyword(node: ast.keyword, dotted: Dotted) -> bool:
    if node.arg == "metaclass":
        return dotted(node.value) in _INERT_METACLASSES
    return isinstance(node.value, ast.Constant)


def _is_name(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List):
        return all(map(_is_name, node.elts))
    return isinstance(node, ast.Name)


def is_built_in(name: str) -> bool:
    """Return whether a name is in `builtins`."""
    return name in vars(builtins)
