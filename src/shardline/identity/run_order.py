"""The order in which a program executes what has effects, module by module."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shardline.identity.outline import Importing
from shardline.identity.reach import Key, Reach
from shardline.identity.surface import is_public
from shardline.identity.tokens import Run


@dataclass
class RunOrder:
    """Puts the reached units whose place counts into the order of their execution.

    Attributes:
        reach: what was reached.
        entry: the module that is imported first.
    """

    reach: Reach
    entry: str
    _events: dict[str, list[Importing | Key]] = field(default_factory=dict)
    _imports: dict[tuple[str, ...], list[Key]] = field(default_factory=dict)

    def of_program(self) -> list[Key]:
        """Return all such units of a program, those of modules that functions import last."""
        done: dict[str, None] = {}
        found = list(self._executed([self.entry], done))
        return found

    def of_import(self, token: Run) -> list[Key]:
        """Return the units that an import executes where it is the first of its modules."""
        if token.modules not in self._imports:
            self._imports[token.modules] = list(self._executed(token.modules, {}))
        return self._imports[token.modules]

    def late(self) -> list[list[Key]]:
        """Return, for each unit in order, the definitions of its module that it needs too early."""
        return []

    def _executed(self, names: Iterable[str], done: dict[str, None]) -> Iterator[Key]:
        for name in names:
            for one in _with_parents(name):
                if is_public(one):
                    continue
                for label in self.reach.program.find(one):
                    if label in self.reach.run and label not in done:
                        done[label] = None
                        yield from self._module(label, done)

    def _module(self, label: str, done: dict[str, None]) -> Iterator[Key]:
        for event in self._events_of(label):
            if isinstance(event, Importing):
                yield from self._executed(event.modules, done)
            else:
                yield event

    def _events_of(self, label: str) -> list[Importing | Key]:
        if label not in self._events:
            outline = self.reach.run[label]
            keys = [(label, place) for place in range(len(outline.units))]
            placed: list[tuple[int, Importing | Key]] = [
                (outline.units[key[1]].position, key)
                for key in keys
                if key in self.reach.units and self.reach.is_ordered(key)
            ]
            placed += [(one.position, one) for one in outline.importing]
            placed.sort(key=lambda item: item[0])
            self._events[label] = [event for _, event in placed]
        return self._events[label]


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
