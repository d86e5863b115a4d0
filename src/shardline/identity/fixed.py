"""Which units may stand anywhere in their module: what they read, nothing changes meanwhile."""

import ast
from dataclasses import dataclass, field
from functools import cached_property

from shardline.identity.reach import Key, Reach
from shardline.identity.resolution import Defined, Named, Part
from shardline.identity.scopes import DEFINITIONS
from shardline.identity.tokens import Ref

_LITERAL = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.Name,
            ast.Attribute, ast.expr_context)  # fmt: skip


@dataclass
class Fixed:
    """Tells ordered units from those whose place does not count.

    Attributes:
        reach: what was reached.
    """

    reach: Reach
    _ordered: dict[Key, bool] = field(default_factory=dict)
    _fixed: dict[Key, bool] = field(default_factory=dict)

    def is_ordered(self, key: Key) -> bool:
        """Return whether a unit's place among what is executed counts."""
        if key not in self._ordered:
            self._ordered[key] = self._has_place(key) or any(
                not self._is_fixed_part(part)
                for token in self.reach.written(key).tokens
                if isinstance(token, Ref) and not token.deferred and token.use != "Import"
                for part in self.reach.resolve(key[0], token)
            )
        return self._ordered[key]

    def _has_place(self, key: Key) -> bool:
        unit = self.reach.unit(key)
        if unit.is_ordered or key[0] in self.reach.ordered or self._patches_anything:
            return True
        return isinstance(unit.node, ast.ClassDef) and (
            "classes" in self.reach.flags
            or self.reach.hooks.tells(*key, self.reach.outline(key[0]))
        )

    def _is_fixed_part(self, part: Part) -> bool:
        if isinstance(part, Named):
            return True
        return isinstance(part, Defined) and self._is_fixed((part.label, part.place))

    def _is_fixed(self, key: Key) -> bool:
        """Return whether a unit gives its name one value, which nothing changes."""
        if key not in self._fixed:
            self._fixed[key] = False  # while what it refers to is looked at
            self._fixed[key] = self._looks_fixed(key)
        return self._fixed[key]

    def _looks_fixed(self, key: Key) -> bool:
        unit = self.reach.unit(key)
        changed = unit.has_effects or unit.is_ordered or key in self._patched
        if changed or key[0] in self.reach.escaped | self.reach.ordered:
            return False
        if isinstance(unit.node, DEFINITIONS):
            return True
        value = getattr(unit.node, "value", None)
        if value is None or not all(isinstance(one, _LITERAL) for one in ast.walk(value)):
            return False
        return all(
            self._is_fixed_part(part)
            for token in self.reach.written(key).tokens
            if isinstance(token, Ref)
            for part in self.reach.resolve(key[0], token)
        )

    @cached_property
    def _patched(self) -> set[Key]:
        """Units of which some code binds the name, or an attribute, again."""
        return {
            (part.label, part.place)
            for key, token in self._stores()
            for part in self.reach.resolve(key[0], token)
            if isinstance(part, Defined)
        }

    @cached_property
    def _patches_anything(self) -> bool:
        """Whether code sets attributes of what is not the project's, or by a computed name."""
        return "patches" in self.reach.flags or any(
            not isinstance(part, Defined)
            for key, token in self._stores()
            for part in self.reach.resolve(key[0], token)
        )

    def _stores(self) -> list[tuple[Key, Ref]]:
        return [
            (key, token)
            for key in self.reach.units
            for token in self.reach.written(key).tokens
            if isinstance(token, Ref) and token.use in ("Store", "Del")
        ]
