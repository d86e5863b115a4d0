"""Which classes tell others that they exist: by `__init_subclass__`, a metaclass, or their bases."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from shardline.identity.outline import Outline
from shardline.identity.purity import is_inert
from shardline.identity.resolution import Defined, Named, Part, Resolver
from shardline.identity.scopes import FUNCTIONS, chain_of
from shardline.identity.tokens import Ref

_HOOK = "__init_subclass__"


@dataclass
class Hooks:
    """Looks at the bases of classes.

    Attributes:
        resolver: of names.
    """

    resolver: Resolver
    _telling: dict[tuple[str, int], bool] = field(default_factory=dict)
    _bases: dict[tuple[str, ast.ClassDef], tuple[Part, ...]] = field(default_factory=dict)

    def bases(self, label: str, outline: Outline, node: ast.ClassDef) -> tuple[Part, ...]:
        """Return what the bases of a class, and of classes in its body, are."""
        if (label, node) not in self._bases:
            refs = (_reference(base) for one in _with_inner(node) for base in one.bases)
            self._bases[label, node] = tuple(
                part for ref in refs if ref for part in self.resolver.resolve(label, outline, ref)
            )
        return self._bases[label, node]

    def tells(self, label: str, place: int, outline: Outline) -> bool:
        """Return whether defining this class may have an effect elsewhere."""
        unit = outline.units[place]
        if (label, place) not in self._telling:
            self._telling[label, place] = False  # while its bases are looked at
            node = unit.node
            self._telling[label, place] = unit.has_effects or (
                isinstance(node, ast.ClassDef)
                and any(self._is_telling(part) for part in self.bases(label, outline, node))
            )
        return self._telling[label, place]

    def _is_telling(self, base: Part) -> bool:
        if isinstance(base, Named):
            return not is_inert(base.dotted)
        if not isinstance(base, Defined):
            return True
        outline = self.resolver.find(base.label.partition(" (")[0])[base.label]
        node = outline.units[base.place].node
        if not isinstance(node, ast.ClassDef) or len(base.chain) > 1:
            return True
        hooked = any(_HOOK in (getattr(one, "name", ""), *_names(one)) for one in node.body)
        return hooked or bool(node.keywords) or self.tells(base.label, base.place, outline)


def _with_inner(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    yield node
    for one in node.body:
        if isinstance(one, ast.ClassDef):
            yield from _with_inner(one)


def _names(node: ast.stmt) -> Iterator[str]:
    if not isinstance(node, FUNCTIONS):
        yield from (one.id for one in ast.walk(node) if isinstance(one, ast.Name))


def _reference(node: ast.expr) -> Ref | None:
    if isinstance(node, ast.Subscript):
        node = node.value
    base, chain = chain_of(node)
    return Ref((base.id, *chain)) if isinstance(base, ast.Name) else None
