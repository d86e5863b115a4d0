"""Read the sealed records of a project by file name, each file once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from shardline.config.layout import ResultsLayout
from shardline.core.files import read_object
from shardline.core.redaction import mask_values
from shardline.records.base import Record, decode
from shardline.records.datasets import DatasetProvenance, Manifest
from shardline.records.evaluations import EvaluationResult
from shardline.records.runs import ResolvedRun
from shardline.records.trainings import TrainingProvenance

_Record = TypeVar("_Record", bound=Record)


@dataclass(frozen=True, kw_only=True)
class SealedRecords:
    """Reader of sealed files by declared name, a path from the project's folder.

    Attributes:
        layout: layout of the project's files.
        remedy: remedy for a missing or damaged file, for messages.
        places: paths of files that are not at their declared name, for example with a storage plugin.
        is_masked: whether to mask likely secrets.
    """

    layout: ResultsLayout
    remedy: str
    places: Mapping[str, Path] = field(default_factory=dict)
    is_masked: bool = False
    _known: dict[str, Record] = field(default_factory=dict)

    def at(self, name: str | Path) -> Path:
        """Return the path of a file."""
        return self.places.get(str(name), self.layout.root / name)

    def read(self, name: str | Path, kind: type[_Record]) -> _Record:
        """Return the record in a file.

        Raises:
            DataError: The file cannot be read or is malformed.
        """
        if not isinstance(known := self._known.get(str(name)), kind):
            document: Any = read_object(self.at(name), remedy=self.remedy)
            document = mask_values(document) if self.is_masked else document
            known = decode(document, kind, where=self.at(name), remedy=self.remedy)
            self._known[str(name)] = known
        return known

    def read_if_there(self, name: str | Path, kind: type[_Record]) -> _Record | None:
        """Return the record in a file; None if the file does not exist."""
        return self.read(name, kind) if self.at(name).exists() else None

    def spec(self, run: str) -> ResolvedRun:
        """Return the resolved settings of a run."""
        return self.read(self.layout.declared.run(run) / "run.json", ResolvedRun)

    def training(self, run: str) -> TrainingProvenance | None:
        """Return the provenance of a training; None before the training has ended."""
        path = self.layout.declared.run(run) / "provenance.json"
        return self.read_if_there(path, TrainingProvenance)

    def evaluation(self, run: str, evaluation: str) -> EvaluationResult:
        """Return an evaluation."""
        return self.read(self.layout.declared.evaluation(run, evaluation), EvaluationResult)

    def manifest(self, dataset: str) -> Manifest | None:
        """Return the manifest of a dataset; None before the dataset is sealed."""
        return self.read_if_there(self.layout.declared.manifest(dataset), Manifest)

    def dataset(self, dataset: str) -> DatasetProvenance | None:
        """Return the provenance of a dataset; None if it does not exist."""
        path = self.layout.declared.manifest(dataset).with_name("provenance.json")
        return self.read_if_there(path, DatasetProvenance)
