"""Plans of splits that need a pass over all rows: stratified, by time, or with folds of equal size.

A plan has the cuts of each class's rows in the order of their hashes or times, or the fold of each
group. It takes 16 to 24 bytes of memory per row while it is made.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.core.files import read_object
from shardline.core.seals import check_seal
from shardline.data.row_keys import RowKeys, read_keys
from shardline.data.sources import SPLITS, Source
from shardline.data.splits import share_of_validation, validates
from shardline.data.values import read_array
from shardline.records.base import decode
from shardline.records.datasets import SplitPlan, Stratum
from shardline_io.column_names import IDS


def make_plan(source: Source, splits: Mapping[str, Any], dataset: str) -> SplitPlan:
    """Read the keys of all rows, and return the plan of their splits.

    Args:
        splits: the dataset's `splits`.
        dataset: the dataset's id.

    Raises:
        DataError: a row cannot be read, or there are too few groups.
    """
    found: list[RowKeys] = []
    for shard in range(source.num_shards):
        where = f"source {type(source).__name__}: shard {shard}"
        for table in source.iter_tables(shard):
            keys = read_keys(table, read_array(IDS, table.ids, "int64", where), splits, where)
            is_free = np.ones(len(keys.ids), bool)
            if splits.get("folds") and table.splits is not None:
                is_free = np.asarray(table.splits) != SPLITS.index("test")
            found.append(keys.only(is_free))
    return plan_of(_joined(found), splits, dataset)


def plan_of(keys: RowKeys, splits: Mapping[str, Any], dataset: str) -> SplitPlan:
    """Return the plan of the splits of rows.

    Args:
        keys: keys of all rows that are in no fixed test set.
        splits: the dataset's `splits`.
        dataset: the dataset's id.

    Raises:
        DataError: there are too few groups.
    """
    rows = len(keys.ids)
    if splits.get("group"):
        groups, folds = _folds_of_groups(keys, splits, dataset)
        return SplitPlan(dataset=dataset, rows=rows, groups=groups.tolist(), folds=folds.tolist())
    strata = []
    for place, key in enumerate(np.unique(keys.strata).tolist()):
        order = np.sort(keys.order[keys.strata == key])
        strata.append(_stratum(key, order, _shares(splits, place)))
    return SplitPlan(dataset=dataset, rows=rows, strata=strata)


def read_plan(path: Path, dataset: str, *, remedy: str) -> SplitPlan:
    """Read the plan of a dataset's splits.

    Args:
        path: `splits.json` in the dataset's folder of the store.
        dataset: the dataset's id.
        remedy: what to do about an error, for the message.

    Raises:
        DataError: the file cannot be read, was altered, or belongs to another dataset.
    """
    document = read_object(path, remedy=remedy)
    problem = check_seal(path, document)
    if not problem and document.get("dataset") != dataset:
        problem = f"{path} belongs to dataset {document.get('dataset')}, expected {dataset}"
    if problem:
        raise DataError(f"{problem}; {remedy}")
    del document["sha256"]
    return decode(document, SplitPlan, where=path, remedy=remedy)


def planned_blocks(
    keys: RowKeys, splits: Mapping[str, Any], plan: SplitPlan, where: str
) -> np.ndarray:
    """Return each row's block as an index into `shardline_io.order.folds.blocks_of` [N] int64.

    Args:
        where: source and shard, for messages.

    Raises:
        DataError: a row's group or class is not in the plan.
    """
    blocks = np.zeros(len(keys.ids), np.int64)
    if plan.groups:
        groups = np.array(plan.groups)
        places = np.minimum(np.searchsorted(groups, keys.ids), len(groups) - 1)
        if (groups[places] != keys.ids).any():
            raise _changed("a group", where)
        blocks[:] = 2 * np.array(plan.folds)[places] + validates(keys.ids, splits)
        return blocks
    known = {one.key: one for one in plan.strata}
    for key in np.unique(keys.strata).tolist():
        if key not in known:
            raise _changed("a class", where)
        rows = np.flatnonzero(keys.strata == key)
        places = np.searchsorted(np.array(known[key].edges), keys.order[rows], side="right")
        blocks[rows] = np.array(known[key].blocks)[places]
    return blocks


def _changed(what: str, where: str) -> DataError:
    return DataError(
        f"{where} returned {what} that the plan of the splits lacks, expected the rows of the pass before; run the "
        "pipeline again, and do not change the source meanwhile"
    )


def _joined(found: Sequence[RowKeys]) -> RowKeys:
    return RowKeys(
        **{
            name: np.concatenate([np.zeros(0, dtype), *(getattr(one, name) for one in found)])
            for name, dtype in (("ids", np.int64), ("strata", np.int64), ("order", np.float64))
        }
    )


def _shares(splits: Mapping[str, Any], place: int) -> list[tuple[int, float]]:
    """Return the blocks in the order of the rows of a class, each with its share.

    Args:
        place: number of the class; each class begins with another fold, so that rests add up evenly.
    """
    if not (folds := splits.get("folds")):
        return [(block, splits[name]) for block, name in enumerate(SPLITS)]
    share = share_of_validation(splits)
    numbers = [(fold + place) % folds for fold in range(folds)]
    return [
        one
        for fold in numbers
        for one in ((2 * fold + 1, share / folds), (2 * fold, (1 - share) / folds))
    ]


def _stratum(key: int, order: np.ndarray, shares: Sequence[tuple[int, float]]) -> Stratum:
    """Return the cuts of a class's rows, given their sorted positions."""
    cuts = np.rint(np.cumsum([share for _, share in shares]) * len(order)).astype(int)
    edges: list[float] = []
    blocks: list[int] = []
    first = 0
    for (block, _), last in zip(shares, cuts.tolist(), strict=True):
        if last > first:
            edges.append(float(order[first]))
            blocks.append(block)
        first = max(first, last)
    return Stratum(key=key, edges=edges[1:], blocks=blocks)


def _folds_of_groups(
    keys: RowKeys, splits: Mapping[str, Any], dataset: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the groups [G] int64, sorted, and the fold of each."""
    from sklearn.model_selection import StratifiedGroupKFold

    groups, firsts = np.unique(keys.ids, return_index=True)
    if len(groups) < splits["folds"]:
        raise DataError(
            f"dataset {dataset}: {len(groups)} groups in {splits['group']}, expected at least splits.folds="
            f"{splits['folds']}; lower splits.folds"
        )
    # in the order of the ids, so that the order of rows in the source does not count
    rows = np.lexsort((keys.strata, keys.ids))
    kind = np.unique(keys.strata[rows], return_inverse=True)[1]
    seed = splits.get("seed", 0) % 2**32
    maker = StratifiedGroupKFold(splits["folds"], shuffle=True, random_state=seed)
    fold_of_row = np.zeros(len(rows), np.int64)
    try:
        parts = [*maker.split(np.zeros(len(rows)), kind, keys.ids[rows])]
    except ValueError as error:  # each class has fewer rows than folds
        raise DataError(
            f"dataset {dataset}: splits.stratify={splits.get('stratify')} gives no even folds ({error}), expected a "
            "column of classes with several rows each; name another column, or lower splits.folds"
        ) from None
    for fold, (_, tested) in enumerate(parts):
        fold_of_row[rows[tested]] = fold
    return groups, fold_of_row[firsts]
