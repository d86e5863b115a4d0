"""Rows of one shard: read from a source, checked against its schema, and ordered by block."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.data.columns import Column, columns_of
from shardline.data.fixed_groups import FixedGroups
from shardline.data.moments import Moments, RunningMoments, rows_in_cache
from shardline.data.shard_format import ShardLayout
from shardline.data.sources import Schema, Source
from shardline.data.statistics import merge_columns
from shardline.data.table_summary import TableSummary, Texts
from shardline.data.tables import WIDE_BYTES, TableBlock, is_finite, not_finite, read_table
from shardline.data.values import take_rows
from shardline.records.datasets import SplitPlan
from shardline.records.preprocessing import CODES, GAPS, NUMBERS, Preprocessing
from shardline_io.column_names import IDS, OFFSETS, PRESENT
from shardline_io.order.folds import blocks_of

_BLOCK_BYTES = 4 << 20  # from this size on, NumPy requests huge pages


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a shard in the order of its file, by block: see `shardline_io.order.folds`.

    Attributes:
        tensors: tensors of the file by name, each as consecutive pieces.
        borrowed: blocks of `Memory` in which some tensors are.
        counts: number of rows by block, in the order of the file.
        values: total number of values in each varying column.
        layout: layout of the tensors in the file.
        train: moments of the train rows by column; for a varying column, moments of its lengths.
        folds: with folds, moments by column of the rows of each fold to train on.
        class_counts: number of rows of each class, by block; empty without classes.
        tables: what preprocessing is fitted on, by block; empty without preprocessing.
    """

    tensors: dict[str, list[np.ndarray]]
    borrowed: list[np.ndarray]
    counts: dict[str, int]
    values: dict[str, int]
    layout: ShardLayout
    train: dict[str, Moments]
    folds: tuple[dict[str, Moments], ...]
    class_counts: dict[str, list[int]]
    tables: dict[str, TableSummary]


class Memory:
    """Reusable blocks of memory for rows: a new page costs as much time as filling it."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []

    def take(self, least: int) -> np.ndarray:
        """Return a block [bytes] uint8 of at least this size."""
        block = self._free.pop() if self._free else np.empty(_BLOCK_BYTES, np.uint8)
        return block if len(block) >= least else np.empty(least, np.uint8)

    def give_back(self, rows: Rows) -> None:
        """Make the memory of rows that are no longer needed available again."""
        self._free += rows.borrowed


def read_rows(
    source: Source, shard: int, splits: Mapping[str, Any], memory: Memory, plan: SplitPlan | None = None,
    groups: FixedGroups | None = None,
) -> Rows:  # fmt: skip
    """Read a shard's rows from a source.

    Each table is split, checked and summarised in blocks that fit into the processor's cache, and
    can be freed before the source yields the next table.

    Args:
        splits: the dataset's `splits`: shares of the rows, unless the tables have a `splits` column.
        memory: memory for wide columns.
        plan: plan of the splits, if they need one.
        groups: gets the groups of the rows.

    Raises:
        DataError: the source returned no rows, or rows that do not match its schema; names source,
            shard and, for a single row, its id.
    """
    schema, where = source.schema, f"source {type(source).__name__}: shard {shard}"
    described = schema.record()
    columns = columns_of(described)
    # labels of a table are counted by class instead
    summed = set(columns) if described.columns else {"features"}
    trains = [name for name in blocks_of(splits.get("folds", 0)) if name.endswith("train")]
    if schema.preprocessing:  # which has summaries of its own
        summed -= {NUMBERS, GAPS, CODES}
    texts: dict[str, dict[int, str]] = defaultdict(dict)
    parts = {
        name: _Part(columns, memory, summed if name in trains else set())
        for name in blocks_of(splits.get("folds", 0))
    }
    for given in source.iter_tables(shard):
        block = read_table(given, schema, columns, splits, where, plan)
        for name, of in given.texts.items():
            texts[name].update(of)
        if groups:
            groups.add(block.groups, block.blocks == len(parts) - 1)
        for index, part in enumerate(parts.values()):
            part.append(block, np.flatnonzero(block.blocks == index), where)
    ids = [piece for part in parts.values() for piece in part.ids]
    if not any(map(len, ids)):
        raise without_rows(where, source.skipped.get(shard, []), "lower the dataset's `shards`")
    _check_ids(ids, where)
    tensors = {IDS: ids}
    for name, column in columns.items():
        tensors[name] = [piece for part in parts.values() for piece in part.values[name]]
        if column.varies:
            lengths = [piece for part in parts.values() for piece in part.lengths[name]]
            tensors[name + OFFSETS] = [np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64)]
        if column.optional:
            tensors[name + PRESENT] = [p for part in parts.values() for p in part.present[name]]
    folds = tuple(parts[name].moments for name in trains)
    totals = {n: sum(map(len, tensors[n])) for n, column in columns.items() if column.varies}
    return Rows(
        tensors=tensors,
        borrowed=[block for part in parts.values() for block in part.borrowed],
        counts={name: sum(map(len, part.ids)) for name, part in parts.items()},
        values=totals,
        layout=ShardLayout.of(described, sum(map(len, ids)), totals),
        train=reduce(merge_columns, folds),
        folds=folds if len(folds) > 1 else (),
        class_counts=_count_classes(parts, schema),
        tables=_summarised(parts, columns, schema.preprocessing, texts),
    )


class _Part:
    """The rows of one block, appended table by table.

    Attributes:
        ids, values, lengths, present: consecutive pieces, by column; lengths of varying columns.
        moments: moments of the columns in `summed`.
        borrowed: memory of wide columns.
    """

    def __init__(self, columns: Mapping[str, Column], memory: Memory, summed: set[str]) -> None:
        self.ids: list[np.ndarray] = []
        self.values: dict[str, list[np.ndarray]] = {name: [] for name in columns}
        self.lengths: dict[str, list[np.ndarray]] = {name: [] for name in columns}
        self.present: dict[str, list[np.ndarray]] = {name: [] for name in columns}
        self.borrowed: list[np.ndarray] = []
        self._columns, self._memory, self._summed = columns, memory, summed
        self._moments = dict.fromkeys(summed or columns, RunningMoments().moments())
        self._wide: dict[str, tuple[np.ndarray, int]] = {}  # the last block, and its rows

    @property
    def moments(self) -> dict[str, Moments]:
        """Moments by column, in the order of the columns; of zero rows if nothing is summed."""
        return {name: self._moments[name] for name in self._columns if name in self._moments}

    def append(self, block: TableBlock, rows: np.ndarray, where: str) -> None:
        """Copy rows of a table."""
        self.ids.append(block.ids[rows])
        for name, present in block.present.items():
            self.present[name].append(present[rows])
        for name, ragged in block.ragged.items():
            values, lengths = take_rows(ragged, rows)
            self.values[name].append(values)
            self.lengths[name].append(lengths)
            if name in self._summed:
                self._add(name, lengths[:, None], self.present[name])
        for name, values in block.fixed.items():
            if self._columns[name].item_bytes < WIDE_BYTES or self._columns[name].optional:
                chosen = values[rows]
                self.values[name].append(chosen)
                if name in self._summed:
                    self._add(
                        name,
                        chosen.reshape(len(rows), math.prod(chosen.shape[1:])),
                        self.present[name],
                    )
            else:
                self._append_wide(name, values, rows, block.ids, where)

    def _add(self, name: str, values: np.ndarray, present: list[np.ndarray]) -> None:
        if present:
            values = values[present[-1]]
        if len(values):
            self._moments[name] = self._moments[name].merge(Moments.of(values))

    def _append_wide(
        self, name: str, values: np.ndarray, rows: np.ndarray, ids: np.ndarray, where: str
    ) -> None:
        """Copy rows of a wide column, and check and sum them in blocks that fit into the cache."""
        running, is_summed, all_finite = RunningMoments(), name in self._summed, True
        step = rows_in_cache(math.prod(values.shape[1:]), values.dtype)
        for first in range(0, len(rows), step):
            chosen = rows[first : first + step]
            block = self._allocate(name, values, len(chosen))
            # with any mode but "raise", take() writes into `out` directly
            values.take(chosen, axis=0, out=block, mode="clip")
            if is_summed:
                running.add(block.reshape(len(block), -1))
            else:
                all_finite &= is_finite(block)
        if not (all_finite and is_finite(running.low) and is_finite(running.high)):
            raise not_finite(name, values[rows], ids[rows], where)
        if is_summed:
            moments = self._moments[name]
            self._moments[name] = moments.with_running(running) or moments.merge(
                Moments.exactly(values[rows].reshape(len(rows), -1))
            )

    def _allocate(self, name: str, values: np.ndarray, rows: int) -> np.ndarray:
        """Return memory for some rows, directly after the previous rows if there is space."""
        pieces = self.values[name]
        block, filled = self._wide.get(name, (values[:0], 0))
        if filled + rows > len(block):
            row_bytes = values.dtype.itemsize * math.prod(values.shape[1:])
            memory = self._memory.take(rows * row_bytes)
            self.borrowed.append(memory)
            whole = memory[: len(memory) // row_bytes * row_bytes]
            block, filled = whole.view(values.dtype).reshape(-1, *values.shape[1:]), 0
            pieces.append(block[:0])
        self._wide[name] = block, filled + rows
        pieces[-1] = block[: filled + rows]
        return block[filled : filled + rows]


def _summarised(
    parts: Mapping[str, _Part],
    columns: Mapping[str, Column],
    plan: Preprocessing | None,
    texts: Texts,
) -> dict[str, TableSummary]:
    if plan is None:
        return {}
    # without rows, a wide column has no pieces
    empty = {
        name: np.zeros((0, *of.shape), of.dtype)
        for name, of in columns.items()
        if name in (NUMBERS, GAPS, CODES)
    }
    return {
        split: TableSummary.of(
            plan,
            {name: np.concatenate([of, *part.values[name]]) for name, of in empty.items()},
            texts,
        )
        for split, part in parts.items()
    }


def _count_classes(parts: Mapping[str, _Part], schema: Schema) -> dict[str, list[int]]:
    if schema.record().task != "classification":
        return {}
    return {
        name: sum(
            (
                np.bincount(labels, minlength=len(schema.classes))
                for labels in part.values["labels"]
            ),
            start=np.zeros(len(schema.classes), dtype=np.int64),
        ).tolist()
        for name, part in parts.items()
    }


def without_rows(where: str, skipped: Sequence[str], remedy: str) -> DataError:
    """Return the error of a source without rows.

    Args:
        where: source and shard, for the message.
        skipped: a sentence for each skipped row or file.
        remedy: what to do if none was skipped.
    """
    if skipped:
        remedy = (
            f"source.on_bad: skip left out all {len(skipped):,}; correct the first: {skipped[0]}"
        )
    return DataError(f"{where} has no rows, expected at least one; {remedy}")


def _check_ids(pieces: Sequence[np.ndarray], where: str) -> None:
    values, counts = np.unique(np.concatenate(pieces), return_counts=True)
    if (counts > 1).any():
        raise DataError(
            f"{where}: row id {values[counts > 1][0]} occurs twice, expected each id once since it "
            "decides the row's split; number the rows"
        )
