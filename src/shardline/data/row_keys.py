"""Keys of rows that decide their splits: ids or groups, classes to stratify by, and times."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.data.sources.from_files import group_keys
from shardline.data.sources.source import Table
from shardline.data.splits import uniform
from shardline.data.values import read_array

_FIELDS = {
    "group": "groups",
    "stratify": "strata",
    "time": "times",
}  # of a table, by key of `splits`


@dataclass(frozen=True, kw_only=True)
class RowKeys:
    """Keys of N rows.

    Attributes:
        ids: row ids, or the keys of the rows' groups [N] int64; their hashes decide.
        strata: keys of the classes whose rows are divided evenly [N] int64; zeros without `stratify`.
        order: position of each row in the order that the shares cut [N] float64: its time, or a hash.
    """

    ids: np.ndarray
    strata: np.ndarray
    order: np.ndarray

    def only(self, rows: np.ndarray) -> "RowKeys":
        """Return the keys of the rows of a mask [N] bool."""
        return RowKeys(ids=self.ids[rows], strata=self.strata[rows], order=self.order[rows])


def read_keys(table: Table, ids: np.ndarray, splits: Mapping[str, Any], where: str) -> RowKeys:
    """Return the keys of a table's rows.

    Args:
        ids: row ids [N] int64.
        splits: the dataset's `splits`.
        where: source and shard, for messages.

    Raises:
        DataError: a column that `splits` names is missing, or has values of another kind.
    """
    keys = _read(table, "group", ids, splits, where)
    strata = _read(table, "stratify", np.zeros(len(ids), np.int64), splits, where)
    order = uniform(keys, splits.get("seed", 0))
    return RowKeys(ids=keys, strata=strata, order=_read(table, "time", order, splits, where))


def _read(
    table: Table, key: str, otherwise: np.ndarray, splits: Mapping[str, Any], where: str
) -> np.ndarray:
    if not (name := splits.get(key)):
        return otherwise
    given = getattr(table, _FIELDS[key])
    if given is None:
        found = _column(name, key, table.given.get(name), where)
    else:
        found = read_array(_FIELDS[key], given, str(otherwise.dtype), where)
    if found.shape != otherwise.shape:
        raise DataError(
            f"{where} returned {_FIELDS[key]} of shape {found.shape} with {len(otherwise)} ids, expected a value for "
            "each row; make all columns of a Table equally long"
        )
    return found


def _column(name: str, key: str, values: Any, where: str) -> np.ndarray:
    kinds = "iuf" if key == "time" else "iub"
    found = np.asarray(values) if isinstance(values, np.ndarray) else values
    if isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype.kind in kinds:
        return found.astype(np.float64) if key == "time" else group_keys(found.tolist())
    allowed = (int, float, np.number) if key == "time" else (str, int, np.integer)
    if isinstance(found, list) and all(isinstance(one, allowed) for one in found):
        return np.array(found, np.float64) if key == "time" else group_keys(found)
    what = "numbers" if key == "time" else "whole numbers or texts"
    raise DataError(
        f"{where} returned rows without a value for splits.{key}={name}, expected a column {name} of {what}, without "
        f"gaps; add the column, or set `{_FIELDS[key]}` of each Table"
    )
