"""Parquet file of a prediction, with one row group per part."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardline.core.errors import DataError
from shardline.core.files import atomic_writer
from shardline.data.prediction_parts import (
    ID,
    LABEL,
    LENGTHS,
    OUTPUT,
    PROBABILITIES,
    PROBABILITY,
    read_part,
)
from shardline.data.sources.from_files import text_id

FILE, FOLD = "file", "fold"
_MOST_POSITIONS = 1 << 48  # of rows in a file


def write_predictions(
    path: Path, parts: Iterable[Path], *, classes: Sequence[str], names: Sequence[str],
    about: Mapping[str, Any],
) -> int:  # fmt: skip
    """Write the parts of a prediction atomically as one Parquet file, with one part in memory at a time.

    Args:
        parts: files of the parts, in order.
        classes: names of the classes, if predictions and labels are class indices.
        names: names of the files with the rows, if row ids were derived from these.
        about: description of run and rows, stored under `shardline` in the file's metadata.

    Returns:
        The number of rows.

    Raises:
        DataError: a part cannot be read, or the file cannot be written.
    """
    bases = _Bases(names)
    tables = _tables(parts, classes, bases)
    first = next(tables)
    described = {**(first.schema.metadata or {}), b"shardline": json.dumps(about).encode()}
    schema, rows = first.schema.with_metadata(described), 0
    with atomic_writer(path) as file, pq.ParquetWriter(file, schema) as writer:
        for table in _chained(first, tables):
            writer.write_table(table.cast(schema), row_group_size=max(1, table.num_rows))
            rows += table.num_rows
    return rows


def join_predictions(path: Path, files: Sequence[Path], *, about: Mapping[str, Any]) -> int:
    """Write the predictions of all folds atomically as one Parquet file, with a column `fold`.

    Args:
        files: files of the folds, in order; one row group is in memory at a time.
        about: description of runs and rows, stored under `shardline` in the file's metadata.

    Returns:
        The number of rows.

    Raises:
        DataError: a file cannot be read, two folds predict one row, or the file cannot be written.
    """
    try:
        folds = [pq.ParquetFile(file) for file in files]
        described = {b"shardline": json.dumps(about).encode()}
        schema = folds[0].schema_arrow.append(pa.field(FOLD, pa.int32()))
        schema, ids = schema.with_metadata({**(schema.metadata or {}), **described}), []
        with atomic_writer(path) as output, pq.ParquetWriter(output, schema) as writer:
            for fold, file in enumerate(folds):
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group)
                    number = pa.array(np.full(table.num_rows, fold, np.int32))
                    writer.write_table(table.append_column(FOLD, number).cast(schema))
                    ids.append(table[ID].to_numpy())
            return _unique(np.concatenate(ids), files[0])
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"predictions of folds cannot be joined ({error}), expected {len(files)} complete files with the same "
            f"columns, the first {files[0]}; delete them, and predict again"
        ) from None


def _unique(ids: np.ndarray, first: Path) -> int:
    """Return the number of row ids, each of which must occur once."""
    if len(np.unique(ids)) != len(ids):
        raise DataError(
            f"{first} and the files of the other folds predict a row twice, expected each row of the dataset once; "
            "delete them, and predict again"
        )
    return len(ids)


def _chained(first: pa.Table, others: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from others


def _tables(parts: Iterable[Path], classes: Sequence[str], bases: "_Bases") -> Iterator[pa.Table]:
    for path in parts:
        yield _table(read_part(path), classes, bases)


def _table(part: Mapping[str, np.ndarray], classes: Sequence[str], bases: "_Bases") -> pa.Table:
    columns: dict[str, pa.Array] = {ID: pa.array(part[ID])}
    if bases.names:
        columns[FILE] = bases.files_of(part[ID])
    is_class = PROBABILITIES in part
    for name in (LABEL, OUTPUT):
        if name in part:
            is_place = bool(classes) and (is_class or name == LABEL)
            columns[name] = _named(part[name], classes) if is_place else _column(part, name)
    if is_class:
        shares = part[PROBABILITIES]
        columns[PROBABILITY] = pa.array(shares[np.arange(len(shares)), part[OUTPUT]])
    # safetensors files do not keep an order
    for name in sorted(part.keys() - columns.keys()):
        if not name.endswith(LENGTHS) or name.removesuffix(LENGTHS) not in part:
            columns[name] = _column(part, name)
    return pa.table(columns)


def _named(places: np.ndarray, classes: Sequence[str]) -> pa.Array:
    return pa.array([str(name) for name in classes], pa.string()).take(pa.array(places))


def _column(part: Mapping[str, np.ndarray], name: str) -> pa.Array:
    """Return a column; with row lengths, as lists without padding."""
    values, lengths = part[name], part.get(name + LENGTHS)
    if lengths is None:
        return _array(values)
    is_own = np.arange(values.shape[1]) < lengths[:, None]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), _array(values[is_own]))


def _array(values: np.ndarray) -> pa.Array:
    """Return values [n, ...] as a column of numbers or of lists of one size."""
    array = pa.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


class _Bases:
    """Lookup of a row's file by its id, from the ids of the files' first rows."""

    def __init__(self, names: Sequence[str]) -> None:
        pairs = sorted((text_id(name), name) for name in names)
        self.names = pa.array([name for _, name in pairs], pa.string())
        self._ids = np.array([base for base, _ in pairs], dtype=np.int64)

    def files_of(self, ids: np.ndarray) -> pa.Array:
        """Return the name of each row's file; null for an id outside all files."""
        places = np.searchsorted(self._ids, ids, side="right") - 1
        with np.errstate(over="ignore"):  # ids wrap around
            positions = (ids - self._ids[places]).view(np.uint64)
        known = positions < _MOST_POSITIONS
        return self.names.take(pa.array(places % len(self._ids), mask=~known))
