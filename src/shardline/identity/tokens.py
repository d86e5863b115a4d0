"""What a definition is written as: texts, references that are resolved later, and what lets code reach more."""

import ast
from dataclasses import dataclass, field

from shardline.identity.scopes import Imported


@dataclass(frozen=True)
class Ref:
    """A name of the module, with the attributes behind it.

    Attributes:
        chain: `("helpers", "f")` of `helpers.f`.
        line: where it stands.
        use: nothing where it is read, else `Store` or `Del`.
        imported: what an import inside the function binds the first name to; none
            where that is a name of the module.
        deferred: whether this stands in the body of a function, which runs later.
    """

    chain: tuple[str, ...]
    line: int = 0
    use: str = ""
    imported: tuple[Imported, ...] = ()
    deferred: bool = False


@dataclass(frozen=True)
class ImportRun:
    """An import that stands where it is executed.

    Attributes:
        modules: absolute dotted names; of `from a import b` both `a` and `a.b`.
        line: where it stands.
        escapes: whether code gets the module itself, as from `import_module`.
    """

    modules: tuple[str, ...]
    line: int = 0
    escapes: bool = False


@dataclass(frozen=True)
class Note:
    """Something that lets code reach more than it names.

    Attributes:
        effect: what counts because of it, see `_BY_EFFECTS`.
        text: as shown to users.
        line: where it stands.
    """

    effect: str
    text: str
    line: int


Token = str | Ref | ImportRun | Note


@dataclass
class Written:
    """A definition, written.

    Attributes:
        tokens: all of it, in order.
        parts: of a class, where the tokens of each method begin and end, by its name.
    """

    tokens: list[Token] = field(default_factory=list)
    parts: dict[str, list[tuple[int, int]]] = field(default_factory=dict)


# What a construct does to what counts:
#   module       all definitions of the module that it stands in
#   globals      the same, in their order, and the modules that its names are bound to
#   program      all of that in every imported module
#   classes      all classes of every imported module, in their order
#   annotations  annotations of functions
#   docstrings   docstrings
#   text         the source text of every reached definition
#   places       names of modules
#   patches      the order of all that is executed, since any name may be bound again
#   main         what stands under `if __name__ == "__main__"`

# Full names, each with all that lies below it.
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
# Attributes, of whatever object.
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
    """Return what reaching an imported or built-in thing lets code reach further."""
    found: dict[str, None] = {}
    shown = _REASONS.get(dotted, dotted.removeprefix("builtins."))
    parts = dotted.split(".")
    for end in range(1, len(parts) + 1):
        found.update(dict.fromkeys(_NAMES.get(".".join(parts[:end]), ())))
    if dotted == "torch.jit":  # the module itself, handed on
        found.update(dict.fromkeys(_NAMES["torch.jit.script"]))
    return [Note(effect, shown, line) for effect in found]


def notes_of_attribute(name: str, line: int) -> list[Note]:
    """Return what an attribute of any object lets code reach."""
    return [Note(_ATTRIBUTES[name], name, line)] if name in _ATTRIBUTES else []


def loads_code(node: ast.Call) -> bool:
    """Return whether a call loads pickled objects, whose classes it finds by name."""
    return any(
        one.arg == "weights_only"
        and not (isinstance(one.value, ast.Constant) and one.value.value is True)
        for one in node.keywords
    )


def reads_locals(nodes: list[ast.AST]) -> bool:
    """Return whether code names something that sees local variables by their names."""
    return any(
        (isinstance(node, ast.Name) and node.id in _READS_LOCALS)
        or (isinstance(node, ast.Attribute) and node.attr in _READS_LOCALS)
        for node in nodes
    )
