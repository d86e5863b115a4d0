"""Datasets, runs, predictions and scaling studies of a config, resolved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from shardline.config.bases import Base
from shardline.config.layout import ResultsLayout
from shardline.config.resolved import InitWeights, Member, PythonObject, RunSpec
from shardline.config.run_table import Row
from shardline.config.scripts import ScriptEnvironment
from shardline.config.settings import Plain
from shardline.config.settings.config import DatasetSettings
from shardline.config.settings.run_settings import RunSettings
from shardline.config.source_files import sizes_of_files
from shardline.core.canonical import digest, short_digest
from shardline.core.errors import ConfigError
from shardline.core.urls import is_url, open_table, without_secrets
from shardline.identity.class_kind import Kind
from shardline.records.identities import IdentityDocument

# see `Documents.definitions`
Definitions = dict[str, dict[str, dict[str, str]]]


@dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """A dataset to build.

    Attributes:
        names: Names in the config. Entries with the same rows are one dataset.
        id: Digest of the identity document; names the folders.
        layout: Paths of the project.
        settings: Entry in the config, with the number of shards.
        source_class: Import path of the source class.
        source: `source` of the entry, with the names and splits of the files.
        files: External files that the source reads, absolute.
        document: Identity document.
        definitions: Digests of the code of the user, see `Documents.definitions`.
        read_as: For files to predict, the dataset with the source that reads them.
        kind: Kind of the source class, see `identity.class_kind`.
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
    kind: Kind = "source"

    @property
    def name(self) -> str:
        """All names, separated by commas."""
        return ", ".join(self.names)

    @property
    def manifest(self) -> Path:
        """The sealed manifest."""
        return self.layout.manifest(self.id)

    @property
    def provenance(self) -> Path:
        """The provenance of shards and manifest."""
        return self.manifest.with_name("provenance.json")

    @property
    def asset(self) -> Path:
        """The record of the data asset of Azure ML, if the dataset is registered."""
        return self.manifest.with_name("data_asset.json")

    @property
    def num_shards(self) -> int:
        """The number of shards; `auto` is already resolved."""
        return int(self.settings.shards)

    @property
    def has_plan(self) -> bool:
        """Whether the splits need a pass over all rows, before the shards are written."""
        splits = self.settings.splits
        return any(getattr(splits, key, None) for key in ("stratify", "time", "balanced"))

    @property
    def tokenizer(self) -> Path | None:
        """The file of the tokenizer, if the source uses one."""
        found = Path(self.source.get("tokenizer", ""))
        return found if found.is_absolute() else None

    @property
    def python(self) -> PythonObject | None:
        """The torch dataset or data module that the rows come from; None for a source."""
        if self.kind == "source":
            return None
        return PythonObject(
            path=self.source_class,
            options=self.source.get("options", {}),
            files=[*map(str, self.files)],
        )

    @property
    def prepared(self) -> Path | None:
        """The file that `prepare_data` of a data module writes; None if there is no such job."""
        is_asked = self.kind in ("module", "unknown") and self.read_as is None
        return self.layout.prepared(self.id) if is_asked else None

    @property
    def parts(self) -> dict[str, range]:
        """The shards that each job writes, by name of the part."""
        shards, step = self.num_shards, self.settings.shards_per_job
        ranges = [range(first, min(first + step, shards)) for first in range(0, shards, step)]
        return {f"{part.start:05d}-{part.stop - 1:05d}": part for part in ranges}


def order_of_part(name: str) -> tuple[int, int, str]:
    """Return the sort key of a part: numbers of its shards, since text sorts numbers wrongly."""
    shards = shards_of_part(name)
    return shards.start, shards.stop, name


def shards_of_part(name: str) -> range:
    """Return the shards of a part by its name; empty for other names."""
    first, _, last = name.partition("-")
    return range(int(first), int(last) + 1) if first.isdecimal() and last.isdecimal() else range(0)


@dataclass(frozen=True)
class WeightedDataset:
    """A dataset of a run with its weight.

    Attributes:
        weight: Share of the samples. The weights of a run sum to 1.
    """

    dataset: DatasetPlan
    weight: Fraction = Fraction(1)


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A training and its evaluation. Rows of the table with equal identities are one run.

    Rows with one training and two evaluations are two runs with the same `id`.

    Attributes:
        id: Digest of the identity document of the training; names the folders.
        layout: Paths of the project.
        rows: Rows of the table for this run.
        parts: Datasets of the run in the order of their ids, with weights.
        model_class: Import path of the model, or the script in normal form.
        code_paths: Import paths of model, transforms, collate function and metrics, by part of the
            identity document, see `code_paths.paths_of`.
        settings: All settings, resolved.
        environment: Environment of the script, if it has its own.
        document: Identity document of the training.
        evaluation_document: Identity document of the evaluation.
        definitions: Digests of the code of the user, see `Documents.definitions`.
        lightning: Packages of Lightning that the code imports, see `Documents.lightning_of`.
        bases: What the run begins from.
        needed_states: States of this run that other runs of the config begin from, see `Base.state`.
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
    lightning: tuple[str, ...] = ()
    bases: tuple[Base, ...] = ()
    needed_states: tuple[str, ...] = ()

    @property
    def dataset(self) -> DatasetPlan:
        """The dataset, or the first dataset of a mix."""
        return self.parts[0].dataset

    @property
    def dataset_name(self) -> str:
        """The names of the datasets, in a mix with weights."""
        if len(self.parts) == 1:
            return self.dataset.name
        largest = sorted(self.parts, key=lambda part: (-part.weight, part.dataset.name))
        return " + ".join(f"{float(part.weight):.4g} {part.dataset.name}" for part in largest)

    @property
    def row(self) -> Row:
        """The first row of the run."""
        return self.rows[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the run in the table."""
        return tuple(row.name for row in self.rows)

    @property
    def name(self) -> str:
        """All names, separated by commas."""
        return ", ".join(self.names)

    @property
    def in_table(self) -> bool:
        """Whether the run is in the table, and not only in a scaling study."""
        return any(row.in_table for row in self.rows)

    @property
    def num_folds(self) -> int | None:
        """The number of folds of the dataset, if the run tests on a fold."""
        if self.settings.tested_fold is None:
            return None
        return int(getattr(self.dataset.settings.splits, "folds", 0)) or None

    @property
    def set_by_row(self) -> list[str]:
        """The dotted keys of the settings that a row sets."""
        return sorted({key for row in self.rows for key in row.settings})

    @property
    def varied(self) -> dict[str, object]:
        """The settings that vary within a grid of the table, by dotted key."""
        return {key: value for row in reversed(self.rows) for key, value in row.varied.items()}

    @property
    def spec(self) -> RunSpec:
        """The run as its ranks receive it, without the packages to install."""
        return RunSpec(
            run=self.id,
            name=self.name,
            identity=digest(self.document),
            datasets={part.dataset.id: str(part.weight) for part in self.parts},
            model=self.row.model,
            model_class=self.model_class,
            settings=self.settings,
            lightning=self.lightning,
            init=self._init,
            bases=tuple(one.record for one in self.bases),
            members=tuple(
                Member(run=one.run, file=one.path, title=one.name)
                for one in self.bases
                if one.kind != "init" and one.run
            ),
        )

    @property
    def members_of_ensemble(self) -> list[Path]:
        """The sealed models whose outputs this run averages; empty if it is no ensemble.

        If it averages the trials of a study, this is its own record, which names them.
        """
        record = self.folder / "provenance.json"
        return [
            record if one.source == "sweep" else one.path
            for one in self.bases
            if one.kind == "ensemble"
        ]

    @property
    def study(self) -> Base | None:
        """The sweep whose trials this run combines."""
        return next((one for one in self.bases if one.source == "sweep"), None)

    @property
    def _init(self) -> InitWeights | None:
        base = next((one for one in self.bases if one.kind == "init"), None)
        if base is None or base.source == "sweep":
            return None
        init = self.settings.init
        return InitWeights(
            source=base.source,
            name=base.name,
            state=base.state,
            file=base.path,
            sha256="" if base.run else base.identity,
            rename=init.rename or {},
            ignore=init.ignore,
            strict=init.strict,
            part=init.part,
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
        """Whether the sealed model exists here, or is known to be in the storage."""
        return self.model.exists() or pointer(self.model).exists()

    @property
    def environment_file(self) -> Path | None:
        """The file that describes the environment built for the script, if one is built."""
        if self.environment and self.environment.has_rule:
            return self.layout.environment(self.environment.address)
        return None

    @cached_property
    def evaluation_id(self) -> str:
        """The digest of the identity document of the evaluation."""
        return short_digest(self.evaluation_document)

    @cached_property
    def evaluation(self) -> Path:
        """The sealed evaluation."""
        return self.layout.evaluation(self.id, self.evaluation_id)

    @property
    def is_sealed(self) -> bool:
        """Whether training and evaluation are sealed."""
        return self.has_model and self.evaluation.exists()


@dataclass(frozen=True, kw_only=True)
class PredictionPlan:
    """A prediction: rows, and the run whose model predicts them.

    Attributes:
        names: Names in the config; empty for a prediction of a command.
        layout: Paths of the project.
        spec: The run.
        code_paths: Import paths of model, transforms and collate function.
        trained_on: Weight of each dataset of the run by id, see `DatasetPlace`.
        rows: Dataset, or files as a dataset, to predict.
        split: Split to predict.
        document: Identity document.
        folds: Run and id of the prediction of each fold, if they are joined into one file; `spec` is
            then the run of the first fold.
    """

    names: tuple[str, ...] = ()
    layout: ResultsLayout
    spec: RunSpec
    code_paths: Mapping[str, str]
    trained_on: Mapping[str, str]
    rows: DatasetPlan
    split: str
    document: IdentityDocument
    folds: tuple[tuple[str, str], ...] = ()

    @cached_property
    def id(self) -> str:
        """The digest of the identity document."""
        return short_digest(self.document)

    @property
    def fold(self) -> int | None:
        """The fold of the rows, if the run tests on a fold of the same dataset."""
        return self.spec.settings.tested_fold if self.rows.id in self.spec.datasets else None

    @property
    def file(self) -> Path:
        """The predictions as a Parquet file."""
        return self.layout.prediction(self.spec.run, self.id)

    @property
    def record(self) -> Path:
        """The record of the prediction."""
        return self.file.with_suffix(".json")

    @property
    def read(self) -> list[Path]:
        """The files that the file is written from: the record of the parts, or the files of the folds."""
        if not self.folds:
            return [self.record.with_suffix(".parts.json")]
        files = [self.layout.prediction(run, key) for run, key in self.folds]
        return [*files, *(file.with_suffix(".json") for file in files)]

    @property
    def parts(self) -> Path:
        """The folder of the parts in the store, relative to the project folder."""
        return self.layout.declared.prediction_parts(self.spec.run, self.id)

    @property
    def title(self) -> str:
        """The name of the prediction in messages."""
        names = ", ".join(self.names) or self.rows.name
        return f"{names} by {self.spec.title} ({self.id})"


def pointer(file: Path) -> Path:
    """Return the file with the storage URL of a file that was too large to download."""
    return file.with_name(f"{file.name}.url")


# Only what the identity covers decides the number of shards: the digest of a file implies its size.
SHARD_BYTES = 64_000_000
_PACKED = 4  # bytes per byte of a gzip file: 4.7 for MNIST, 3 to 5 for CSV
_PACKED_TEXT = (".gz", ".zip", ".zst", ".bz2", ".xz")  # text files that sources unpack
_ROW_BYTES = 16  # label and id


def count_shards(
    source: Plain, files: Sequence[Path], workdir: Path, downloads: Path, where: str
) -> int:
    """Return the number of shards of about 64 MB that a source fills.

    For resized images, the size follows from their number. For other sources, the shards are
    assumed to be as large as the files; packed files count four times.

    Args:
        source: Settings of the source, as `checked_sources.locate` returns them.
        files: Files of the source, absolute. Remote files may not be downloaded yet.
        workdir: Folder of the project.
        downloads: Folder for downloads of remote files.
        where: File and dataset, the start of messages.

    Raises:
        ConfigError: The size is unknown before rows are read.
        DataError: A file or table cannot be read.
    """
    if source["type"] == "delta":
        num_bytes = _bytes_of_table(source, workdir, where)
    elif source["type"] == "image_folder" and "size" in source:
        height, width = source["size"]
        channels = 1 if source["mode"] == "L" else 3
        num_bytes = len(files) * (height * width * channels + _ROW_BYTES)
    elif files:
        sizes = sizes_of_files(source, files, downloads, where)
        packed = _PACKED_TEXT if source["type"] in ("csv", "jsonl", "text") else (".gz",)
        factors = [_PACKED if path.suffix in packed else 1 for path in files]
        num_bytes = sum(size * factor for size, factor in zip(sizes, factors, strict=True))
    else:
        reads = "draws rows for each shard" if source["type"] == "synthetic" else "lists no files"
        raise _unknown(f"its source {source['type']} {reads}", where)
    return max(1, (num_bytes + SHARD_BYTES // 2) // SHARD_BYTES)


def _bytes_of_table(source: Plain, workdir: Path, where: str) -> int:
    """Return the size of a Delta table's files at its version, which its log records."""
    if is_url(source["table"]):
        shown = without_secrets(source["table"])
        raise _unknown(f"{shown} is read only together with its rows", where)
    # already absolute if `locate` found it
    table = open_table(str(workdir / source["table"]), source["version"])
    return int(sum(table.get_add_actions(flatten=True).column("size_bytes").to_pylist()))


def _unknown(reason: str, where: str) -> ConfigError:
    return ConfigError(
        f"{where}.shards=auto, but {reason}, so its size is not known, expected a number; "
        "set the number of shards, for files of about 64 MB"
    )
