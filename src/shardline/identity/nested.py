"""Writes what opens a scope within an expression, and the parameters of functions."""

import ast
import contextlib

from shardline.identity.expressions import Expressions
from shardline.identity.purity import is_built_in
from shardline.identity.scopes import Scope, comprehension_scope, elements_of, function_scope

_QUIET = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.BinOp, ast.BitOr,
          ast.Load, ast.Starred)  # fmt: skip


class Nested(Expressions):
    """Adds lambdas, comprehensions, parameters and annotations."""

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
        """Write an annotation if it counts, or may fail or do something where it is evaluated."""
        if counts or not (self.setting.lazy or self._is_quiet(node, scope)):
            before, self._annotates = self._annotates, True
            self._emit("annotation")
            self._visit(node, scope)
            self._annotates = before

    def _visit_Constant(self, node: ast.Constant, scope: Scope) -> None:
        super()._visit_Constant(node, scope)
        if self._annotates and isinstance(node.value, str):
            self._text_of_annotation(node.value, scope)

    def _text_of_annotation(self, text: str, scope: Scope) -> None:
        """Write what a text as annotation names, as `typing.get_type_hints` finds it."""
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            self._visit(ast.parse(text.strip(), mode="eval").body, scope)

    def _is_quiet(self, node: ast.expr, scope: Scope) -> bool:
        return all(
            isinstance(one, _QUIET)
            and not (isinstance(one, ast.Name) and not self._is_bound(one.id, scope))
            for one in ast.walk(node)
        )

    def _is_bound(self, name: str, scope: Scope) -> bool:
        """Return whether a name is bound for certain once this statement is executed."""
        if scope.owner(name).kind != "module":
            return True
        if name not in self.setting.positions:
            return is_built_in(name)
        return _in_function(scope) or self.setting.positions[name] < self.position


def _in_function(scope: Scope | None) -> bool:
    while scope:
        if scope.kind == "function":
            return True
        scope = scope.parent
    return False
