"""The first rows of a run's datasets, built or not, for the model check."""

import resource
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType, structs

from shardline.config.resolved import DatasetPlace, PythonObject
from shardline.config.settings.run_settings import Pack
from shardline.core.error_texts import short_traceback
from shardline.core.errors import DataError, ShardlineError
from shardline.core.urls import is_url
from shardline.data.build import make_source, samples_of, schema_of_source
from shardline.data.dataset import read_manifest
from shardline.data.first_rows import (
    Row,
    build_first_rows,
    count_rows,
    rows_needed,
    rows_of_dataset,
    rows_of_source,
    schema_of,
)
from shardline.data.inferred import describe
from shardline.data.python.prepare import is_unprepared
from shardline.data.sources import Schema, Source
from shardline.records.base import read_record
from shardline.records.datasets import DatasetProvenance, SampleForm, Skipped
from shardline.records.understood import understood
from shardline.training.example_row import texts_of
from shardline.training.rank_task import CheckedDataset


@dataclass(frozen=True, kw_only=True)
class FirstRows:
    """First rows of a dataset.

    Attributes:
        num_rows: Rows of the whole dataset, all splits together; None if counting takes long.
        inferred: What was understood of the dataset, see `records.understood`.
        samples, sampled: As in the manifest of a torch dataset with transforms.
    """

    rows: list[Row]
    schema: Schema
    num_rows: int | None
    inferred: dict[str, Any]
    samples: SampleForm | UnsetType = UNSET
    sampled: dict[str, str] | UnsetType = UNSET


_UNPREPARED = "the job prepare_data of dataset {} has not run yet"
Known = dict[tuple[str, int], FirstRows]


class NotReadableError(Exception):
    """The rows of a dataset are not on this machine yet."""


def read_once(dataset: CheckedDataset, pack: Pack | None, known: Known) -> FirstRows:
    """Return the first rows of a dataset, from its shards or its source.

    Args:
        known: Rows that were read before, by dataset and number of rows; new rows are added.

    Raises:
        NotReadableError: The source is remote and was not fetched.
        DataError: The source fails; the message names it.
    """
    key = (dataset.id, rows_needed(pack))
    if key not in known:
        known[key] = _read(dataset, key[1])
    return known[key]


def build_rows(
    dataset: CheckedDataset, read: FirstRows, pack: Pack | None, folder: Path
) -> DatasetPlace:
    """Build a dataset of the first rows in a folder, and return its place."""
    place = build_first_rows(
        read.rows,
        read.schema,
        folder,
        name=f"{dataset.name}-{dataset.id}",
        source=dataset.source_class.rpartition(":")[2],
        pack=pack,
        samples=read.samples,
        sampled=read.sampled,
    )
    given = PythonObject(
        path=dataset.source_class,
        options=dataset.source.get("options", {}),
        files=[*map(str, dataset.files)],
    )
    python = None if read.samples is UNSET else given
    return structs.replace(place, weight=dataset.weight, python=python)


def _read(dataset: CheckedDataset, number: int) -> FirstRows:
    with suppress(ShardlineError):
        manifest = read_manifest(dataset.manifest)
        if rows := rows_of_dataset(dataset.manifest, dataset.shards, number):
            return FirstRows(
                rows=rows,
                schema=schema_of(manifest.schema),
                num_rows=manifest.splits["train"],
                inferred=understood(
                    _recorded(dataset.manifest),
                    dataset.source,
                    manifest.schema,
                    manifest=manifest,
                    example=texts_of(rows[0], manifest.schema),
                ),
                samples=manifest.samples,
                sampled=manifest.schema.sampled,
            )
    if missing := [path for path in dataset.files if not path.exists()]:
        raise NotReadableError(f"{missing[0].name} of dataset {dataset.name} is not fetched yet")
    unprepared = is_unprepared(dataset.source_class, dataset.shards)
    # files that are there may be all that it needs, as after a download by the user
    if unprepared and not dataset.files:
        raise NotReadableError(_UNPREPARED.format(dataset.name))
    if is_url(str(dataset.source.get("table", ""))):
        raise NotReadableError(f"dataset {dataset.name} is a remote table")
    try:
        source = make_source(
            dataset.source_class, dataset.source, num_shards=dataset.num_shards, files=dataset.files
        )
        return _of_source(source, dataset.source, number)
    except MemoryError:
        raise
    except Exception as error:
        if unprepared:
            raise NotReadableError(_UNPREPARED.format(dataset.name)) from error
        if isinstance(error, ShardlineError):
            raise
        raise DataError(
            f"dataset {dataset.name}: source {dataset.source_class} fails when its rows are read; correct the "
            f"source or the files that it reads: {short_traceback(error)}"
        ) from error


def _of_source(source: Source, settings: Mapping[str, Any], number: int) -> FirstRows:
    rows, schema, num_rows = rows_of_source(source, number), source.schema, count_rows(source)
    record = schema.record()
    sentences = [sentence for of_shard in source.skipped.values() for sentence in of_shard]
    inferred = understood(
        describe(source),
        settings,
        record,
        num_rows=num_rows,
        skipped=None if num_rows is None else Skipped(count=len(sentences), first=sentences[:1]),
        example=texts_of(rows[0], record),
    )
    return FirstRows(
        rows=rows,
        schema=schema,
        num_rows=num_rows,
        inferred=inferred,
        samples=samples_of(source),
        sampled=schema_of_source(source).sampled,
    )


def _recorded(manifest: Path) -> dict[str, Any]:
    """Return the inferred properties that a sealed dataset's provenance records."""
    provenance = manifest.with_name("provenance.json")
    return read_record(provenance, DatasetProvenance, remedy="").inferred


def limit_memory(free_bytes: int) -> None:
    """Let an allocation fail before the machine has no memory left."""
    with suppress(OSError, ValueError):
        used = _data_bytes(Path("/proc/self/status").read_text())
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (used + free_bytes, hard))


def _data_bytes(status: str) -> int:
    found: Mapping[str, str] = dict(
        line.split(":", 1) for line in status.splitlines() if ":" in line
    )
    return int(found["VmData"].split()[0]) << 10
