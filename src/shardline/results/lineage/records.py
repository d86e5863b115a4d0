"""What the sealed files of a project say of the jobs that wrote them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shardline.config.layout import ResultsLayout
from shardline.config.names import names_that_have_been
from shardline.core.errors import ConfigError
from shardline.records.base import Record, read_record
from shardline.records.datasets import Manifest
from shardline.records.runs import TrainingProvenance

REMEDY = "bring it back, or run the pipeline again to write it"
_Record = TypeVar("_Record", bound=Record)


@dataclass(frozen=True)
class Records:
    """Reads sealed files by their names: paths from the project's folder.

    Attributes:
        layout: where the files lie.
    """

    layout: ResultsLayout

    @property
    def names(self) -> ResultsLayout:
        """The layout that spells names."""
        return self.layout.declared

    def at(self, name: str | Path) -> Path:
        """Return where a file lies."""
        return self.layout.root / name

    def name_of(self, path: Path) -> str:
        """Return a path from the project's folder, links followed; in the store by the store's name."""
        real, names = path.resolve(), self.names
        for shown in (names.store, names.results, Path()):
            folder = self.at(shown).resolve()
            if real.is_relative_to(folder):
                return str(shown / real.relative_to(folder))
        return str(real)

    def read(self, name: str | Path, kind: type[_Record]) -> _Record:
        """Return the record in a file.

        Raises:
            DataError: it cannot be read, or has another form.
        """
        return read_record(self.at(name), kind, remedy=REMEDY)

    def read_if_there(self, name: Path, kind: type[_Record]) -> _Record | None:
        """Return the record in a file; None if there is no such file.

        Raises:
            DataError: it cannot be read, or has another form.
        """
        return self.read(name, kind) if self.at(name).exists() else None

    def manifest(self, dataset: str) -> Manifest | None:
        """Return the manifest of a dataset; None before it is sealed."""
        return self.read_if_there(self.names.manifest(dataset), Manifest)

    def rows(self, run: str) -> str:
        """Return the rows that a run has had, by their names."""
        names = names_that_have_been(self.layout, "run").get(run, [])
        return f"row {', '.join(names)}" if names else "a row"


def record_of(provenance: TrainingProvenance) -> Mapping[str, Any]:
    """Return what a training recorded of itself; of older ones, what they have of it."""
    own = {key: getattr(provenance, key) for key in ("started", "ended", "host")}
    return provenance.action or {key: value for key, value in own.items() if value is not None}


def expect_name(name: Path, known: set[str]) -> None:
    """Reject a file that no job is known to write.

    Raises:
        ConfigError: names the files that are known.
    """
    if name.name not in known:
        raise ConfigError(
            f"nothing is recorded of {name}, expected one of {', '.join(sorted(known))}; name one of these"
        )
