"""Writer of definitions: code with the same meaning gives the same text, with separate references.

Comments, formatting, docstrings, annotations that nothing evaluates and names of local variables are
left out. Names of parameters are kept, since callers may pass arguments by name, and Lightning's
`save_hyperparameters` stores them.
"""

import ast
import re
from collections.abc import Sequence

from shardline.identity.expressions import Expressions
from shardline.identity.names import (
    FUNCTIONS,
    Scope,
    Written,
    collect,
    function_scope,
    is_text,
    reads_locals,
)
from shardline.identity.purity import Setting, is_pure_decorator

_WORD = re.compile(r"[^\W\d]\w*")


def write(statement: ast.stmt, setting: Setting, options: frozenset[str], position: int) -> Written:
    """Return a top-level statement of a module as text and references.

    Args:
        statement: the statement.
        setting: context of the module.
        options: `annotations` and `docstrings`, if they count.
        position: position of the statement in its module.
    """
    return _Writer(setting, options, position).written(statement)


class _Writer(Expressions):
    """Writes statements and definitions."""

    def written(self, statement: ast.stmt) -> Written:
        """Return a statement as text and references."""
        self._learn(statement)
        self._visit(statement, self.setting.scope)
        return self._out

    def _learn(self, statement: ast.stmt) -> None:
        """Find the names of local variables that code may read by name."""
        nodes = list(ast.walk(statement))
        if reads_locals(nodes) or _makes_classes(statement, nodes):
            self._spoken = None
            return
        stray = {one.value for one in nodes if isinstance(one, ast.Expr)}  # includes docstrings
        texts = (
            n.value
            for n in nodes
            if isinstance(n, ast.Constant) and type(n.value) is str and n not in stray
        )
        self._spoken = frozenset(word for text in texts for word in _WORD.findall(text))

    # --- definitions --------------------------------------------------------------------------

    def _visit_FunctionDef(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope
    ) -> None:
        self._emit(type(node).__name__, node.name, "(")
        inner = self._open(function_scope(node, scope, self.setting.package))
        self._list(node.decorator_list, scope)
        self._list(getattr(node, "type_params", ()), inner)
        pure = (is_pure_decorator(one, self.setting.dotted) for one in node.decorator_list)
        annotated = "annotations" in self.options or not all(pure)
        self._parameters(node.args, scope, annotated=annotated)
        if node.returns:
            self._annotation(node.returns, scope, counts=annotated)
        before, self._deferred = self._deferred, True
        self._body(node.body, inner, documented=True)
        self._deferred = before
        self._emit(")")

    _visit_AsyncFunctionDef = _visit_FunctionDef

    def _visit_ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        self._emit("ClassDef", node.name, "(")
        inner = self._open(Scope("class", scope))
        collect(node.body, inner, self.setting.package)
        self._list(node.decorator_list, scope)
        self._list(getattr(node, "type_params", ()), inner)
        self._list(node.bases, scope)
        self._list(node.keywords, scope)
        for place, statement in enumerate(node.body):
            if not is_text(statement) or (place == 0 and "docstrings" in self.options):
                begin = len(self._out.tokens)
                self._visit(statement, inner)
                if isinstance(statement, FUNCTIONS) and scope.kind == "module":
                    span = (begin, len(self._out.tokens))
                    self._out.parts.setdefault(statement.name, []).append(span)
        self._emit(")")

    # --- statements ---------------------------------------------------------------------------

    def _visit_If(self, node: ast.If, scope: Scope) -> None:
        if ast.unparse(node.test) in self.setting.never_run:
            self._body(node.orelse, scope)
        else:
            self._generic(node, scope)

    def _visit_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        counts = scope.kind == "class" or "annotations" in self.options
        if scope.kind == "class":
            self._emit("annotated" if node.simple else "evaluated")  # `(x): int` is not recorded
        if scope.kind != "function":  # in a function they are not evaluated
            self._annotation(node.annotation, scope, counts=counts)
        if node.value:
            assigned = ast.Assign([node.target], node.value)
            self._visit(ast.copy_location(assigned, node), scope)
        elif not isinstance(node.target, ast.Name):
            self._visit(node.target, scope)
        elif scope.kind == "class":
            self._emit(f"member Store {node.target.id}")

    def _visit_Global(self, node: ast.AST, scope: Scope) -> None:
        """Write nothing, since the bound names contain it."""

    _visit_Nonlocal = _visit_Global

    def _visit_Delete(self, node: ast.Delete, scope: Scope) -> None:
        targets = node.targets
        if len(targets) == 1 and isinstance(targets[0], ast.Tuple):
            targets = targets[0].elts  # `del (a, b)` is `del a, b`
        self._emit("Delete")
        self._list(targets, scope)

    def _visit_ExceptHandler(self, node: ast.ExceptHandler, scope: Scope) -> None:
        self._emit("except")
        self._list([node.type] if node.type else [], scope)
        if node.name:
            self._name(node.name, scope, node.lineno)
        self._body(node.body, scope)

    def _visit_MatchAs(self, node: ast.MatchAs, scope: Scope) -> None:
        self._capture("MatchAs", node.name, [node.pattern] if node.pattern else [], scope)

    def _visit_MatchStar(self, node: ast.MatchStar, scope: Scope) -> None:
        self._capture("MatchStar", node.name, [], scope)

    def _visit_MatchMapping(self, node: ast.MatchMapping, scope: Scope) -> None:
        self._list(node.keys, scope)
        self._capture("MatchMapping", node.rest, node.patterns, scope)

    def _capture(self, kind: str, name: str | None, parts: Sequence[ast.AST], scope: Scope) -> None:
        self._emit(kind, "(")
        if name:
            self._name(name, scope)
        self._list(parts, scope)
        self._emit(")")


def _makes_classes(statement: ast.stmt, nodes: list[ast.AST]) -> bool:
    """Return whether a function in a statement has a class in its body."""
    inner = {one for one in nodes if isinstance(one, ast.ClassDef) and one is not statement}
    return bool(inner) and any(
        one in inner
        for function in nodes
        if isinstance(function, FUNCTIONS)
        for one in ast.walk(function)
    )
