"""Bases of runs: the runs, studies, files and folders that a run begins from or combines."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import UNSET

from shardline.config.base_files import content_of
from shardline.config.layout import ResultsLayout, identities_of
from shardline.config.references import Kind, Reference, Source
from shardline.config.run_table import Row
from shardline.config.settings import Plain
from shardline.core.canonical import DIGEST_LENGTH, digest
from shardline.core.digests import FileDigests
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import read_object
from shardline.core.suggest import suggest
from shardline.records.identities import IdentityDocument
from shardline.records.origins import BaseRef

_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, kw_only=True)
class Base:
    """What a run begins from or combines: another run, a study, or a file or folder of weights.

    Attributes:
        kind: What the run does with the base.
        source: `run`, `file`, `hf`, a folder of transformers, or `sweep`, the trials of a finished study.
        name: Base as written in the row.
        identity: Digest of the identity document of a run or study, or of the content of a file or folder, whole.
        run: Id of a run; empty for a file or folder.
        state: Which weights of a run: `best`, the sealed ones, or `last`, of its last training checkpoint.
        trials: Number of trials of a study; 0 for others.
        path: Sealed weights of a run, finished study, or the file or folder; absolute.
        is_outside: Whether the run is not in the config, so that no job makes its weights; see `Project.link_bases`.
    """

    kind: Kind
    source: Source
    name: str
    identity: str
    run: str = ""
    state: str = "best"
    trials: int = 0
    path: Path
    is_outside: bool = False

    @property
    def is_made(self) -> bool:
        """Whether `path` is a result, which a job makes or has made."""
        return self.source in ("run", "sweep")

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
            trials=self.trials or UNSET,
        )

    @property
    def resolved(self) -> str:
        """The base without the name of a run or sweep, as `run.json` contains it."""
        if self.source == "sweep":
            return f"sweep:{self.identity[:DIGEST_LENGTH]}"
        if not self.run:
            return self.name
        return f"run:{self.run}" + (f"@{self.state}" if self.state != "best" else "")


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


@dataclass(frozen=True, kw_only=True)
class Study:
    """The study of a sweep, as a row depends on it.

    Attributes:
        identity: Digest of all that decides its proposals, whole.
        trials: Number of trials.
        path: The finished study.
    """

    identity: str
    trials: int
    path: Path


class Bases:
    """The bases of the rows of a project, found in the order of `in_order`.

    Args:
        layout: Paths of the project.
        digests: Cached digests of files.
        rows: Names of the rows of the table.
        find_study: Function that returns the study of a sweep from its name and the identity document of its base run.
        sweeps: Row whose settings each sweep varies, by name of the sweep.
    """

    def __init__(
        self, layout: ResultsLayout, digests: FileDigests, rows: Collection[str],
        find_study: Callable[[str, IdentityDocument], Study], sweeps: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._layout, self._digests, self._rows = layout, digests, rows
        self._find_study, self._sweeps = find_study, sweeps
        self._documents: dict[str, IdentityDocument] = {}
        self._digests_of_rows: dict[str, str] = {}

    def add(self, row: str, document: IdentityDocument) -> None:
        """Add the identity document of a loaded row."""
        self._documents[row] = document

    def document(self, base: Base) -> IdentityDocument | None:
        """Return the identity document of a run that a row begins from, or of the base run of its study.

        None: it is not recorded here.
        """
        if base.source == "sweep":
            return self._documents.get(self._sweeps[base.name])
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
        if one.source == "sweep":
            return self._study(one, what)
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

    def _study(self, one: Reference, what: str) -> Base | None:
        if one.target not in self._sweeps:
            hint = f"write [run:{one.target}] for a run; " if one.target in self._rows else ""
            known = suggest(one.target, self._sweeps) if self._sweeps else "add it under `sweeps`"
            raise ConfigError(f"{what} is no sweep of the config; {hint}{known}")
        base = self._sweeps[one.target]
        if base not in self._rows:
            raise ConfigError(
                f"{what}: its base {base} is no run of the table; {suggest(base, self._rows)}"
            )
        if base not in self._documents:
            return None  # its errors are listed
        found = self._find_study(one.target, self._documents[base])
        return Base(
            kind=one.kind,
            source="sweep",
            name=one.text,
            identity=found.identity,
            trials=found.trials,
            path=found.path,
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


def with_content(
    bases: Sequence[Base], layout: ResultsLayout, digests: FileDigests, where: str
) -> tuple[Base, ...]:
    """Return bases with the present content of files and folders, see `content_of`."""
    return tuple(
        one
        if one.is_made
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
    found = [one.get("run") for one in _bases_in(document)]
    return [one for one in found if isinstance(one, str)]


def has_study(document: Plain) -> bool:
    """Return whether the run of an identity document combines the trials of a study."""
    return any("sweep" in one for one in _bases_in(document))


def _bases_in(document: Plain) -> list[Plain]:
    inputs = document.get("inputs")
    bases = inputs.get("bases") if isinstance(inputs, Mapping) else None
    return [one for one in bases or () if isinstance(one, Mapping)]
