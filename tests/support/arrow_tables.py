"""Rows of any columns as Arrow tables, and all rows that a source gives, by id."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from shardline.data.columns import Column
from shardline.sources import Source
from tests.support.columns import SCHEMA, values

Row = dict[str, Any]


@st.composite
def tables(draw: st.DrawFn, most: int = 12) -> tuple[dict[str, Column], list[Row], pa.Table]:
    """Columns, the rows' values, and the table that holds them beside their numbers in `key`."""
    columns = draw(SCHEMA.filter(lambda found: "key" not in found))
    row = st.fixed_dictionaries({name: values(column) for name, column in columns.items()})
    rows = draw(st.lists(row, min_size=1, max_size=most))
    arrays = {
        name: draw(arrays_of(column, [row[name] for row in rows]))
        for name, column in columns.items()
    }
    return columns, rows, pa.table({**arrays, "key": np.arange(len(rows))})


@st.composite
def arrays_of(draw: st.DrawFn, column: Column, given: list[Any]) -> pa.Array:
    """A column's values in one of the types that they may have in a file."""
    large = draw(st.booleans())
    if column.kind == "text":
        kind = draw(st.sampled_from([pa.string(), pa.large_string(), pa.binary()]))
        if kind == pa.binary():
            given = [value if value is None else value.encode() for value in given]
        return pa.array(given, kind)
    if column.kind == "bytes":
        return pa.array(given, pa.large_binary() if large else pa.binary())
    kind = pa.from_numpy_dtype(np.dtype(column.dtype))
    for size in reversed(column.shape):
        is_fixed = not column.optional and draw(
            st.booleans()
        )  # Parquet has no missing lists of one size
        kind = pa.list_(kind, size) if is_fixed else pa.list_(kind)
    if column.varies:
        kind = pa.large_list(kind) if large else pa.list_(kind)
    return pa.array([plain(value) for value in given], kind)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def rows_of(source: Source) -> dict[int, Row]:
    """Read all shards, the last one first: each row's values by its id, in Python's own types."""
    found: dict[int, Row] = {}
    columns = source.schema.record().columns
    for shard in reversed(range(source.num_shards)):
        for row in source.iter_rows(shard):
            number = row.pop("ids")
            assert number not in found
            kinds = {name: Column.parse(name, columns[name]) for name in row}
            found[number] = {
                name: plain(kinds[name].value(of) if kinds[name].varies and isinstance(of, np.ndarray) else plain(of))
                for name, of in row.items()
            }  # fmt: skip
    return found
