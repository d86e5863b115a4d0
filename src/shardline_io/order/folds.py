"""Folds: which rows of a shard are in a split of a run.

The rows of a shard lie in blocks. Without folds there is a block for each split. With folds, each fold
has a block of rows to train on and a block of rows to validate on, and a block `test` after all folds
contains the fixed test set. A run tests on one fold, and trains and validates on the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

SPLITS = ("train", "validation", "test")


def blocks_of(folds: int) -> tuple[str, ...]:
    """Return the names of a shard's blocks in the order of the file.

    Args:
        folds: number of folds; 0 for a dataset without folds.
    """
    if not folds:
        return SPLITS
    return (*(f"{fold}/{part}" for fold in range(folds) for part in SPLITS[:2]), SPLITS[2])


@cache
def split_of(block: str, fold: int | None) -> str | None:
    """Return the split that a block belongs to; None if a run does not read its rows.

    Args:
        fold: fold that the run tests on. None: the run trains on all folds, and tests on the fixed
            test set.
    """
    number, _, part = block.rpartition("/")
    if not number:
        return part if fold is None else None
    return "test" if fold == int(number) else part


def by_split(rows: Mapping[str, int], fold: int | None) -> dict[str, int]:
    """Return the number of rows in each split, from the number of rows in each block."""
    return {
        split: sum(rows[block] for block in rows if split_of(block, fold) == split)
        for split in SPLITS
    }


def counts_by_split(counts: Mapping[str, Sequence[int]], fold: int | None) -> dict[str, list[int]]:
    """Return the rows of each class in each split, from those in each block; empty without classes."""
    found = {}
    for split in SPLITS if counts else ():
        of_split = [counts[block] for block in counts if split_of(block, fold) == split]
        found[split] = [sum(of_class) for of_class in zip(*of_split)]
    return found


def of_fold(manifest: Mapping[str, Any], fold: int | None) -> dict[str, Any]:
    """Return a manifest, as JSON, with the rows and statistics of the splits of a run.

    Its shards keep their rows by block.

    Args:
        fold: fold that the run tests on, see `split_of`.
    """
    if not manifest.get("folds"):
        return dict(manifest)
    statistics = dict(manifest["statistics"])
    of_folds = statistics.pop("folds")
    statistics["class_counts"] = counts_by_split(statistics["class_counts"], fold)
    if fold is not None:
        statistics |= of_folds[fold]
    splits = by_split(manifest["splits"], fold)
    own = {"splits": splits, "statistics": statistics}
    if fold is not None and manifest.get("fold_preprocessing"):
        own["preprocessing"] = manifest["fold_preprocessing"][fold]
    return {**manifest, **own}
