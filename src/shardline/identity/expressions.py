"""Writer of expressions and imports: names become references, local variables become numbers."""

import ast
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardline.identity.names import (
    SPECIAL,
    Imported,
    ImportRun,
    Note,
    Ref,
    Scope,
    Token,
    Written,
    chain_of,
    comprehension_scope,
    elements_of,
    function_scope,
    imported_modules,
    imported_names,
    is_text,
    loads_code,
    notes_of_attribute,
)
from shardline.identity.purity import Setting, is_built_in

_SKIPPED = {"ctx", "type_comment", "kind"}
_HELP = {"description", "epilog", "help", "usage"}  # arguments of a command-line parser
_QUIET = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.BinOp, ast.BitOr,
          ast.Load, ast.Starred)  # fmt: skip
_BODIES = {"body", "orelse", "finalbody"}


@dataclass
class Expressions:
    """Writer of expressions, the base class of the writer of definitions.

    Attributes:
        setting: context of the module.
        options: `annotations` and `docstrings`, if they count.
        position: position of the statement in its module.
    """

    setting: Setting
    options: frozenset[str]
    position: int
    _out: Written = field(default_factory=Written)
    _opened: int = 0
    _numbers: dict[tuple[int, str], int] = field(default_factory=dict)
    _spoken: frozenset[str] | None = frozenset()  # local names that count; None for all
    _annotates: bool = False
    _deferred: bool = False

    # --- the general case -------------------------------------------------------------------

    def _emit(self, *tokens: Token) -> None:
        self._out.tokens.extend(tokens)

    def _visit(self, node: ast.AST, scope: Scope) -> None:
        method = getattr(self, f"_visit_{type(node).__name__}", None)
        if method:
            method(node, scope)
        else:
            self._generic(node, scope)

    def _generic(self, node: ast.AST, scope: Scope) -> None:
        context = getattr(node, "ctx", None)
        self._emit(
            type(node).__name__,
            "" if isinstance(context, ast.Load) else type(context).__name__,
            "(",
        )
        for name, value in ast.iter_fields(node):
            if name in _SKIPPED:
                continue
            if isinstance(value, list):
                self._body(value, scope) if name in _BODIES else self._list(value, scope)
            elif isinstance(value, ast.AST):
                self._visit(value, scope)
            else:
                self._emit(repr(value))
        self._emit(")")

    def _list(self, values: Sequence[object], scope: Scope) -> None:
        self._emit("[")
        for value in values:
            if isinstance(value, ast.AST):
                self._visit(value, scope)
            else:
                self._emit(repr(value))
        self._emit("]")

    def _body(self, body: Sequence[ast.stmt], scope: Scope, *, documented: bool = False) -> None:
        self._emit("[")
        kept = documented and "docstrings" in self.options
        for place, statement in enumerate(body):
            if not (is_text(statement) and not (kept and place == 0)):
                self._visit(statement, scope)
        self._emit("]")

    def _open(self, scope: Scope) -> Scope:
        self._opened += 1
        scope.number = self._opened
        return scope

    def _visit_Constant(self, node: ast.Constant, scope: Scope) -> None:
        value = node.value
        if isinstance(value, str) and value in SPECIAL:
            self._emit(*notes_of_attribute(value, node.lineno))
        text = hex(value) if type(value) is int else repr(value)
        self._emit(f"{type(value).__name__} {text}")
        if self._annotates and isinstance(
            value, str
        ):  # names that `typing.get_type_hints` evaluates
            with contextlib.suppress(SyntaxError, ValueError, RecursionError):
                self._visit(ast.parse(value.strip(), mode="eval").body, scope)

    # --- names --------------------------------------------------------------------------------

    def _visit_Name(self, node: ast.Name, scope: Scope) -> None:
        self._name(node.id, scope, node.lineno, _use(node.ctx))

    def _name(self, name: str, scope: Scope, line: int = 0, use: str = "Store") -> None:
        owner = scope.owner(name)
        if owner.kind == "module":
            self._global(name, scope, line, use)
        elif owner.kind == "class":
            self._emit(f"member {use} {name}")
            if not use:  # if the class has not bound the name yet, it is the module's
                self._emit(self._ref((name,), line))
        elif name in owner.imports and name not in owner.local | owner.kept:
            if not use:
                self._emit(self._ref((name,), line, "", tuple(owner.imports[name])))
        else:
            self._emit(f"local {use} {self._number(name, owner)}")

    def _global(self, name: str, scope: Scope, line: int, use: str) -> None:
        if use == "Store" and scope.kind == "module":
            self._emit(f"bind {name}")
        else:
            self._emit(self._ref((name,), line, use))

    def _ref(
        self, chain: tuple[str, ...], line: int, use: str = "", imported: tuple[Imported, ...] = ()
    ) -> Ref:
        return Ref(chain, line, use, imported, self._deferred)

    def _number(self, name: str, owner: Scope) -> str:
        if self._spoken is None or name in owner.kept or name in self._spoken:
            return f"{name} of {owner.number}"
        number = self._numbers.setdefault((owner.number, name), len(self._numbers))
        return f"{number}"

    def _visit_Attribute(self, node: ast.Attribute, scope: Scope) -> None:
        base, chain = chain_of(node)
        for name in reversed(chain):
            self._emit(*notes_of_attribute(name, node.lineno))
        if isinstance(base, ast.Name) and (found := self._chained(base, chain, scope, node)):
            self._emit(found)
            return
        self._emit("Attribute", _use(node.ctx), *(f".{name}" for name in chain), "(")
        self._visit(base, scope)
        self._emit(")")

    def _chained(
        self, base: ast.Name, chain: list[str], scope: Scope, node: ast.Attribute
    ) -> Ref | None:
        owner = scope.owner(base.id)
        names, use = (base.id, *chain), _use(node.ctx)
        if owner.kind == "module":
            return self._ref(names, node.lineno, use)
        is_import = owner.kind == "function" and base.id in owner.imports
        if is_import and base.id not in owner.local | owner.kept:
            return self._ref(names, node.lineno, use, tuple(owner.imports[base.id]))
        return None

    # --- calls --------------------------------------------------------------------------------

    def _visit_Call(self, node: ast.Call, scope: Scope) -> None:
        if modules := self.setting.imported_by.get(node):
            self._emit(ImportRun(modules, node.lineno, escapes=True))
        if loads_code(node):
            self._emit(Note("program", "weights_only", node.lineno))
        match node:
            case ast.Call(
                func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), *rest]
            ) if scope.owner("getattr").kind == "module" and name.isidentifier():
                as_attribute = ast.Attribute(owner, name, ast.Load())
                self._emit("getattr", "(")
                self._visit(ast.copy_location(as_attribute, node), scope)
                self._list(rest, scope)
                self._emit(")")
            case ast.Call(func=func, args=[ast.Name(id="__name__")], keywords=[]) if (
                self.setting.dotted(func) == "logging.getLogger"
                and "__name__" not in self.setting.positions
            ):
                self._emit("logger of the module")
            case _:
                self._generic(node, scope)

    def _visit_keyword(self, node: ast.keyword, scope: Scope) -> None:
        named = getattr(node.value, "id", getattr(node.value, "attr", None))
        if node.arg in _HELP and named == "__doc__":
            self._emit(f"{node.arg} of the command line")
        else:
            self._generic(node, scope)

    # --- imports ------------------------------------------------------------------------------

    def _visit_Import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        self._emit("import", ImportRun(imported_modules(node, self.setting.package), node.lineno))
        for name, imported in imported_names(node, self.setting.package):
            owner = scope.owner(name)
            if owner.kind == "module":
                self._emit(f"bind {name}", self._ref((name,), node.lineno, "Import", (imported,)))
            elif owner.kind == "class" or name in owner.local | owner.kept:  # an ordinary value
                self._name(name, scope)
                self._emit(self._ref((name,), node.lineno, "", (imported,)))
            elif len(owner.imports[name]) > 1:
                self._emit(self._ref((name,), node.lineno, "Import", (imported,)))

    _visit_ImportFrom = _visit_Import

    # --- scopes within expressions ------------------------------------------------------------

    def _visit_Lambda(self, node: ast.Lambda, scope: Scope) -> None:
        self._emit("Lambda", "(")
        inner = self._open(function_scope(node, scope, self.setting.package))
        self._parameters(node.args, scope, annotated=False)
        before, self._deferred = self._deferred, True
        self._visit(node.body, inner)
        self._deferred = before
        self._emit(")")

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, scope: Scope
    ) -> None:
        self._emit(type(node).__name__, "(")
        inner = self._open(comprehension_scope(node.generators, scope))
        for place, one in enumerate(node.generators):
            self._visit(one.iter, inner if place else scope)
            self._emit("async" if one.is_async else "for")
            self._visit(one.target, inner)
            self._list(one.ifs, inner)
        for part in elements_of(node):
            self._visit(part, inner)
        self._emit(")")

    _visit_ListComp = _visit_SetComp = _visit_DictComp = _visit_GeneratorExp = _comprehension

    def _parameters(self, args: ast.arguments, scope: Scope, *, annotated: bool) -> None:
        named = [
            *(("/", one) for one in args.posonlyargs),
            *(("", one) for one in args.args),
            *(("*", one) for one in (args.vararg,) if one),
            *(("keyword ", one) for one in args.kwonlyargs),
            *(("**", one) for one in (args.kwarg,) if one),
        ]
        for kind, one in named:
            self._emit(f"parameter {kind}{one.arg}")
            if one.annotation:
                self._annotation(one.annotation, scope, counts=annotated)
        self._list([*args.defaults, "keywords", *args.kw_defaults], scope)

    def _annotation(self, node: ast.expr, scope: Scope, *, counts: bool) -> None:
        """Write an annotation if it counts, or if its evaluation may fail or have effects."""
        if counts or not (self.setting.lazy or self._is_quiet(node, scope)):
            before, self._annotates = self._annotates, True
            self._emit("annotation")
            self._visit(node, scope)
            self._annotates = before

    def _is_quiet(self, node: ast.expr, scope: Scope) -> bool:
        return all(
            isinstance(one, _QUIET)
            and not (isinstance(one, ast.Name) and not self._is_bound(one.id, scope))
            for one in ast.walk(node)
        )

    def _is_bound(self, name: str, scope: Scope) -> bool:
        """Return whether a name is certainly bound when this statement is executed."""
        if scope.owner(name).kind != "module":
            return True
        if name not in self.setting.positions:
            return is_built_in(name)
        return _in_function(scope) or self.setting.positions[name] < self.position


def _use(context: ast.expr_context) -> str:
    return "" if isinstance(context, ast.Load) else type(context).__name__


def _in_function(scope: Scope | None) -> bool:
    while scope:
        if scope.kind == "function":
            return True
        scope = scope.parent
    return False
