"""One digest over the definitions that were reached, in which no module's path counts."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardline.core.canonical import short_digest
from shardline.identity.reach import Key, Reach
from shardline.identity.resolution import Defined, Named, Part, Whole
from shardline.identity.run_order import RunOrder
from shardline.identity.tokens import Note, Ref, Run
from shardline.identity.versions import is_public

Node = Key | str  # a unit, or the label of a module that counts as a value


@dataclass
class Graph:
    """The reached definitions, each with its text and what it refers to.

    References stand in the text as numbers, which nodes get in the order in which they are first
    met from the roots. So two graphs of one form have one digest, cycles included, wherever their
    definitions lie.
    """

    reach: Reach
    order: RunOrder
    files: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    _written: dict[Node, tuple[str, tuple[Node, ...]]] = field(default_factory=dict)
    _numbers: dict[Node, int] = field(default_factory=dict)
    _lines: list[object] = field(default_factory=list)

    def digest(self, entry: Sequence[Part]) -> str:
        """Return the digest of the whole, seen from what the entry point is."""
        texts, nodes = self._parts(entry, "")
        sequence = self.order.sequence
        listed = sorted(self.reach.ordered & self.reach.run.keys())
        self._number([*nodes, *sequence])
        # what is executed in no order, or reached by no name: sorted by its own text
        rest = [key for key in self.reach.units if key not in self._numbers]
        keyed = [(self._text(node)[0], place, node) for place, node in enumerate(rest)]
        heapq.heapify(keyed)
        while keyed:
            node = heapq.heappop(keyed)[2]
            self._number([node])
        self._number(listed)
        numbered = [self._line(node) for node in self._numbers]
        program = [self._numbers[node] for node in sequence]
        early = [
            [self._numbers[what] if isinstance(what, tuple) else what, name]
            for what, name in self.order.early
        ]
        flags = sorted(self.reach.flags.keys() & {"classes", "text", "places", "main"})
        # modules that add folders to `sys.path` decide which of two others Python takes
        in_folders = len(self.reach.program.searched) > 1
        has_places = in_folders or {"places", "program"} & self.reach.flags.keys()
        places = [*self._places(), *sorted(self.reach.run)] if has_places else []
        places += self.reach.program.in_later_roots(self.reach.run)
        known = [self._numbers[node] for node in nodes]
        return short_digest(
            [texts, known, program, sorted(early, key=str), numbered, sorted(self.reach.broken), self.reach.loaded,
             flags, places, [self._numbers[label] for label in listed]]
        )  # fmt: skip

    def _places(self) -> list[str]:
        return sorted(
            f"{label}:{self.reach.unit((label, at)).label}" for label, at in self.reach.units
        )

    def _number(self, roots: Iterable[Node]) -> None:
        pending = list(roots)[::-1]
        while pending:
            node = pending.pop()
            if node not in self._numbers:
                self._numbers[node] = len(self._numbers)
                pending.extend(reversed(self._text(node)[1]))

    def _line(self, node: Node) -> list[object]:
        text, nodes = self._text(node)
        return [text, [self._numbers[one] for one in nodes]]

    def _text(self, node: Node) -> tuple[str, tuple[Node, ...]]:
        """Return a digest of a node's own text, and the nodes that stand in its gaps."""
        if node not in self._written:
            texts, nodes = self._module(node) if isinstance(node, str) else self._unit(node)
            self._written[node] = (short_digest(texts), tuple(nodes))
        return self._written[node]

    def _unit(self, key: Key) -> tuple[list[str], list[Node]]:
        texts: list[str] = [*self.files.get(key, ())]
        nodes: list[Node] = []
        for token in self.reach.written(key).tokens:
            if isinstance(token, str):
                texts.append(token)
            elif isinstance(token, Ref):
                more = self._reference(token, key[0])
                texts += more[0]
                nodes += more[1]
            elif isinstance(token, Run):
                executed = self.order.of_import(token)
                texts += ["run", str(len(executed)), *self._foreign(token)]
                nodes += executed
            else:
                assert isinstance(token, Note)
        return texts, nodes

    def _foreign(self, token: Run) -> list[str]:
        """Return the imported modules that are not the project's, which may be missing."""
        resolver = self.reach.resolver
        return [
            name for name in token.modules
            if is_public(name) or not resolver.exists(name.partition(".")[0])
        ]  # fmt: skip

    def _reference(self, ref: Ref, label: str) -> tuple[list[str], list[Node]]:
        parts = self.reach.resolve(label, ref)
        if ref.use == "Import":
            parts = tuple(part for part in parts if isinstance(part, Named))
        texts, nodes = self._parts(parts, label)
        return [f"reference {ref.use}", *texts], nodes

    def _parts(self, parts: Iterable[Part], label: str) -> tuple[list[str], list[Node]]:
        texts: list[str] = []
        nodes: list[Node] = []
        for part in parts:
            if isinstance(part, Named):
                texts.append(f"= {part.dotted}")
            elif isinstance(part, Defined):
                texts.append(f"-> {'.'.join(part.chain)}")
                nodes.append((part.label, part.place))
            elif isinstance(part, Whole):
                texts.append(f"-> module {'.'.join(part.chain)}")
                nodes.append(part.label)
        return texts, nodes

    def _module(self, label: str) -> tuple[list[str], list[Node]]:
        """Write a module that code has as a value: its names, and what they are bound to."""
        outline = self.reach.outline(label)
        texts: list[str] = []
        nodes: list[Node] = []
        ordered = label in self.reach.ordered
        for name in outline.symbols if ordered else sorted(outline.symbols):
            more = self._reference(Ref((name,)), label)
            texts += [name, *more[0]]
            nodes += more[1]
        return texts, nodes
