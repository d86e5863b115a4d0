"""Constructs by which code reaches what it does not name, and what counts because of them."""

import ast

from shardline.identity.tokens import Note

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
_NAMES = {
    "builtins.getattr": ("module",),
    "operator.attrgetter": ("module",),
    "operator.methodcaller": ("module",),
    "builtins.setattr": ("patches",),
    "builtins.delattr": ("patches",),
    "builtins.vars": ("globals",),
    "builtins.globals": ("globals",),
    "builtins.locals": ("globals",),
    "builtins.eval": ("globals",),
    "builtins.exec": ("globals",),
    "builtins.compile": ("globals",),
    "builtins.dir": ("globals",),
    "builtins.__build_class__": ("program",),
    "inspect": ("globals", "annotations"),
    "inspect.getsource": ("text",),
    "inspect.getsourcelines": ("text",),
    "inspect.getsourcefile": ("text",),
    "inspect.findsource": ("text",),
    "inspect.getcomments": ("text",),
    "inspect.getdoc": ("docstrings",),
    "inspect.stack": ("program",),
    "inspect.currentframe": ("program",),
    "inspect.getmodule": ("program",),
    "sys._getframe": ("program",),
    "sys._current_frames": ("program",),
    "sys.modules": ("program",),
    "sys.settrace": ("program",),
    "sys.setprofile": ("program",),
    "gc": ("program",),
    "pickle": ("program",),
    "dill": ("program",),
    "cloudpickle": ("program",),
    "joblib.load": ("program",),
    "shelve": ("program",),
    "pkgutil.resolve_name": ("program",),
    "pydoc.locate": ("program",),
    "unittest.mock": ("program",),
    "runpy": ("main", "program"),
    "multiprocessing": ("main",),
    "torch.multiprocessing": ("main",),
    "concurrent.futures.ProcessPoolExecutor": ("main",),
    "linecache": ("text",),
    "tokenize": ("text",),
    "torch.jit.script": ("text", "annotations"),
    "torch.jit.script_method": ("text", "annotations"),
    "torch.jit.script_if_tracing": ("text", "annotations"),
    "torch.jit.ScriptModule": ("text", "annotations"),
    "torch.jit.interface": ("text", "annotations"),
    "torch.jit.CompilationUnit": ("text", "annotations"),
    "triton": ("text", "annotations"),
    "taichi": ("text", "annotations"),
    "tilelang": ("text", "annotations"),
    "numba": ("text", "annotations"),
    "cupy": ("text", "annotations"),
    "dis": ("text",),
    "typing.get_type_hints": ("annotations",),
    "typing_extensions.get_type_hints": ("annotations",),
    "functools.singledispatch": ("annotations",),
    "functools.singledispatchmethod": ("annotations",),
    "annotationlib": ("annotations",),
    "attrs": ("annotations",),
    "beartype": ("annotations",),
    "cattrs": ("annotations",),
    "fire": ("annotations", "docstrings"),
    "hydra": ("annotations", "program"),
    "jaxtyping": ("annotations",),
    "jsonargparse": ("annotations", "docstrings", "classes"),
    "lightning.pytorch.cli": ("annotations", "docstrings", "classes"),
    "pydantic": ("annotations",),
    "pytorch_lightning.cli": ("annotations", "docstrings", "classes"),
    "tap": ("annotations", "docstrings"),
    "torch.library": ("annotations",),
    "typeguard": ("annotations",),
    "typer": ("annotations", "docstrings"),
    "tyro": ("annotations", "docstrings"),
}
# Attributes, of whatever object.
_ATTRIBUTES = {
    "__subclasses__": ("classes",),
    "__globals__": ("program",),
    "__builtins__": ("program",),
    "f_globals": ("program",),
    "f_back": ("program",),
    "f_locals": ("program",),
    "f_builtins": ("program",),
    "gi_frame": ("program",),
    "tb_frame": ("program",),
    "__annotations__": ("annotations",),
    "__code__": ("text",),
    "__doc__": ("docstrings",),
    "__module__": ("places",),
    "getdoc": ("docstrings",),
    "getsource": ("text",),
    "getsourcelines": ("text",),
    "get_type_hints": ("annotations",),
    "__type_params__": ("annotations",),
    "__orig_bases__": ("annotations",),
}
# Functions that use one of these may read local variables by name.
READS_LOCALS = frozenset(
    {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "stack", "f_locals",
     "co_varnames", "getargvalues", "save_hyperparameters", "query", "evaluate", "__code__"}
)  # fmt: skip
_REASONS = {"builtins.getattr": "getattr with a computed name"}
SPECIAL = frozenset(_ATTRIBUTES)


def of_name(dotted: str, line: int) -> list[Note]:
    """Return what reaching an imported or built-in thing lets code reach further."""
    found: dict[str, None] = {}
    shown = _REASONS.get(dotted, dotted.removeprefix("builtins."))
    parts = dotted.split(".")
    for end in range(1, len(parts) + 1):
        found.update(dict.fromkeys(_NAMES.get(".".join(parts[:end]), ())))
    if dotted == "torch.jit":  # the module itself, handed on
        found.update(dict.fromkeys(_NAMES["torch.jit.script"]))
    return [Note(effect, shown, line) for effect in found]


def of_attribute(name: str, line: int) -> list[Note]:
    """Return what an attribute of any object lets code reach."""
    return [Note(effect, name, line) for effect in _ATTRIBUTES.get(name, ())]


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
        (isinstance(node, ast.Name) and node.id in READS_LOCALS)
        or (isinstance(node, ast.Attribute) and node.attr in READS_LOCALS)
        for node in nodes
    )
