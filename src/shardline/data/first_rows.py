"""Datasets of a source's first rows: enough for one training step, without reading the rest."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType, structs

from shardline.config.resolved import DatasetPlace
from shardline.config.settings.run_settings import Pack
from shardline.core.files import write_json
from shardline.data.build import build_shards, describe_part, seal
from shardline.data.columns import Column, columns_of
from shardline.data.dataset import Dataset
from shardline.data.rows import without_rows
from shardline.data.sample_index import RowUnits
from shardline.data.sources import SPLITS, Schema, Source
from shardline.data.sources.source import Table, combine_digests
from shardline.data.windowmap import WindowMap
from shardline.records.base import encode
from shardline.records.datasets import DatasetSchema, SampleForm
from shardline_io.column_names import IDS
from shardline_io.order.pieces import Piece

Row = dict[str, Any]  # values by column, and the row id as `ids`
_PACKED_ROWS = 64  # rows read to fill packs; repeated if they are too short
_MOST_ROWS = 100_000
_COUNTED_S = 1.0


def rows_of_source(source: Source, number: int) -> list[Row]:
    """Return the first rows of a source, reading no further than the block with the last of them.

    Raises:
        DataError: the source has no rows in any shard.
    """
    shards = (source.iter_rows(shard) for shard in range(source.num_shards))
    rows = list(islice(chain.from_iterable(shards), number))
    if not rows:
        skipped = [sentence for of_shard in source.skipped.values() for sentence in of_shard]
        raise without_rows(f"source {type(source).__name__}", skipped, "check what it reads")
    return rows


def count_rows(source: Source, limit_s: float = _COUNTED_S) -> int | None:
    """Return the number of rows in a source over all splits; None if counting exceeds the time limit.

    Raises:
        DataError: a row cannot be read.
    """
    end, rows = time.monotonic() + limit_s, 0
    for shard in range(source.num_shards):
        for table in source.iter_tables(shard):
            rows += len(table.ids)
            if time.monotonic() > end:
                return None
    return rows


def rows_of_dataset(manifest: Path, shards: Path, number: int) -> list[Row]:
    """Return the first train rows of a sealed dataset, without verifying shards.

    Raises:
        DataError: the manifest or a shard is missing or damaged.
    """
    dataset = Dataset(manifest, shards, verify="off")
    rows: list[Row] = []
    for piece in dataset.shards.pieces("train"):
        last = min(piece.last, piece.first + number - len(rows))
        if piece.first < last:
            part = [Piece(piece.shard, piece.first, last)]
            units = RowUnits(shards=dataset.shards, pieces=tuple(part))
            loaded = units.load(WindowMap(dataset.shards, units.rows(part)), part)
            ids = loaded.ids
            rows += [_copied(loaded.sample(n)) | {IDS: int(ids[n])} for n in range(len(ids))]
        if len(rows) == number:
            break
    return rows


def schema_of(record: DatasetSchema) -> Schema:
    """Return the schema of a sealed dataset."""
    if record.columns:
        task: Any = record.task if record.targets else "classification"
        return Schema(
            columns=record.columns, classes=tuple(record.classes), task=task,
            categories=dict(record.categories or {}), targets=tuple(record.targets or ()),
            weighted=bool(record.weighted),
        )  # fmt: skip
    return Schema(
        feature_shape=tuple(record.feature_shape or ()),
        feature_dtype=str(record.feature_dtype),
        task="classification" if record.task == "classification" else "regression",
        classes=tuple(record.classes),
    )


def rows_needed(pack: Pack | None) -> int:
    """Return the number of rows to read for two samples."""
    return 2 if pack is None else _PACKED_ROWS


def build_first_rows(
    rows: Sequence[Row], schema: Schema, folder: Path, *, name: str, source: str, pack: Pack | None = None,
    samples: SampleForm | UnsetType = UNSET, sampled: dict[str, str] | UnsetType = UNSET,
) -> DatasetPlace:  # fmt: skip
    """Write a dataset whose three splits have the same rows.

    Args:
        name: id of the dataset, for messages.
        source: class name of the source, for messages.
        pack: the run's `data.pack`; rows are repeated until they fill two packs.
        samples, sampled: as in the manifest of a torch dataset with transforms.

    Raises:
        DataError: the rows do not match the schema.
    """
    repeated = list(rows) * _repeats(rows, pack)
    kind = type(source, (_FirstRows,), {})
    made = kind(repeated, schema)
    shards = folder / "shards"
    shards.mkdir(parents=True)
    part = describe_part(name, build_shards(made, [0], {}, shards), {})
    manifest = seal([part], dataset=name, source=made, document={}, folder=shards)
    described = structs.replace(manifest.schema, sampled=sampled)
    manifest = structs.replace(manifest, schema=described, samples=samples)
    write_json(folder / "manifest.json", encode(manifest))
    return DatasetPlace(manifest=folder / "manifest.json", shards=shards)


def _repeats(rows: Sequence[Row], pack: Pack | None) -> int:
    if pack is None:
        return 1 if len(rows) > 1 else 2
    values = sum(len(row.get(pack.column, ())) for row in rows if row.get(pack.column) is not None)
    wanted = math.ceil((2 * pack.length + 1) / values) if values else 1
    return max(1, min(wanted, _MOST_ROWS // len(rows)))


class _FirstRows(Source):
    """Source of given rows, once for each split.

    Args:
        rows: rows of each split; only in the train split they keep their ids.
    """

    def __init__(self, rows: Sequence[Row], schema: Schema) -> None:
        super().__init__(num_shards=1)
        self._rows, self._schema = rows, schema

    @property
    def schema(self) -> Schema:
        """Schema of the rows."""
        return self._schema

    @property
    def content_digest(self) -> str:
        """Digest of no files, as in the manifest's empty identity document."""
        return combine_digests([])

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield one block."""
        rows = [row for _ in SPLITS for row in self._rows]
        columns = columns_of(self._schema.record())
        yield Table(
            ids=_unique([row[IDS] for row in self._rows], len(rows)),
            splits=np.repeat(np.arange(len(SPLITS)), len(self._rows)),
            columns={
                name: _column([row[name] for row in rows], columns.get(name))
                for name in rows[0]
                if name != IDS
            },
        )


def _copied(row: Row) -> Row:
    return {
        name: np.array(of) if isinstance(of, np.ndarray | np.generic) else of
        for name, of in row.items()
    }


def _column(values: list[Any], column: Column | None) -> Any:
    """Return the values of a column as a source does: arrays of one shape as one array."""
    if column and column.varies:
        if column.kind == "array":
            return values
        return [column.value(one) if isinstance(one, np.ndarray) else one for one in values]
    is_array = all(isinstance(one, np.ndarray | np.generic) for one in values)
    if is_array and len({np.shape(one) for one in values}) == 1:
        return np.stack(values)
    return values


def _unique(first: Iterable[int], number: int) -> np.ndarray:
    """Return unique ids [number] int64: first the distinct given ones, then unused numbers."""
    ids = list(dict.fromkeys(first))
    free = np.setdiff1d(np.arange(number + len(ids)), np.array(ids, dtype=np.int64))
    return np.concatenate([np.array(ids, dtype=np.int64), free[: number - len(ids)]])
