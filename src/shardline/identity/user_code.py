"""User code in an identity: the definitions that an entry point can reach, and their digest."""

import ast
import gc
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shardline.core.canonical import short_digest
from shardline.identity.code_index import CodeIndex, Folders
from shardline.identity.files_beside import Beside
from shardline.identity.names import ImportRun, Note, Ref, Token
from shardline.identity.reach import Key, Program, Reach
from shardline.identity.resolution import Defined, Named, Part, Whole
from shardline.identity.run_order import RunOrder
from shardline.identity.versions import is_public

Node = Key | str  # a unit, or the label of a module that is used as a value


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """Code that an entry point can reach.

    Attributes:
        digest: digest of the entry point and all definitions that it reaches (12 hex digits). Only
            this digest is part of an identity; it does not depend on paths of modules.
        definitions: digests by `module:qualname`, `module:<module>` for statements with effects and
            `module:file path` for files that are read; they show what changed.
        third_party: top-level names of installed packages that the code imports.
        whole: reasons why modules count as a whole, by module.
        shipped: dotted names in Shardline that the code refers to.
        files: files of the modules, and files that they read beside themselves.
    """

    digest: str
    definitions: dict[str, str]
    third_party: frozenset[str]
    whole: dict[str, str]
    shipped: frozenset[str] = frozenset()
    files: frozenset[Path] = frozenset()


def reach(index: CodeIndex, entry: str, whole: str = "") -> UserCode:
    """Return the definitions that an entry point can reach, with their digest.

    Args:
        index: index of the project's modules.
        entry: `models:Net`, `pkg.sources:Rings`; `__main__` for the script of the index.
        whole: reason why the whole module of the entry counts, if it does.

    Raises:
        ConfigError: a module cannot be read or is not valid Python; the message names file and line.
    """
    module, _, qualname = entry.partition(":")
    if is_public(f"{module}.{qualname}".rstrip(".")):
        code = short_digest(["shipped", entry])
        return UserCode(digest=code, definitions={}, third_party=frozenset(), whole={})
    with _no_garbage_collection():
        found, parts = _closed(index, (module, qualname), whole)
        return _summary(found, module, parts)


def reached_statements(index: CodeIndex, entry: str) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each statement at the top level of a module that an entry point can reach, with its name.

    Args:
        index: index of the project's modules.
        entry: see `reach`.

    Raises:
        ConfigError: see `reach`.
    """
    module, _, qualname = entry.partition(":")
    if is_public(f"{module}.{qualname}".rstrip(".")) or index.find(module) is None:
        return
    with _no_garbage_collection():
        found, _ = _closed(index, (module, qualname), "")
    for key in sorted(found.units):
        if (node := found.unit(key).node) is not None:
            yield f"{key[0]}:{found.unit(key).label}", node


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector, which doubles the time for 200 syntax trees that are all kept."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _closed(index: CodeIndex, entry: tuple[str, str], whole: str) -> tuple[Reach, list[Part]]:
    """Return all that an entry point can reach, and the parts that its name resolves to."""
    searched: list[Folders] = [tuple(index.roots)]
    alone: Folders = ()
    options: frozenset[str] = frozenset()
    while True:
        found = Reach(Program(index, searched, alone, "main" in options), options)
        parts = _follow(found, *entry, whole)
        new = [folder for folder in _added(found, index) if (folder,) not in searched]
        searched += [(folder,) for folder in new]
        later = searched[0][1:] if alone or found.program.edits_sys_path(found.run) else ()
        if not new and later == alone and found.wanted == options:
            return found, parts
        alone = later
        options |= found.wanted


def _follow(found: Reach, module: str, qualname: str, whole: str) -> list[Part]:
    """Follow an entry point, and return the parts that its name resolves to."""
    found.import_modules([module])
    places = found.program.find(module)
    parts: list[Part] = []
    for label, outline in places.items():
        if qualname:
            parts += found.resolve(label, Ref(tuple(qualname.split("."))))
        elif whole or module != "__main__":
            parts.append(Whole(label, whole or "named without a definition"))
        missing = any(
            isinstance(p, Named) and p.dotted.startswith(("?", "builtins.")) for p in parts
        )
        if missing and qualname.partition(".")[0] not in outline.symbols:
            parts.append(Whole(label, f"no definition of {qualname} seen"))
    found.follow(parts)
    return parts


def _added(found: Reach, index: CodeIndex) -> dict[Path, None]:
    """Return the folders that executed modules add to `sys.path`."""
    added: dict[Path, None] = {}
    for label, outline in found.run.items():
        added |= dict.fromkeys(index.folders_added_by(found.program.files[label], outline.name))
    return added


def _summary(found: Reach, module: str, parts: list[Part]) -> UserCode:
    files = Beside(found).files()
    texts = {key: tuple(beside.values()) for key, beside in files.items()}
    definitions = _definitions(found)
    for (label, _), beside in sorted(files.items()):
        definitions |= {f"{label}:file {path}": digest for path, digest in beside.items()}
    return UserCode(
        digest=Graph(found, RunOrder(found, module), texts).digest(parts),
        definitions=definitions,
        third_party=found.packages,
        whole=dict(sorted(found.whole.items())),
        shipped=frozenset(found.shipped),
        files=frozenset([*found.program.files.values(), *_paths(found, files)]),
    )


def _paths(found: Reach, files: Mapping[Key, Mapping[str, str]]) -> Iterator[Path]:
    for (label, _), beside in files.items():
        folder = found.program.files[label].parent.resolve()
        yield from ((folder / name).resolve() for name in beside)


def _definitions(found: Reach) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    for key in sorted(found.units):
        label, unit, written = key[0], found.unit(key), found.written(key)
        shown = [_shown(token, found, key) for token in written.tokens]
        name = f"{label}:{unit.label}"
        for method, spans in written.parts.items():
            for begin, end in spans:
                texts.setdefault(f"{name}.{method}", []).extend(shown[begin:end])
                shown[begin:end] = [""] * (end - begin)
        texts.setdefault(name, []).extend(filter(None, shown))
    return {name: short_digest(parts) for name, parts in sorted(texts.items())}


def _shown(token: Token, found: Reach, key: Key) -> str:
    """Return a token as text with names only, so that a definition differs only if it was edited."""
    if isinstance(token, str):
        return token
    if not isinstance(token, Ref):
        return ""
    parts = found.resolve(key[0], token)
    return " ".join([token.use, *(_name(part) for part in parts)])


def _name(part: Part) -> str:
    match part:
        case Named(dotted=dotted):
            return dotted
        case Defined(chain=chain):
            return ".".join(chain)
        case Whole(chain=chain):
            return ".".join(["module", *chain])


@dataclass
class Graph:
    """Graph of the reached definitions, each with its text and its references.

    References are written as numbers. Nodes are numbered in the order in which they are first met
    from the roots. So two graphs of the same shape have the same digest, cycles included, wherever
    their definitions are.
    """

    reach: Reach
    order: RunOrder
    files: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    _written: dict[Node, tuple[str, tuple[Node, ...]]] = field(default_factory=dict)
    _numbers: dict[Node, int] = field(default_factory=dict)
    _lines: list[object] = field(default_factory=list)

    def digest(self, entry: Sequence[Part]) -> str:
        """Return the digest of the graph, starting from the parts of the entry point."""
        texts, nodes = self._parts(entry, "")
        sequence = self.order.sequence
        listed = sorted(self.reach.ordered & self.reach.run.keys())
        self._number([*nodes, *sequence])
        # units without an order, or reached by no name: sorted by their own texts
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
        # modules that add folders to `sys.path` decide which of two modules Python imports
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
        """Return a digest of a node's own text, and the nodes that the text refers to, in order."""
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
            elif isinstance(token, ImportRun):
                executed = self.order.of_import(token)
                texts += ["run", str(len(executed)), *self._foreign(token)]
                nodes += executed
            else:
                assert isinstance(token, Note)
        return texts, nodes

    def _foreign(self, token: ImportRun) -> list[str]:
        """Return the imported modules outside the project, which may be missing."""
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
        """Return the text and nodes of a module that is used as a value: its names and their bindings."""
        outline = self.reach.outline(label)
        texts: list[str] = []
        nodes: list[Node] = []
        ordered = label in self.reach.ordered
        for name in outline.symbols if ordered else sorted(outline.symbols):
            more = self._reference(Ref((name,)), label)
            texts += [name, *more[0]]
            nodes += more[1]
        return texts, nodes
