"""What was understood of the datasets of a config, built or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import UNSET

from shardline.config.checked_sources import SHIPPED_SOURCES, locate
from shardline.config.plans import DatasetPlan
from shardline.config.project import Project
from shardline.config.resolved import as_plain, as_type
from shardline.config.settings.config import DatasetSettings
from shardline.core.digests import FileDigests
from shardline.core.errors import ConfigError, ShardlineError
from shardline.records.base import read_record
from shardline.records.datasets import DatasetProvenance, ExampleRow, Manifest
from shardline.records.understood import understood
from shardline.results.sealed_run import REMAKE
from shardline.results.select import find_dataset


@dataclass(frozen=True, kw_only=True)
class ShownDataset:
    """What was understood of a dataset.

    Attributes:
        dataset: Names in the config.
        id: Id of the dataset.
        is_built: Whether it is sealed.
        read: What was understood, by name, see `records.understood`.
        picture: First image as a PNG data URL; empty without images.
        problem: Why the source cannot be read; empty if it can.
    """

    dataset: str
    id: str = ""
    is_built: bool = False
    read: dict[str, Any] = field(default_factory=dict)
    picture: str = ""
    problem: str = ""


def describe_datasets(project: Project, names: Sequence[str] = ()) -> list[ShownDataset]:
    """Return what was understood of datasets: from their records if they are built, else from the first rows.

    Args:
        names: Names or ids; none selects all datasets of the project.

    Raises:
        ConfigError: There is no such dataset.
    """
    chosen = [find_dataset(project, name) for name in names] or [*project.datasets.values()]
    return [_of_dataset(one) for one in {dataset.id: dataset for dataset in chosen}.values()]


def _of_dataset(dataset: DatasetPlan) -> ShownDataset:
    try:
        if dataset.manifest.exists():
            return _recorded(dataset)
        given = dataset.source_class, dataset.source, dataset.files, dataset.num_shards
        found = _first_rows(dataset.name, *given)
    except ShardlineError as error:
        return ShownDataset(dataset=dataset.name, id=dataset.id, problem=str(error))
    return ShownDataset(dataset=dataset.name, id=dataset.id, read=found.read, picture=found.picture)


def _recorded(dataset: DatasetPlan) -> ShownDataset:
    manifest = read_record(dataset.manifest, Manifest, remedy=REMAKE)
    inferred: dict[str, Any] = {}
    example = ExampleRow(values={})
    if dataset.provenance.exists():
        provenance = read_record(dataset.provenance, DatasetProvenance, remedy=REMAKE)
        inferred = provenance.inferred
        example = example if provenance.example is UNSET else provenance.example
    read = understood(
        inferred, dataset.source, manifest.schema, manifest=manifest, example=example.values
    )
    return ShownDataset(
        dataset=dataset.name, id=dataset.id, is_built=True, read=read, picture=example.picture
    )


def read_source(settings: Mapping[str, Any], workdir: Path) -> ShownDataset:
    """Return what is understood of an entry of `datasets` that no config has yet.

    Raises:
        ConfigError: The settings are wrong.
        DataError: The source cannot be read.
    """
    typed = as_type(dict(settings), DatasetSettings)
    with TemporaryDirectory() as folder:
        digests = FileDigests(Path(folder) / "digests.json")
        found = locate(as_plain(typed), workdir, Path(folder), digests, "datasets")
    kind = SHIPPED_SOURCES.get(str(found.source["type"]), str(found.source["type"]))
    return _first_rows("", kind, found.source, found.files, 1)


def _first_rows(
    name: str, source_class: str, source: Mapping[str, Any], files: Sequence[Path], num_shards: int
) -> ShownDataset:
    # imports torch and pyarrow, which other commands need not
    from shardline.training.checked_rows import NotReadableError, read_once
    from shardline.training.example_row import picture_of
    from shardline.training.rank_task import CheckedDataset

    nowhere = Path("/nonexistent")
    dataset = CheckedDataset(
        id="", name=name, manifest=nowhere, shards=nowhere, source_class=source_class, source=dict(source),
        num_shards=num_shards, files=list(files),
    )  # fmt: skip
    try:
        found = read_once(dataset, None, {})
    except NotReadableError as error:
        raise ConfigError(
            f"{error}; run snakemake, or `shardline check` where the files are"
        ) from None
    read = dict(found.inferred)
    if "files" not in source:  # of a source that comes with its own file
        read.pop("files", None)
    return ShownDataset(dataset=name, read=read, picture=picture_of(found.rows[0]))
