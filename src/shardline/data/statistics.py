"""Statistics of columns and classes, computed while a shard is in memory and merged over all shards."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from msgspec import UNSET

from shardline.data.moments import FeatureSummary, Moments
from shardline.data.table_summary import TableSummary, merge_tables
from shardline.records.datasets import (
    DatasetStatistics,
    FoldStatistics,
    PartStatistics,
    RecordedMoments,
    Summary,
)
from shardline_io.order.folds import split_of

ByColumn = dict[str, FeatureSummary]


def pooled(datasets: Sequence[ByColumn]) -> ByColumn:
    """Return the joint statistics of several datasets with the same columns."""
    if len(datasets) == 1:
        return datasets[0]
    return {
        name: reduce(Moments.merge, (of[name].moments() for of in datasets)).summary()
        for name in datasets[0]
    }


def merge_columns(
    moments: Mapping[str, Moments], others: Mapping[str, Moments]
) -> dict[str, Moments]:
    """Return the moments of rows together with other rows, by column."""
    return {name: of.merge(others[name]) for name, of in moments.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistics:
    """Statistics of the rows in consecutive shards.

    Attributes:
        first: number of the first shard.
        stop: number of the last shard plus 1.
        moments: moments of the train rows by column; for a varying column, moments of its lengths.
            A table only has moments of its features.
        class_counts: number of rows of each class, by block; empty without classes.
        folds: with folds, moments by column of the rows of each fold to train on; `moments` are
            those of all folds.
        tables: what preprocessing is fitted on, by block; empty without preprocessing.
    """

    first: int
    stop: int
    moments: dict[str, Moments]
    class_counts: dict[str, list[int]]
    folds: tuple[dict[str, Moments], ...] = ()
    tables: dict[str, TableSummary] = field(default_factory=dict)

    def merge(self, other: "Statistics") -> "Statistics":
        """Return the statistics of these shards together with the directly following ones."""
        counts = {
            split: [a + b for a, b in zip(mine, other.class_counts[split], strict=True)]
            for split, mine in self.class_counts.items()
        }
        return Statistics(
            first=self.first,
            stop=other.stop,
            moments=merge_columns(self.moments, other.moments),
            class_counts=counts,
            folds=tuple(map(merge_columns, self.folds, other.folds)),
            tables={block: of.merge(other.tables[block]) for block, of in self.tables.items()},
        )

    def train(self, fold: int | None = None) -> ByColumn:
        """Return the statistics of the train rows of a run, which are those of all folds but its own.

        Args:
            fold: fold that the run tests on.
        """
        others = [of for number, of in enumerate(self.folds) if number != fold]
        moments = self.moments if fold is None else reduce(merge_columns, others)
        return {name: of.summary() for name, of in moments.items()}

    def train_table(self, fold: int | None = None) -> TableSummary:
        """Return what the preprocessing of a run is fitted on: the train rows of all folds but its own."""
        return merge_tables(
            [of for block, of in self.tables.items() if split_of(block, fold) == "train"]
        )

    def to_record(self) -> PartStatistics:
        """Return the record of the statistics, without loss."""
        moments, *folds = (
            {name: of.to_record() for name, of in columns.items()}
            for columns in (self.moments, *self.folds)
        )
        return PartStatistics(
            first=self.first,
            stop=self.stop,
            class_counts=self.class_counts,
            **by_column(moments),
            folds=folds or UNSET,
            table={block: of.to_record() for block, of in self.tables.items()} or UNSET,
        )

    @classmethod
    def of_record(cls, record: PartStatistics) -> "Statistics":
        """Read the record of a part's statistics."""
        recorded = {"features": record.features} if record.features else record.columns or {}
        moments, *folds = (
            {name: Moments.of_record(of) for name, of in columns.items()}
            for columns in (recorded, *(record.folds or ()))
        )
        return cls(
            first=record.first,
            stop=record.stop,
            moments=moments,
            class_counts=record.class_counts,
            folds=tuple(folds),
            tables={name: TableSummary.of_record(of) for name, of in (record.table or {}).items()},
        )


def by_column(
    statistics: Mapping[str, RecordedMoments] | Mapping[str, Summary],
) -> dict[str, Any]:
    """Return the fields of a record for statistics by column: `features` for a table, else `columns`."""
    columns = dict(statistics)
    return columns if [*columns] == ["features"] else {"columns": columns}


def of_columns(record: DatasetStatistics | FoldStatistics) -> ByColumn:
    """Return the statistics by column in a manifest, of all folds or of one."""
    columns = {"features": record.features} if record.features else record.columns or {}
    return {name: FeatureSummary.of_record(of) for name, of in columns.items()}


def merge_siblings(items: Iterable[Statistics]) -> list[Statistics]:
    """Merge shards as the leaves of a binary tree: 0 with 1, 2 with 3, both pairs, and so on.

    Sums of floats depend on their order. The tree only depends on the numbers of the shards, so the
    manifest does not depend on the split into parts. A part of n shards keeps at most 2 log2(n) items.

    Args:
        items: statistics of consecutive shards, in order.
    """
    merged: list[Statistics] = []
    for item in items:
        merged.append(item)
        while len(merged) > 1 and _are_siblings(*merged[-2:]):
            right = merged.pop()
            merged.append(merged.pop().merge(right))
    return merged


def merge_all(items: Sequence[Statistics]) -> Statistics:
    """Merge the statistics of all shards, in order, into one."""
    return reduce(Statistics.merge, merge_siblings(items))


def _are_siblings(left: Statistics, right: Statistics) -> bool:
    size = right.stop - right.first
    return left.stop - left.first == size and left.first % (2 * size) == 0
