"""Bases of runs: the runs, files and folders that a run begins from, and the order that they give the rows."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal

from shardline.config import combined
from shardline.config.hub_models import check_folder
from shardline.config.layout import ResultsLayout, identities_of
from shardline.config.run_table import Row
from shardline.config.settings import Plain
from shardline.core.canonical import DIGEST_LENGTH, digest
from shardline.core.digests import FileDigests
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import read_object
from shardline.core.suggest import suggest
from shardline.records.identities import IdentityDocument
from shardline.records.runs import BaseRef

Kind = Literal["init", "average", "ensemble"]
Source = Literal["run", "file", "hf"]
KEYS = ("init_from", *combined.KINDS)  # settings that name bases
STATES = ("best", "last")
ENDINGS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
_HEX = frozenset("0123456789abcdef")
_FORMS = "expected run:NAME, run:NAME@last, run:IDENTITY, file:PATH or hf:FOLDER"


@dataclass(frozen=True, kw_only=True)
class Base:
    """What a run begins from: another run, or a file or folder of weights.

    Attributes:
        kind: What the run does with the base.
        source: `run`, `file` or `hf`, a folder of transformers.
        name: Base as written in the row.
        identity: Digest of the identity document of a run, or of the content of a file or folder, whole.
        run: Id of a run; empty for a file or folder.
        state: Which weights of a run: `best`, the sealed ones, or `last`, of its last training checkpoint.
        path: Sealed weights of a run, or the file or folder; absolute.
        is_outside: Whether the run is not in the config, so that no job makes its weights; see `Project.link_bases`.
    """

    kind: Kind
    source: Source
    name: str
    identity: str
    run: str = ""
    state: str = "best"
    path: Path
    is_outside: bool = False

    @property
    def counted(self) -> dict[str, str]:
        """The part of the identity document of the run that begins from this base."""
        return self.record.counted

    def is_named_in_part(self, names: Collection[str]) -> bool:
        """Return whether the row names a run by the beginning of its identity.

        Args:
            names: Names of the runs of the config.
        """
        target = self.name.partition(":")[2].partition("@")[0]
        return bool(self.run) and target not in names and target != self.identity

    @property
    def record(self) -> BaseRef:
        """The base as records contain it, without the digest of its weights."""
        return BaseRef(
            kind=self.kind,
            source=self.source,
            run=self.run,
            identity=self.identity,
            state=self.state,
        )

    @property
    def resolved(self) -> str:
        """The base without the name of a run, as `run.json` contains it."""
        if not self.run:
            return self.name
        return f"run:{self.run}" + (f"@{self.state}" if self.state != "best" else "")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A base as a setting of a row names it.

    Attributes:
        kind: What the run does with the base.
        key: Setting that names the base.
        text: Base as written.
        source: `run`, `file` or `hf`.
        target: Name or identity of a run, or path.
        state: Which weights of a run.
    """

    kind: Kind
    key: str
    text: str
    source: Source
    target: str
    state: str = "best"


def references_of(settings: Plain, where: str) -> list[Reference]:
    """Return the bases that the settings of a row name.

    A further setting with bases is added here and to `KEYS`.

    Args:
        settings: Settings of the row with the defaults of the config.
        where: File and row, the start of messages.

    Raises:
        ConfigError: A base is written in no known form.
    """
    if kind := combined.kind_of(settings):  # trains nothing, so that it has no initial weights
        members = combined.runs_of(settings)
        found = [read_reference(text, kind=kind, key=kind, where=where) for text in members]
        for one in found:
            if one.source != "run" or one.state != "best":
                raise ConfigError(
                    f"{where}: {kind} names {one.text}, expected runs with their sealed weights; write run:NAME or "
                    "run:IDENTITY"
                )
        return found
    if (text := settings.get("init_from")) is not None:
        return [read_reference(text, kind="init", key="init_from", where=where)]
    return []


def read_reference(text: str, *, kind: Kind, key: str, where: str) -> Reference:
    """Read a base such as `run:wide@last`.

    Raises:
        ConfigError: The text has no known form, or names no known state.
    """
    source, colon, target = text.strip().partition(":")
    if source not in ("run", "file", "hf") or not colon or not target:
        hint = f'did you mean "run:{text}"?' if text and not colon else "write one of them"
        raise ConfigError(f"{where}: {key}={text} names no base, {_FORMS}; {hint}")
    state = "best"
    if source == "run":
        target, at, state = target.partition("@")
        state = state if at else "best"
        if state not in STATES:
            raise ConfigError(
                f"{where}: {key}={text} has the state {state or 'none'}, expected one of {', '.join(STATES)}; leave "
                "@ out for the sealed weights"
            )
    return Reference(kind=kind, key=key, text=text, source=source, target=target, state=state)  # type: ignore[arg-type]


def references_of_row(row: Row, defaults: Plain) -> list[Reference]:
    """Return the bases that a row names, or the defaults of the config for it; see `references_of`."""
    # without the other settings, since 10,000 rows each have 50
    usual = {"init_from": defaults.get("init_from")}  # no other is allowed there
    named = {key: row.settings.get(key, usual.get(key)) for key in KEYS}
    return references_of(named, row.where)


def in_order(rows: Sequence[Row], defaults: Plain) -> list[Row]:
    """Return rows so that the bases of each row come before it.

    A row whose base is given by its identity comes as late as possible, since that run may be a row too.

    Raises:
        ConfigError: Rows begin from one another.
    """
    by_name = {row.name: row for row in rows}
    named = {row.name: _named_rows(row, defaults, by_name) for row in rows}
    if not any(of for of, _ in named.values()) and not any(late for _, late in named.values()):
        return [*rows]
    sorter = TopologicalSorter({name: of for name, (of, _) in named.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        raise _cycle(error.args[1][::-1], by_name, defaults) from None
    place = {row.name: number for number, row in enumerate(rows)}
    ready, late, found = [*sorter.get_ready()], list[str](), list[Row]()
    while sorter.is_active():
        late += [name for name in ready if named[name][1]]
        now = [name for name in ready if not named[name][1]]
        if not now:
            late.sort(key=place.__getitem__)
            now = [late.pop(0)]
        now.sort(key=place.__getitem__)
        found += [by_name[name] for name in now]
        sorter.done(*now)
        ready = [*sorter.get_ready()]
    return found


def with_bases(rows: Sequence[Row], names: Collection[str], defaults: Plain) -> list[Row]:
    """Return the rows with these names and the rows that they begin from, in the order of the table."""
    by_name, needed, left = {row.name: row for row in rows}, set[str](), [*names]
    while left:
        if (name := left.pop()) in by_name and name not in needed:
            needed.add(name)
            left += _named_rows(by_name[name], defaults, by_name)[0]
    return [row for row in rows if row.name in needed]


def states_of_rows(rows: Sequence[Row], defaults: Plain) -> dict[str, set[str]]:
    """Return the states of each base that rows begin from, by its name or identity as written."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for one in _references(row, defaults):
            if one.source == "run":
                found.setdefault(one.target, set()).add(one.state)
    return found


def _references(row: Row, defaults: Plain) -> list[Reference]:
    """Return the bases that a row names; empty if one is written wrongly, which loading the row reports."""
    try:
        return references_of_row(row, defaults)
    except ConfigError:
        return []


def _named_rows(row: Row, defaults: Plain, by_name: Mapping[str, Row]) -> tuple[list[str], bool]:
    """Return the names of the rows that a row begins from, and whether it names a base by its identity."""
    runs = [one.target for one in _references(row, defaults) if one.source == "run"]
    known = [name for name in runs if name in by_name]
    return known, len(known) < len(runs)


def _cycle(names: Sequence[str], by_name: Mapping[str, Row], defaults: Plain) -> ConfigError:
    """Return the error for rows that begin from one another.

    Args:
        names: Names of the rows, each of which begins from the next; the first is also the last.
    """
    first = names.index(min(names[:-1]))
    around = [*names[first:-1], *names[: first + 1]]
    row = by_name[around[0]]
    one = next(
        one
        for one in references_of_row(row, defaults)
        if one.source == "run" and one.target == around[1]
    )
    chain = f"begins from itself: {' from '.join(around)}"
    found = "names the row itself" if len(around) == 2 else chain
    return ConfigError(
        f"{row.where}: {one.key}={one.text} {found}, expected a run that does not depend on it; name another base, or "
        "write null in this cell to begin from initial weights"
    )


def check_init(row: Row, bases: Sequence[Base]) -> None:
    """Reject settings of how weights are loaded in a row that loads none.

    Raises:
        ConfigError: The row sets a key of `init`, and names no base with `init_from`.
    """
    given = [key for key in row.settings if key.startswith("init.")]
    if given and not any(one.kind == "init" for one in bases):
        raise ConfigError(
            f"{row.where}: {given[0]} is given without init_from, expected the weights that it concerns; name a base, "
            f"such as init_from=run:NAME, or leave {given[0]} out"
        )


class Bases:
    """The bases of the rows of a project, found in the order of `in_order`.

    Args:
        layout: Paths of the project.
        digests: Cached digests of files.
        rows: Names of the rows of the table.
    """

    def __init__(self, layout: ResultsLayout, digests: FileDigests, rows: Collection[str]) -> None:
        self._layout, self._digests, self._rows = layout, digests, rows
        self._documents: dict[str, IdentityDocument] = {}
        self._digests_of_rows: dict[str, str] = {}

    def add(self, row: str, document: IdentityDocument) -> None:
        """Add the identity document of a loaded row."""
        self._documents[row] = document

    def document(self, base: Base) -> IdentityDocument | None:
        """Return the identity document of a run that a row begins from; None if it is not recorded here."""
        for row, document in self._documents.items():
            if self._digest(row) == base.identity:
                return document
        try:
            return read_object(self._layout.run(base.run) / "identity.json", remedy="")
        except DataError:
            return None

    def of(self, references: Sequence[Reference], where: str) -> tuple[Base, ...] | None:
        """Return the bases of a row; None if the row of one of them has errors, which are listed already.

        Raises:
            ConfigError: A base is unknown, or its file is missing.
            DataError: A file cannot be read.
        """
        found = [self._find(one, f"{where}: {one.key}={one.text}") for one in references]
        return None if None in found else tuple(one for one in found if one)

    def _digest(self, row: str) -> str | None:
        """Return the whole digest of a loaded row, computed only for bases."""
        if row not in self._digests_of_rows and row in self._documents:
            self._digests_of_rows[row] = digest(self._documents[row])
        return self._digests_of_rows.get(row)

    def _find(self, one: Reference, what: str) -> Base | None:
        if one.source != "run":
            return Base(
                kind=one.kind,
                source=one.source,
                name=one.text,
                identity=content_of(one.source, one.target, self._layout, self._digests, what),
                path=self._layout.root / one.target,
            )
        is_row = one.target in self._rows
        identity = self._digest(one.target) if is_row else self._identity(one.target, what)
        if identity is None:
            return None
        run = identity[:DIGEST_LENGTH]
        return Base(
            kind=one.kind,
            source="run",
            name=one.text,
            identity=identity,
            run=run,
            state=one.state,
            path=self._layout.model(run),
        )

    def _identity(self, target: str, what: str) -> str:
        """Return the whole digest of a run from its beginning.

        Raises:
            ConfigError: No run, or several runs have a digest that begins so.
        """
        if len(target) < 4 or not _HEX.issuperset(target):
            raise ConfigError(f"{what} is no run of the table; {self._hint(target)}")
        known = filter(None, map(self._digest, self._documents))
        found = {one for one in known if one.startswith(target)}
        found |= set(_sealed_digests(self._layout, target))
        found = found or set(_digests_of_bases(self._layout, target))
        if len(found) > 1:
            shown = ", ".join(sorted(one[:DIGEST_LENGTH] for one in found))
            raise ConfigError(
                f"{what} begins the identities of {len(found)} runs: {shown}; write more digits"
            )
        if not found and len(target) == len(digest("")):
            return target
        if not found:
            raise ConfigError(
                f"{what} is no run of the table, and {self._layout.folder_of('run')} has none with an identity that "
                f"begins so; {self._hint(target)}"
            )
        return found.pop()

    def _hint(self, target: str) -> str:
        grid = [name for name in self._rows if name.startswith(f"{target}_")]
        if grid:
            return f"its grid has several rows; name one of them, such as run:{grid[0]}"
        if earlier := identities_of(self._layout, "run", target):
            return f"an earlier run had this name; write run:{earlier[0]} to begin from its result"
        return suggest(target, self._rows)


def content_of(
    source: Source, target: str, layout: ResultsLayout, digests: FileDigests, what: str
) -> str:
    """Return the digest of the content of a file or folder of weights.

    Args:
        source: `file` or `hf`.
        target: Path, relative to the folder of the project.
        what: Row and setting, the start of messages.

    Raises:
        ConfigError: The path is missing, of another kind, or leads into the results.
        DataError: A file cannot be read.
    """
    path = layout.root / target
    real = path.resolve()
    if real.is_relative_to(layout.folder_of("run").resolve()):
        run = real.relative_to(layout.folder_of("run").resolve()).parts[0]
        raise ConfigError(
            f"{what} leads into the results of a run, expected run:, so that its identity counts; write run:{run}"
        )
    if source == "hf":
        check_folder(path, what, has_weights=True)
        return digest({file.name: digests.digest(file) for file in files_of_folder(path)})
    if path.suffix not in ENDINGS:
        raise ConfigError(
            f"{what} ends in {path.suffix or 'nothing'}, expected one of {', '.join(ENDINGS)}; "
            "save the weights as safetensors"
        )
    if not path.is_file():
        kind = (
            "is a folder; use hf: for a folder of transformers" if path.is_dir() else "is missing"
        )
        remedy = "" if path.is_dir() else f"; put the weights at {target}, or correct the path"
        raise ConfigError(f"{what} {kind}{remedy}")
    return digests.digest(path)


def files_of_folder(folder: Path) -> list[Path]:
    """Return the files of a folder of transformers that the weights are read from."""
    patterns = ("*.safetensors", "*.safetensors.index.json")
    return [file for pattern in patterns for file in sorted(folder.glob(pattern))]


def with_content(
    bases: Sequence[Base], layout: ResultsLayout, digests: FileDigests, where: str
) -> tuple[Base, ...]:
    """Return bases with the present content of files and folders, see `content_of`."""
    return tuple(
        one
        if one.run
        else replace(
            one,
            identity=content_of(
                one.source, one.name.partition(":")[2], layout, digests, f"{where}: {one.name}"
            ),
        )
        for one in bases
    )


def _sealed_digests(layout: ResultsLayout, start: str) -> Iterator[str]:
    """Yield the whole digests of the recorded runs with this beginning."""
    for folder in layout.folder_of("run").glob(f"{start[:DIGEST_LENGTH]}*"):
        try:
            found = digest(read_object(folder / "identity.json", remedy=""))
        except DataError:
            continue  # not resolved yet, or damaged, which `shardline verify` reports
        if found.startswith(start):
            yield found


def _digests_of_bases(layout: ResultsLayout, start: str) -> Iterator[str]:
    """Yield the whole digests of deleted runs, from the identity documents of runs that began from them."""
    for file in layout.folder_of("run").glob("*/identity.json"):
        try:
            document = read_object(file, remedy="")
        except DataError:
            continue
        for found in digests_in(document):
            if found.startswith(start):
                yield found


def digests_in(document: Plain) -> list[str]:
    """Return the whole digests of the runs that the run of an identity document begins from."""
    inputs = document.get("inputs")
    bases = inputs.get("bases") if isinstance(inputs, Mapping) else None
    found = [one.get("run") for one in bases or () if isinstance(one, Mapping)]
    return [one for one in found if isinstance(one, str)]
