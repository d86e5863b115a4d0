"""The rows of one shard: read from a source, held to its schema, ordered by split."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shardline.errors import DataError
from shardline.shardfile import COLUMNS, FEATURE_DTYPES, Layout
from shardline.sources import SPLITS, Schema, Source, Table
from shardline.splits import assign_splits
from shardline.statistics import Moments


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a shard as its file will hold them: train, validation, test.

    Attributes:
        columns: `features`, `labels` and `ids`, each in pieces that follow one another.
        counts: number of rows by split, in the order of the columns.
        layout: where the columns will lie in the file.
        train: moments of the train rows' features.
        class_counts: rows of each class by split; empty for regression.
    """

    columns: dict[str, list[np.ndarray]]
    counts: dict[str, int]
    layout: Layout
    train: Moments
    class_counts: dict[str, list[int]]


def read_rows(source: Source, shard: int, splits: Mapping[str, Any]) -> Rows:
    """Read a shard's rows.

    Each table is checked, cut by split and summarised while it is still in the
    processor's cache, and can go before the source yields the next.

    Args:
        splits: the dataset's `splits`; the share of the rows by split, where
            the source's tables do not say each row's split themselves.

    Raises:
        DataError: the source gave no rows, or rows that its schema does not
            allow; names source, shard and, where it is one row, that row's id.
    """
    schema, where = source.schema, f"source {type(source).__name__}: shard {shard}"
    pieces: dict[str, list[dict[str, np.ndarray]]] = {split: [] for split in SPLITS}
    train = Moments.of(np.empty((0, 1)))
    for table in source.iter_tables(shard):
        table_columns = _read(table, schema, splits, where)
        for index, split in enumerate(SPLITS):
            rows = np.flatnonzero(table_columns["splits"] == index)
            piece = {name: _take(table_columns[name], rows, name, schema) for name in COLUMNS}
            _check_values(piece, schema, where)
            pieces[split].append(piece)
        features = pieces["train"][-1]["features"]
        train = train.merge(Moments.of(features.reshape(len(features), -1 if len(features) else 1)))
    columns = {
        name: [piece[name] for split in SPLITS for piece in pieces[split]] for name in COLUMNS
    }
    _check_ids(columns["ids"], where)
    return Rows(
        columns=columns,
        counts={split: sum(len(piece["ids"]) for piece in pieces[split]) for split in SPLITS},
        layout=Layout.of(asdict(schema), sum(map(len, columns["ids"]))),
        train=train,
        class_counts=_count_classes(pieces, schema),
    )


def _take(values: np.ndarray, rows: np.ndarray, name: str, schema: Schema) -> np.ndarray:
    wanted = {"features": schema.feature_dtype, "labels": schema.label_dtype, "ids": "int64"}[name]
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is found
        return values.take(rows, axis=0).astype(wanted, copy=False)


def _count_classes(
    pieces: Mapping[str, Sequence[Mapping[str, np.ndarray]]], schema: Schema
) -> dict[str, list[int]]:
    if schema.task != "classification":
        return {}
    return {
        split: sum(
            (np.bincount(piece["labels"], minlength=len(schema.classes)) for piece in given),
            start=np.zeros(len(schema.classes), dtype=np.int64),
        ).tolist()
        for split, given in pieces.items()
    }


def _read(
    table: Table, schema: Schema, splits: Mapping[str, Any], where: str
) -> dict[str, np.ndarray]:
    """Return a table's columns and `splits`, as arrays of the schema's shape."""
    if schema.feature_dtype not in FEATURE_DTYPES:
        raise DataError(
            f"{where}: its schema's feature_dtype is {schema.feature_dtype}, expected one of "
            f"{', '.join(FEATURE_DTYPES)}; convert the features to one of them"
        )
    columns = {
        "ids": _array("ids", table.ids, "int64", where),
        "features": _array("features", table.features, schema.feature_dtype, where),
        "labels": _array("labels", table.labels, schema.label_dtype, where),
    }
    if table.splits is not None:
        columns["splits"] = _array("splits", table.splits, "int64", where)
    elif splits.keys() >= set(SPLITS):
        columns["splits"] = assign_splits(columns["ids"], splits)
    else:
        raise DataError(
            f"{where} gave rows without a split, expected one for each row since splits is "
            f"{dict(splits)}; set `splits` of each Table, or give shares of the rows"
        )
    _check_shapes(columns, schema, where)
    return columns


def _array(name: str, values: object, wanted: str, where: str) -> np.ndarray:
    """Return values as an array that can become the wanted type without loss of meaning."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(
            f"{where} gave {name} of different lengths, expected rows of one shape; "
            "pad or cut them in the source"
        ) from None
    is_float = np.dtype(wanted).kind == "f"  # may round; an integer may not wrap around
    if not np.can_cast(array.dtype, wanted, "same_kind" if is_float else "safe"):
        hint = {"O": " (ragged rows, or text among them?)", "f": " (a value missing?)"}
        raise DataError(
            f"{where} gave {name} of type {array.dtype}{hint.get(array.dtype.kind, '')}, expected {wanted}; "
            "convert them in the source, or mend its schema"
        )
    return array


def _check_shapes(columns: Mapping[str, np.ndarray], schema: Schema, where: str) -> None:
    rows = len(columns["ids"]) if columns["ids"].ndim else 0
    for name, array in columns.items():
        expected = (rows, *(schema.feature_shape if name == "features" else ()))
        if array.shape != expected:
            raise DataError(
                f"{where} gave {name} of shape {array.shape} with {rows} ids, expected {expected} by its "
                "schema; make all columns of a Table equally long, and its features of one shape"
            )
    outside = columns["splits"][~np.isin(columns["splits"], range(len(SPLITS)))]
    if outside.size:
        raise DataError(
            f"{where} gave split {outside[0]}, expected 0 to {len(SPLITS) - 1} for {', '.join(SPLITS)}; "
            "mend `splits` of its Table"
        )


def _check_values(columns: Mapping[str, np.ndarray], schema: Schema, where: str) -> None:
    features, labels, ids = (columns[name] for name in COLUMNS)
    if features.dtype.kind == "f" and not np.isfinite(features).all():
        row = ids[np.argwhere(~np.isfinite(features))[0][0]]
        raise DataError(
            f"{where}: row id {row} holds a missing or infinite feature, expected a number that "
            f"{features.dtype} can hold; clean the source"
        )
    if not np.isfinite(labels).all():
        row = ids[~np.isfinite(labels)][0]
        raise DataError(
            f"{where}: row id {row} has a missing or infinite label, expected a number; clean the source"
        )
    if schema.task == "classification":
        _check_classes(labels, schema.classes, where)


def _check_ids(pieces: Sequence[np.ndarray], where: str) -> None:
    if not any(map(len, pieces)):
        raise DataError(f"{where} has no rows, expected at least one; lower the dataset's `shards`")
    values, counts = np.unique(np.concatenate(pieces), return_counts=True)
    if (counts > 1).any():
        raise DataError(
            f"{where}: row id {values[counts > 1][0]} stands twice, expected each id once since it "
            "decides the row's split; number the rows"
        )


def _check_classes(labels: np.ndarray, classes: Iterable[str], where: str) -> None:
    last = len(tuple(classes)) - 1
    outside = labels[(labels < 0) | (labels > last)]
    if outside.size:
        raise DataError(
            f"{where}: label {outside[0]} is outside 0..{last}, expected a class's place in the "
            "schema; mend the labels or the schema's classes"
        )
