"""Parts of a dataset: sealed lists of shards, which its jobs write and which are verified when read."""

import math
from collections.abc import Iterable
from functools import reduce
from pathlib import Path

import numpy as np
from msgspec import UNSET, UnsetType

from shardline.config.plans import shards_of_part
from shardline.core.errors import DataError
from shardline.core.files import read_object
from shardline.core.seals import check_seal
from shardline.data.moments import KEYS, FeatureSummary, Moments
from shardline.data.shard_format import ShardLayout
from shardline.data.statistics import ByColumn, Statistics, merge_columns, merge_siblings
from shardline.data.table_summary import TableSummary
from shardline.records.base import decode
from shardline.records.datasets import DatasetSchema, Part, Shard
from shardline.records.preprocessing import CODES, GAPS, NUMBERS, Preprocessing
from shardline_io.column_names import OFFSETS, PRESENT

# Sums over float32 values depend on how rows were split into tables, by far less than this.
_RELATIVE = 1e-5


def read_part(path: Path, dataset: str, *, remedy: str) -> Part:
    """Read a part of a dataset.

    Args:
        path: `parts/{part}.json` in the dataset's folder of the store.
        dataset: the dataset's id.
        remedy: what to do about an error, for the message.

    Raises:
        DataError: the file cannot be read, was altered, or belongs to another dataset or part.
    """
    document = read_object(path, remedy=remedy)
    if problem := check_seal(path, document):
        raise DataError(f"{problem}; {remedy}")
    del document["sha256"]
    part = decode(document, Part, where=path, remedy=remedy)
    if problem := _problem(path, part, dataset):
        raise DataError(f"{problem}; {remedy}")
    return part


def _problem(path: Path, part: Part, dataset: str) -> str | None:
    if part.dataset != dataset:
        return f"{path} belongs to dataset {part.dataset}, expected {dataset}"
    numbers, wanted = range(0), shards_of_part(path.stem)
    if part.statistics:
        numbers = range(part.statistics[0].first, part.statistics[-1].stop)
    if numbers != wanted or len(part.shards) != len(wanted):
        return (
            f"{path} lists {len(part.shards)} shards from {numbers.start} on, expected {path.stem}"
        )
    return None


def count_rows(
    folder: Path, shards: Iterable[tuple[int, Shard]], schema: DatasetSchema,
    plan: Preprocessing | UnsetType = UNSET,
) -> list[Statistics]:  # fmt: skip
    """Compute the statistics of consecutive shards from their files.

    Args:
        folder: folder of the shards.
        shards: number and record of each shard.
        schema: a manifest's `schema`.
        plan: the manifest's `preprocessing`.
    """
    return merge_siblings(_count(folder, *shard, schema, plan) for shard in shards)


def _count(
    folder: Path, number: int, record: Shard, schema: DatasetSchema, plan: Preprocessing | UnsetType
) -> Statistics:
    rows, layout = record.rows, ShardLayout.of_shard(schema, record)

    def tensor(name: str, block: str, more: int = 0) -> np.ndarray:
        before = [*rows].index(block)
        first = sum([*rows.values()][:before])
        path, dtype, shape = folder / record.file, layout.dtypes[name], layout.shapes[name]
        whole = np.memmap(path, dtype, "r", layout.offsets[name], shape) if all(shape) else None
        return (
            np.empty(shape, dtype) if whole is None else whole[first : first + rows[block] + more]
        )

    stored = [name for name in (NUMBERS, GAPS, CODES) if name in (schema.stored or ())]

    def moments(block: str) -> dict[str, Moments]:
        found = {}
        for name, column in layout.columns.items():
            if name in stored:  # whose summaries are in `tables`
                continue
            if column.varies:
                values = np.diff(tensor(name + OFFSETS, block, 1))[:, None]
            else:
                values = tensor(name, block)
                values = values.reshape(len(values), math.prod(column.shape))
            if column.optional:
                values = values[tensor(name + PRESENT, block)]
            if layout.format > 1 or name == "features":
                found[name] = Moments.of(values)
        return found

    folds = [moments(block) for block in rows if block.endswith("train")]
    tables = {}
    if plan:
        texts = {
            one.column: dict(zip(one.codes, one.values, strict=True)) for one in plan.categories
        }
        tables = {
            block: TableSummary.of(plan, {name: tensor(name, block) for name in stored}, texts)
            for block in rows
        }
    classes = len(schema.classes) if schema.task == "classification" else 0
    return Statistics(
        first=number,
        stop=number + 1,
        moments=reduce(merge_columns, folds),
        class_counts={
            block: np.bincount(tensor("labels", block), minlength=classes).tolist()
            for block in (rows if classes else ())
        },
        folds=tuple(folds) if len(folds) > 1 else (),
        tables=tables,
    )


def differing_columns(found: ByColumn, expected: ByColumn) -> list[str]:
    """Return the names of statistics in which summaries by column differ by more than rounding."""
    if found.keys() != expected.keys():
        return ["columns"]
    values = ((name, differing(of, expected[name])) for name, of in found.items())
    return [
        value if name == "features" else f"{value} of {name}"
        for name, wrong in values
        for value in wrong
    ]


def differing(found: FeatureSummary, expected: FeatureSummary) -> list[str]:
    """Return the names of values in which two summaries differ by more than rounding."""
    if found.count != expected.count:
        return ["count"]
    scale = np.maximum(np.abs(found.min), np.abs(found.max))
    return [key for key in KEYS if not _is_near(getattr(found, key), getattr(expected, key), scale)]


def _is_near(mine: np.ndarray, other: np.ndarray, scale: np.ndarray) -> bool:
    return mine.shape == other.shape and np.allclose(
        mine, other, rtol=0, atol=_RELATIVE * scale, equal_nan=True
    )
