"""Tables from a source, checked against its schema and converted to arrays."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.core.suggest import suggest
from shardline.data.columns import Column
from shardline.data.row_keys import RowKeys, read_keys
from shardline.data.sources import SPLITS, Schema, Table
from shardline.data.sources.source import Ragged
from shardline.data.split_plans import planned_blocks
from shardline.data.splits import assign_folds, assign_splits
from shardline.data.values import read_array, read_ragged, split_missing
from shardline.records.datasets import DTYPES, SplitPlan
from shardline_io.column_names import IDS, WEIGHT

WIDE_BYTES = 64  # columns with rows of this size or more are copied, checked and summed in blocks


@dataclass(frozen=True, kw_only=True)
class TableBlock:
    """A table of N rows in the types of its schema.

    Attributes:
        blocks: block of each row, as an index into `shardline_io.order.folds.blocks_of` [N] int64;
            without folds, its split.
        groups: key of each row's group [N] int64; without groups, its id.
        fixed: values [N, *shape] by column.
        ragged: values of varying columns.
        present: whether each row has a value [N] bool, by optional column.
    """

    ids: np.ndarray
    blocks: np.ndarray
    groups: np.ndarray
    fixed: dict[str, np.ndarray]
    ragged: dict[str, Ragged]
    present: dict[str, np.ndarray]


def _check_dtype(schema: Schema, where: str) -> None:
    if not schema.columns and schema.feature_dtype not in DTYPES:
        raise DataError(
            f"{where}: the schema has feature_dtype={schema.feature_dtype}, expected one of "
            f"{', '.join(DTYPES)}; convert the features to one of these types"
        )


def read_table(
    table: Table,
    schema: Schema,
    columns: Mapping[str, Column],
    splits: Mapping[str, Any],
    where: str,
    plan: SplitPlan | None = None,
) -> TableBlock:
    """Return a table's columns as arrays of the schema's types and shapes.

    Args:
        splits: the dataset's `splits`.
        plan: plan of the splits, if they need one.

    Raises:
        DataError: the table does not match the schema; names source, shard, column and, for a single row, its id.
    """
    _check_dtype(schema, where)
    ids = read_array(IDS, table.ids, "int64", where)
    given, arrays = table.given, {IDS: ids}
    _check_names(given, columns, where)
    ragged: dict[str, Ragged] = {}
    present: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        values, mask = given[name], None
        if column.optional or column.varies:
            values, mask = split_missing(name, column, values, where)
        if mask is not None:
            present[name] = mask
        if column.varies:
            ragged[name] = read_ragged(name, column, values, ids.reshape(-1), where)
        elif isinstance(values, list) and not values:
            arrays[name] = np.zeros((0, *column.shape), column.dtype)
        else:
            arrays[name] = read_array(name, values, column.dtype, where)
    keys = read_keys(table, ids.reshape(-1), splits, where)
    arrays["splits"] = _splits(table, keys.ids, splits, where)
    _check_shapes(arrays, columns, where)
    _check_lengths(ragged, present, len(ids), where)
    fixed = {}
    for name in columns.keys() & arrays.keys():
        with np.errstate(
            over="ignore"
        ):  # values too large for the type become infinite, and are found
            fixed[name] = np.ascontiguousarray(arrays[name], columns[name].dtype)
    _check_narrow(fixed, columns, ids, schema, where)
    for name, of in ragged.items():
        if not is_finite(of.values):
            bad = int(np.argwhere(~np.isfinite(of.values))[0][0])
            row = ids[np.searchsorted(of.offsets, bad, side="right") - 1]
            raise _not_finite_row(name, row, of.values.dtype, where)
    blocks = _blocks(keys, arrays["splits"], splits, plan, where)
    return TableBlock(
        ids=ids.astype(np.int64, copy=False),
        blocks=blocks,
        groups=keys.ids,
        fixed={name: fixed[name] for name in columns if name in fixed},
        ragged=ragged,
        present=present,
    )


def _check_names(given: Collection[str], columns: Mapping[str, Column], where: str) -> None:
    if missing := [name for name in columns if name not in given]:
        raise DataError(
            f"{where} returned a table without {missing[0]}, expected {', '.join(columns)} by its schema; "
            "add the column to the Table"
        )
    if unknown := [name for name in given if name not in columns]:
        raise DataError(
            f"{where} returned a table with a column {unknown[0]} that its schema lacks; "
            f"{suggest(unknown[0], columns)}; add the column to the schema, or remove it from the Table"
        )


def _splits(table: Table, keys: np.ndarray, splits: Mapping[str, Any], where: str) -> np.ndarray:
    if table.splits is not None:
        return read_array("splits", table.splits, "int64", where)
    if splits.keys() >= set(SPLITS):
        return assign_splits(keys, splits, seed=splits.get("seed", 0))
    if splits.get("folds") and "column" not in splits and "files" not in splits:
        return np.zeros(len(keys), dtype=np.int64)
    raise DataError(
        f"{where} returned rows without a split, expected a split for each row since `splits` is "
        f"{dict(splits)}; set `splits` of each Table, or set `splits` of the dataset to shares"
    )


def _blocks(
    keys: RowKeys, given: np.ndarray, splits: Mapping[str, Any], plan: SplitPlan | None, where: str
) -> np.ndarray:
    """Return each row's block [N] int64.

    Args:
        given: split of each row; with folds, only the rows of a fixed test set count.
    """
    folds, fixed = splits.get("folds", 0), given == SPLITS.index("test")
    if plan is None:
        return assign_folds(keys.ids, fixed, splits) if folds else given
    is_free = ~fixed if folds else np.ones(len(given), bool)
    blocks = np.full(len(given), 2 * folds)
    blocks[is_free] = planned_blocks(keys.only(is_free), splits, plan, where)
    return blocks


def _check_shapes(
    arrays: Mapping[str, np.ndarray], columns: Mapping[str, Column], where: str
) -> None:
    rows = len(arrays[IDS]) if arrays[IDS].ndim else 0
    for name, array in arrays.items():
        expected = (rows, *(columns[name].shape if name in columns else ()))
        if array.shape != expected:
            raise DataError(
                f"{where} returned {name} of shape {array.shape} with {rows} ids, expected {expected} by its "
                "schema; make all columns of a Table equally long, and all features of one shape"
            )
    outside = arrays["splits"][~np.isin(arrays["splits"], range(len(SPLITS)))]
    if outside.size:
        raise DataError(
            f"{where} returned split {outside[0]}, expected 0 to {len(SPLITS) - 1} for {', '.join(SPLITS)}; "
            "correct `splits` of the Table"
        )


def _check_lengths(
    ragged: Mapping[str, Ragged], present: Mapping[str, np.ndarray], rows: int, where: str
) -> None:
    lengths = {name: len(of.offsets) - 1 for name, of in ragged.items()}
    for name, found in (lengths | {name: len(of) for name, of in present.items()}).items():
        if found != rows:
            raise DataError(
                f"{where} returned {found} rows of {name} with {rows} ids, expected as many rows as ids; "
                "make all columns of a Table equally long"
            )


def is_finite(values: np.ndarray) -> bool:
    """Return whether no value is NaN or infinite."""
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def not_finite(name: str, values: np.ndarray, ids: np.ndarray, where: str) -> DataError:
    """Return the error of the first row [N, *shape] that is not finite."""
    row = ids[np.argwhere(~np.isfinite(values))[0][0]]
    return _not_finite_row(name, row, values.dtype, where)


def _not_finite_row(name: str, row: object, dtype: np.dtype[Any], where: str) -> DataError:
    what = {"features": "feature", "labels": "label"}.get(name, f"value in {name}")
    return DataError(
        f"{where}: row id {row} contains a missing or infinite {what}, expected a number in the range of "
        f"{dtype}; clean the source"
    )


def _check_narrow(
    fixed: Mapping[str, np.ndarray], columns: Mapping[str, Column], ids: np.ndarray, schema: Schema,
    where: str,
) -> None:  # fmt: skip
    """Reject bad numbers in the columns that are not checked while they are copied."""
    for name, values in fixed.items():
        is_wide = columns[name].item_bytes >= WIDE_BYTES and not columns[name].optional
        if not is_wide and not is_finite(values):
            raise not_finite(name, values, ids, where)
    record = schema.record()
    if record.task == "classification":
        _check_classes(fixed["labels"], schema.classes, where)
    if record.task == "multilabel":
        labels = fixed["labels"]
        _refuse("label", labels, ((labels != 0) & (labels != 1)).any(axis=1), ids, "0 or 1", where)
    if schema.weighted:
        weight = fixed[WEIGHT]
        _refuse(WEIGHT, weight, weight < 0, ids, "a weight of at least 0", where)


def _refuse(
    name: str, values: np.ndarray, bad: np.ndarray, ids: np.ndarray, expected: str, where: str
) -> None:
    """Reject rows by a mask [N]."""
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            f"{where}: row id {ids[row]} has the {name} {values[row].tolist()}, expected {expected}; correct the "
            "source"
        )


def _check_classes(labels: np.ndarray, classes: Iterable[str], where: str) -> None:
    last = len(tuple(classes)) - 1
    outside = labels[(labels < 0) | (labels > last)]
    if outside.size:
        raise DataError(
            f"{where}: label {outside[0]} is not a class, expected 0 to {last}, the index of a class in the "
            "schema; correct the labels or the schema's classes"
        )
