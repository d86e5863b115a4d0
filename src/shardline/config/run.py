"""A run that the config asks for: a training and its evaluation, and what its model predicts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from shardline.config.dataset import Dataset
from shardline.config.layout import ResultsLayout
from shardline.config.run_spec import RunSpec
from shardline.config.runs import Row
from shardline.config.script_environment import ScriptEnvironment
from shardline.config.settings.run import RunSettings
from shardline.core.canonical import short_digest


@dataclass(frozen=True)
class Part:
    """A dataset of a run.

    Attributes:
        weight: its share of the samples; those of a run sum to 1.
    """

    dataset: Dataset
    weight: Fraction = Fraction(1)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training and its evaluation; rows of the table that ask for the same are one run.

    Rows that ask for one training and two evaluations are two runs with one `id`.

    Attributes:
        id: digest of the training's identity; names its folders.
        layout: where its files lie.
        rows: what the table asks for.
        parts: its datasets, in the order of their ids; one, or those of a mix.
        model_class: import path of the model, or the script in its one spelling.
        code_paths: import paths of the model and of what samples go through, by part of the identity
            document, see `sample_code.paths_of`.
        settings: every setting, resolved.
        environment: what its script runs in, where it has an environment of its own.
        document: identity document of the training.
        evaluation_document: identity document of the evaluation.
        definitions: what tells a change of the user's code, see `Documents.definitions`.
    """

    id: str
    layout: ResultsLayout
    rows: tuple[Row, ...]
    parts: tuple[Part, ...]
    model_class: str
    code_paths: dict[str, str]
    settings: RunSettings
    document: dict[str, Any]
    evaluation_document: dict[str, Any]
    environment: ScriptEnvironment | None = None
    definitions: dict[str, Any] = field(default_factory=dict)

    @property
    def dataset(self) -> Dataset:
        """The dataset, or the first of a mix."""
        return self.parts[0].dataset

    @property
    def dataset_name(self) -> str:
        """What people read of its datasets: the names, in a mix with their weights."""
        if len(self.parts) == 1:
            return self.dataset.name
        largest = sorted(self.parts, key=lambda part: (-part.weight, part.dataset.name))
        return " + ".join(f"{float(part.weight):.4g} {part.dataset.name}" for part in largest)

    @property
    def row(self) -> Row:
        """The first of its rows."""
        return self.rows[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Its names in the table."""
        return tuple(row.name for row in self.rows)

    @property
    def name(self) -> str:
        """Its names as people read them."""
        return ", ".join(self.names)

    @property
    def in_table(self) -> bool:
        """Whether a row of the table asks for it, and not a scaling study alone."""
        return any(row.in_table for row in self.rows)

    @property
    def set_by_row(self) -> list[str]:
        """The settings that one of its rows sets, by dotted key."""
        return sorted({key for row in self.rows for key in row.settings})

    @property
    def varied(self) -> dict[str, Any]:
        """The settings that vary within a grid of the table, by dotted key."""
        return {key: value for row in reversed(self.rows) for key, value in row.varied.items()}

    @cached_property
    def folder(self) -> Path:
        """The folder of sealed results."""
        return self.layout.run(self.id)

    @cached_property
    def model(self) -> Path:
        """The sealed model."""
        return self.layout.model(self.id)

    @property
    def has_model(self) -> bool:
        """Whether a sealed model is here, or is known to be in the storage."""
        return self.model.exists() or pointer(self.model).exists()

    @property
    def environment_file(self) -> Path | None:
        """The file that describes the environment built for its script; None where none is built."""
        if self.environment and self.environment.has_rule:
            return self.layout.environment(self.environment.address)
        return None

    @cached_property
    def evaluation_id(self) -> str:
        """The evaluation's identity digest."""
        return short_digest(self.evaluation_document)

    @cached_property
    def evaluation(self) -> Path:
        """The sealed evaluation."""
        return self.layout.evaluation(self.id, self.evaluation_id)

    @property
    def is_sealed(self) -> bool:
        """Whether training and evaluation are done."""
        return self.has_model and self.evaluation.exists()


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Rows that a run's model predicts.

    Attributes:
        names: its names in the config; none of one that a command asks for.
        layout: where its files lie.
        spec: the run.
        code_paths: import paths of the model and of what samples go through.
        trained_on: weight of each dataset of the run by id, see `DatasetPlace`.
        rows: the dataset whose rows are predicted, or files.
        split: which of its rows.
        document: the identity document.
    """

    names: tuple[str, ...] = ()
    layout: ResultsLayout
    spec: RunSpec
    code_paths: Mapping[str, str]
    trained_on: Mapping[str, str]
    rows: Dataset
    split: str
    document: dict[str, Any]

    @cached_property
    def id(self) -> str:
        """Digest of its identity."""
        return short_digest(self.document)

    @property
    def file(self) -> Path:
        """The predictions, as Parquet."""
        return self.layout.prediction(self.spec.run, self.id)

    @property
    def record(self) -> Path:
        """What they were made from."""
        return self.file.with_suffix(".json")

    @property
    def parts(self) -> Path:
        """The folder of its parts in the store, from the project's folder."""
        return self.layout.declared.prediction_parts(self.spec.run, self.id)

    @property
    def title(self) -> str:
        """What messages call it."""
        names = ", ".join(self.names) or self.rows.name
        return f"{names} by {self.spec.title} ({self.id})"


def pointer(file: Path) -> Path:
    """Return the file that names where in the storage a file is that was too large to be fetched."""
    return file.with_name(f"{file.name}.url")
