"""Columns of any kind: what a source gives is what any reader of safetensors finds, and what cannot be is named."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from safetensors import safe_open

from shardline.data.build import build_shards
from shardline.data.columns import Column, parse_columns
from shardline.data.shard_format import HEADER_BYTES
from shardline.errors import DataError
from shardline.results.verify_store import check_statistics
from shardline.sources import SPLITS, Ragged, Schema, Source, Table
from tests.support.columns import COLUMN, Given, as_array, manifest_of, sources


@settings(max_examples=150, deadline=None, print_blob=True)
@given(source=sources())
def test_any_reader_of_safetensors_finds_the_rows_that_a_source_gave(source: Given) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        manifest = manifest_of(source, folder)
        assert check_statistics(folder, manifest) is None
        for shard, record in enumerate(manifest.shards):
            rows = source.rows[shard]
            order = [
                place for split in range(3) for place in range(len(rows)) if rows[place][0] == split
            ]
            counts = [sum(split == part for split, _ in rows) for part in range(3)]
            assert record.rows == dict(zip(SPLITS, counts, strict=True))
            path = folder / record.file
            header = json.loads(path.read_bytes()[8:HEADER_BYTES])
            assert header.pop("__metadata__") == {"shard": str(shard), "format": "2"}
            assert all(
                of["data_offsets"][0] % 64 == 0 for n, of in header.items() if "padding" not in n
            )
            assert min(of["data_offsets"][0] for of in header.values()) == 0
            with safe_open(path, framework="np") as file:
                assert file.get_tensor("ids").tolist() == source.ids(shard)[order].tolist()
                for column_name, column in source.columns.items():
                    given_values = [rows[place][1][column_name] for place in order]
                    check_column(file, column_name, column, given_values)


def check_column(file: Any, name: str, column: Column, given_values: list[Any]) -> None:
    found = file.get_tensor(name)
    assert found.dtype == np.dtype(column.dtype)
    if column.optional:
        present = file.get_tensor(f"{name}.present")
        assert present.tolist() == [value is not None for value in given_values]
    offsets = file.get_tensor(f"{name}.offsets") if column.varies else None
    for place, value in enumerate(given_values):
        row = found[place] if offsets is None else found[offsets[place] : offsets[place + 1]]
        if value is None:
            assert not row.any()
        else:
            assert np.array_equal(row, as_array(column, value))


@given(column=COLUMN)
def test_a_column_is_read_as_it_is_written(column: Column) -> None:
    assert Column.parse("x", str(column)) == column


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "has no columns, expected at least one"),
        ({"x": "flaot32[3]"}, r"column x='flaot32\[3\]' .* did you mean \"float32\"\?"),
        ({"x": "float32[3"}, "is not a type"),
        ({"x": "float32[]"}, "is not a type"),
        ({"x": "float32[0]"}, "is not a type"),
        ({"x": "float32[3,*]"}, "is not a type"),
        ({"x": "text[*]"}, "is not a type"),
        ({"x": 3}, "column x=3 of a schema is not a type"),
        ({"x.offsets": "int64"}, r"column 'x\.offsets' .* rename the column"),
        ({"x.mean_count": "float32"}, r"column 'x\.mean_count' .* none of the reserved names .*\.mean_count;"),
        ({"x.present": "int64"}, "has an invalid name"),
        ({"padding.3": "int64"}, "has an invalid name"),
        ({"ids": "int64"}, "has an invalid name"),
        ({"a b": "int64"}, "has an invalid name"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_stored_is_refused(columns: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_columns(columns)


def test_classes_need_a_column_of_labels() -> None:
    for columns in (
        {"x": "bytes"},
        {"labels": "float32"},
        {"labels": "int64[2]"},
        {"labels": "int64?"},
    ):
        with pytest.raises(
            DataError, match="has 2 classes and labels=.*expected a column named labels"
        ):
            Schema(columns=columns, classes=("a", "b")).record()
    tasks = [
        Schema(columns=columns, classes=classes).record().task
        for columns, classes in (
            ({"x": "bytes", "labels": "int16"}, ("a", "b")), ({"labels": "float64"}, ()), ({"labels": "int64"}, ()),
        )
    ]  # fmt: skip
    assert tasks == ["classification", "regression", "none"]


LATIN = Ragged(values=np.array([97, 0xE4], np.uint8), offsets=np.arange(3))
HUGE = Ragged(values=np.zeros(3, np.int32), offsets=np.array([0, 2**62, 3]))


@pytest.mark.parametrize(
    ("column", "values_", "message"),
    [
        ("int32[*]", [[1, 2], [2**40]], r"row id 1 returned x of type int64, expected int32"),
        ("int32[*]", [[1, 2], [[1], [2]]], r"row id 1 has x of shape \(2, 1\), expected int32\[\*\]; correct the row"),
        ("int32[*]", [[1, 2], 3], r"row id 1 has x of shape \(\), expected int32\[\*\]"),
        ("int32[*]", [[1, 2], None], r'returned no x for row 1 of a table.* write "x": "int32\[\*\]\?" in its schema'),
        ("int32[*]", [[1, 2]], "returned 1 rows of x with 2 ids, expected as many"),
        ("int32[*]", HUGE, "expected int32.* with offsets that rise from 0 to the number of values"),
        ("float32[*,2]", [[[1, 2]], [[1, np.nan]]], "row id 1 contains a missing or infinite value in x"),
        ("float32[*]", [[1.0], [1e300]], "row id 1 contains a missing or infinite value in x.* range of float32"),
        ("float64", [1.0, np.inf], "row id 1 contains a missing or infinite value in x"),
        ("float32[30]", [[1.0] * 30, [np.nan] * 30], "row id 1 contains a missing or infinite value in x"),
        ("float32[2]", [[1.0, 2.0], [1.0]], "returned x of different lengths"),
        ("text", ["a", "\ud800"], r"row id 1 has x with '\\ud800', half of a character"),
        ("text", ["a", b"b"], "row id 1 has x of type bytes, expected str"),
        ("text", LATIN, "row id 1 has x that is not UTF-8"),
        ("bytes", [b"a", "b"], "row id 1 has x of type str, expected bytes"),
        ("bytes", [b"a", None], r'write "x": "bytes\?" in its schema if rows may have no value'),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:overflow")
def test_values_that_a_schema_does_not_allow_name_the_row_and_nothing_is_written(
    column: str, values_: Any, message: str, tmp_path: Path
) -> None:
    class Bad(Source):
        schema = Schema(columns={"x": column})

        def iter_tables(self, shard: int) -> Any:
            yield Table(ids=np.arange(2), columns={"x": values_}, splits=np.array([0, 1]))

    with pytest.raises(DataError, match=f"^source Bad: shard 0.*{message}") as error:
        list(build_shards(Bad(num_shards=1), [0], {}, tmp_path))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1]}, "returned a table without b, expected a, b by its schema"),
        ({"a": [1], "b": [1], "ab": [1]}, "with a column ab that its schema lacks"),
    ],
)
def test_a_table_has_the_columns_of_its_schema(columns: Any, message: str, tmp_path: Path) -> None:
    class Bad(Source):
        schema = Schema(columns={"a": "int64", "b": "int64"})

        def iter_tables(self, shard: int) -> Any:
            yield Table(ids=[0], columns=columns, splits=[0])

    with pytest.raises(DataError, match=message):
        list(build_shards(Bad(num_shards=1), [0], {}, tmp_path))
