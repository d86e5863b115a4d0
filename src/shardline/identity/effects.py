"""Which statements have effects, also by failing, and the full names that tell it."""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardline.identity.purity import Dotted, is_built_in, is_plain
from shardline.identity.scopes import DEFINITIONS, FUNCTIONS, Imported, Scope, chain_of, defaults_of


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is known of a module when its statements are classified and written.

    Attributes:
        package: from which relative imports start.
        scope: the module's own names.
        dotted: full names of imported and built-in things.
        positions: where each name of the module is first bound, counted in statements.
        imported_by: the modules that a call imports, by the call's node.
        never_run: conditions that are false, as `TYPE_CHECKING`.
        lazy: whether annotations are not evaluated (`from __future__ import annotations`).
    """

    package: str
    scope: Scope
    dotted: Dotted
    positions: Mapping[str, int]
    imported_by: Mapping[ast.AST, tuple[str, ...]]
    never_run: frozenset[str]
    lazy: bool


def has_effects(node: ast.stmt, position: int, setting: Setting) -> bool:
    """Return whether executing a statement does more than bind names.

    Args:
        node: at the top level of a module.
        position: its place in the module, counted in statements.
        setting: the module's.
    """
    return not is_plain(node, setting.dotted) or not _is_bound(node, position, setting)


def _is_bound(node: ast.stmt, position: int, setting: Setting) -> bool:
    """Return whether all names that a statement reads at once exist, so that it does not fail."""
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
    """Yield the parts of a statement that run where it stands, and not later in a function."""
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


def dotted_name(
    node: ast.expr, symbols: Mapping[str, Sequence[int | Imported]], is_own: Callable[[str], bool]
) -> str:
    """Return the full name of an imported or built-in thing; nothing where that is not certain.

    Args:
        node: a name with attributes.
        symbols: what the module's names are bound to.
        is_own: whether the project has a module of a name itself.
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
