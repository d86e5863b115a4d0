"""Datasets, runs, predictions and scaling studies of a config, resolved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from shardline.config.layout import ResultsLayout
from shardline.config.resolved import RunSpec
from shardline.config.run_table import Row
from shardline.config.scripts import ScriptEnvironment
from shardline.config.settings.config import DatasetSettings
from shardline.config.settings.run_settings import RunSettings
from shardline.config.source_files import sizes_of_files
from shardline.core.canonical import digest, short_digest
from shardline.core.errors import ConfigError
from shardline.core.urls import is_url, open_table, without_secrets
from shardline.records.identities import IdentityDocument

Mode = Literal["strong", "weak"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """One size of a study.

    Attributes:
        nodes: machines.
        devices: ranks on each machine.
        run: id of the run that trains at this size.
    """

    nodes: int
    devices: int
    run: str

    @property
    def ranks(self) -> int:
        """World size."""
        return self.nodes * self.devices

    @property
    def label(self) -> str:
        """Such as 2x4: nodes x devices."""
        return f"{self.nodes}x{self.devices}"


@dataclass(frozen=True, kw_only=True)
class Study:
    """A scaling study.

    Attributes:
        name: its key in the config.
        run: name of the run that it varies.
        mode: `strong` keeps the global batch, `weak` that of each rank.
        sizes: in the config's order.
    """

    name: str
    run: str
    mode: Mode
    sizes: tuple[Size, ...]

    @property
    def runs(self) -> frozenset[str]:
        """The ids of its runs."""
        return frozenset(size.run for size in self.sizes)


# digests of definitions, and modules that count as a whole, by part of the document; see `Documents.definitions`
Definitions = dict[str, dict[str, dict[str, str]]]


@dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """A dataset to be built.

    Attributes:
        names: its names in the config; entries that give the same rows are one dataset.
        id: its identity's digest; names its folders.
        layout: where its files lie.
        settings: its entry in the config, with the number of shards.
        source_class: import path of the source.
        source: the entry's `source`, with what the class gets of its files: their names and splits.
        files: external files that the source reads, absolute.
        document: the identity document.
        definitions: what tells a change of the user's code, see `Documents.definitions`.
        read_as: the dataset by whose source these are read, where they are files to be predicted.
    """

    names: tuple[str, ...]
    id: str
    layout: ResultsLayout
    settings: DatasetSettings
    source_class: str
    source: dict[str, Any]
    files: tuple[Path, ...]
    document: IdentityDocument
    definitions: Definitions = field(default_factory=dict)
    read_as: "DatasetPlan | None" = None

    @property
    def name(self) -> str:
        """Its names as people read them."""
        return ", ".join(self.names)

    @property
    def manifest(self) -> Path:
        """The sealed manifest."""
        return self.layout.manifest(self.id)

    @property
    def provenance(self) -> Path:
        """How shards and manifest were made."""
        return self.manifest.with_name("provenance.json")

    @property
    def asset(self) -> Path:
        """What it is as a data asset of Azure ML, where it is registered as one."""
        return self.manifest.with_name("data_asset.json")

    @property
    def num_shards(self) -> int:
        """Files that it is cut into, which `shards: auto` stands for no longer."""
        return int(self.settings.shards)

    @property
    def tokenizer(self) -> Path | None:
        """The tokenizer's file, which the source reads beside `files`; most have none."""
        found = Path(self.source.get("tokenizer", ""))
        return found if found.is_absolute() else None

    @property
    def parts(self) -> dict[str, range]:
        """The shards that each job writes, by part name."""
        shards, step = self.num_shards, self.settings.shards_per_job
        ranges = [range(first, min(first + step, shards)) for first in range(0, shards, step)]
        return {f"{part.start:05d}-{part.stop - 1:05d}": part for part in ranges}


def order_of_part(name: str) -> tuple[int, int, str]:
    """Return what parts are sorted by: their shards' numbers, whose names' order is no text's."""
    shards = shards_of_part(name)
    return shards.start, shards.stop, name


def shards_of_part(name: str) -> range:
    """Return the shards of a part by its name; none if it is no part's."""
    first, _, last = name.partition("-")
    return range(int(first), int(last) + 1) if first.isdecimal() and last.isdecimal() else range(0)


@dataclass(frozen=True)
class WeightedDataset:
    """A dataset of a run.

    Attributes:
        weight: its share of the samples; those of a run sum to 1.
    """

    dataset: DatasetPlan
    weight: Fraction = Fraction(1)


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A training and its evaluation; rows of the table that ask for the same are one run.

    Rows that ask for one training and two evaluations are two runs with one `id`.

    Attributes:
        id: digest of the training's identity; names its folders.
        layout: where its files lie.
        rows: what the table asks for.
        parts: its datasets, in the order of their ids; one, or those of a mix.
        model_class: import path of the model, or the script in its one spelling.
        code_paths: import paths of the model and of what samples go through, by part of the identity
            document, see `code_paths.paths_of`.
        settings: every setting, resolved.
        environment: what its script runs in, where it has an environment of its own.
        document: identity document of the training.
        evaluation_document: identity document of the evaluation.
        definitions: what tells a change of the user's code, see `Documents.definitions`.
    """

    id: str
    layout: ResultsLayout
    rows: tuple[Row, ...]
    parts: tuple[WeightedDataset, ...]
    model_class: str
    code_paths: dict[str, str]
    settings: RunSettings
    document: IdentityDocument
    evaluation_document: IdentityDocument
    environment: ScriptEnvironment | None = None
    definitions: Definitions = field(default_factory=dict)

    @property
    def dataset(self) -> DatasetPlan:
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
    def varied(self) -> dict[str, object]:
        """The settings that vary within a grid of the table, by dotted key."""
        return {key: value for row in reversed(self.rows) for key, value in row.varied.items()}

    @property
    def spec(self) -> RunSpec:
        """What its ranks are given of it, but for what is to be installed."""
        return RunSpec(
            run=self.id,
            name=self.name,
            identity=digest(self.document),
            datasets={part.dataset.id: str(part.weight) for part in self.parts},
            model=self.row.model,
            model_class=self.model_class,
            settings=self.settings,
        )

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
class PredictionPlan:
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
    rows: DatasetPlan
    split: str
    document: IdentityDocument

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


SHARD_BYTES = 64_000_000
_PACKED = 4  # what a byte of a gzip file unpacks to: 4.7 of MNIST, 3 to 5 of CSV
_ROW_BYTES = 16  # label and id


def count_shards(
    source: Mapping[str, Any], files: Sequence[Path], workdir: Path, downloads: Path, where: str
) -> int:
    """Return the number of shards of about 64 MB that a source fills.

    Images that are brought to one size are counted. What any other source reads is taken to
    fill as many bytes of shards as it has in its files, a gzip file four times as many.

    Args:
        source: its settings, as `sources.locate` found them.
        files: that it reads, absolute; remote ones may not be fetched yet.
        workdir: the project's folder.
        downloads: folder that remote files are fetched to.
        where: file and dataset, as messages begin.

    Raises:
        ConfigError: nothing is known before rows are read; asks for a number.
        DataError: a file or table cannot be read.
    """
    if source["type"] == "delta":
        num_bytes = _bytes_of_table(source, workdir, where)
    elif source["type"] == "image_folder" and "size" in source:
        height, width = source["size"]
        channels = 1 if source["mode"] == "L" else 3
        num_bytes = len(files) * (height * width * channels + _ROW_BYTES)
    elif files:
        sizes = sizes_of_files(source, files, downloads, where)
        factors = [_PACKED if path.suffix == ".gz" else 1 for path in files]
        num_bytes = sum(size * factor for size, factor in zip(sizes, factors, strict=True))
    else:
        reads = "draws rows for each shard" if source["type"] == "synthetic" else "lists no files"
        raise _unknown(f"its source {source['type']} {reads}", where)
    return max(1, (num_bytes + SHARD_BYTES // 2) // SHARD_BYTES)


def _bytes_of_table(source: Mapping[str, Any], workdir: Path, where: str) -> int:
    """Return the size of a Delta table's files at its version, which its log records."""
    if is_url(source["table"]):
        shown = without_secrets(source["table"])
        raise _unknown(f"{shown} is not read before its rows are", where)
    # absolute already where `locate` found it
    table = open_table(str(workdir / source["table"]), source["version"])
    return int(sum(table.get_add_actions(flatten=True).column("size_bytes").to_pylist()))


def _unknown(reason: str, where: str) -> ConfigError:
    return ConfigError(
        f"{where}.shards=auto, but {reason}, so that its size is not known, expected a number; "
        "give one that makes files of about 64 MB"
    )
