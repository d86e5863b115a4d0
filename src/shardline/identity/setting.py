"""What the writer of definitions must know of the module that they stand in."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from shardline.identity.purity import Dotted
from shardline.identity.scopes import Scope


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the writer must know of a module.

    Attributes:
        package: from which relative imports start.
        scope: the module's own names.
        dotted: full names of imported and built-in things.
        positions: where each name of the module is first bound, counted in statements.
        imported_by: the modules that a call imports, by the call's node.
        never_run: conditions that are false, as `TYPE_CHECKING`.
        lazy: whether annotations are not evaluated (`from __future__ import annotations`).
        is_main: whether the module runs as a script.
    """

    package: str
    scope: Scope
    dotted: Dotted
    positions: Mapping[str, int]
    imported_by: Mapping[ast.AST, tuple[str, ...]]
    never_run: frozenset[str]
    lazy: bool
    is_main: bool
