"""Named columns of CSV, Parquet and Delta: every value as the file has it, and bad ones by name."""

import csv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.data.build import build_shards
from shardline.data.columns import Column
from shardline.data.sources.csv import Csv
from shardline.data.sources.delta import Delta
from shardline.data.sources.parquet import Parquet
from shardline.errors import DataError, ShardlineError
from tests.support.arrow_tables import plain, rows_of, tables
from tests.support.source_cases import load_dataset, make


def written(columns: dict[str, Column]) -> dict[str, str]:
    return {name: str(column) for name, column in columns.items()}


@settings(max_examples=60, deadline=None)
@given(table=tables(), shards=st.integers(1, 5), group=st.integers(1, 5), data=st.data())
def test_parquet_gives_each_row_as_it_is(
    table: Any, shards: int, group: int, data: st.DataObject
) -> None:
    columns, rows, arrow = table
    cut = data.draw(st.integers(0, len(rows)))
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("a.parquet", "b.parquet")]
        for path, part in zip(paths, (arrow[:cut], arrow[cut:]), strict=True):
            pq.write_table(part, path, row_group_size=group)
        source = Parquet(num_shards=shards, files=paths, id_column="key", columns=written(columns))
        found = rows_of(source)
        assert found == {n: {k: plain(v) for k, v in row.items()} for n, row in enumerate(rows)}
        if shards == 1:  # what the build stores of them is held by test_columns.py
            list(build_shards(source, [0], {"train": 1, "validation": 0, "test": 0}, Path(folder)))


@settings(max_examples=5, deadline=None)
@given(table=tables(most=4))
def test_delta_gives_each_row_as_it_is(table: Any) -> None:
    columns, rows, arrow = table
    with TemporaryDirectory() as folder:
        unknown = ("float16", "uint16", "uint8")  # Delta has no such numbers
        half = {n for n, c in columns.items() if c.dtype in unknown and c.kind == "array"}
        kept = {name: column for name, column in columns.items() if name not in half}
        if not kept:
            return
        write_deltalake(folder, arrow.drop_columns(list(half)))
        source = Delta(
            num_shards=2, table=folder, version=0, id_column="key", columns=written(kept)
        )
        assert rows_of(source) == {
            n: {k: plain(row[k]) for k in kept} for n, row in enumerate(rows)
        }


CELLS = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**31), 2**31 - 1),
        "x": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "t": st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=5),
        "o": st.none() | st.text("abcN,\" é", min_size=1, max_size=3),
    }
)  # fmt: skip
TYPES = {"n": "int32?", "x": "float32", "t": "text", "o": "text?"}


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(CELLS, min_size=1, max_size=9), shards=st.integers(1, 5))
def test_csv_gives_each_row_as_it_is(rows: list[dict[str, Any]], shards: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["key", *TYPES])
            for n, row in enumerate(rows):
                writer.writerow([n, *("" if row[name] is None else row[name] for name in TYPES)])
        source = Csv(num_shards=shards, files=[path], id_column="key", columns=TYPES)
        assert rows_of(source) == dict(enumerate(rows))


def test_columns_may_have_other_names_in_the_file_and_a_label_of_classes(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"ids.of.tokens": [[1, 2], []], "kind": ["dog", "cat"], "key": [5, 6]}),
        tmp_path / "a.parquet",
    )
    source = make(
        tmp_path,
        {
            "type": "parquet", "files": ["*.parquet"], "columns": {"tokens": "int32[*]"}, "id_column": "key",
            "rename": {"tokens": "ids.of.tokens"}, "label": "kind", "classes": ["cat", "dog"],
        },
    )  # fmt: skip
    assert source.schema.columns == {"tokens": "int32[*]", "labels": "int64"}
    assert source.schema.classes == ("cat", "dog")
    assert rows_of(source) == {5: {"tokens": [1, 2], "labels": 1}, 6: {"tokens": [], "labels": 0}}


def test_regression_and_splits_by_a_column(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"x": [1, 2], "y": [0.5, 1.5], "part": ["train", "test"]}), tmp_path / "a.parquet"
    )
    source = make(
        tmp_path,
        {"type": "parquet", "files": ["*.parquet"], "columns": {"x": "int8"}, "label": "y", "task": "regression"},
        splits={"column": "part"},
    )  # fmt: skip
    assert source.schema.columns == {"x": "int8", "labels": "float32"}
    splits = [int(s) for shard in range(3) for t in source.iter_tables(shard) for s in t.splits]
    assert splits == [0, 2]


BAD: dict[str, tuple[str, Any, str]] = {
    "a number beyond its type": ("int8", [1, 300], "is 300, expected a finite number (int8)"),
    "a fraction": ("int32", [1.0, 1.5], "is 1.5, expected a finite number (int32)"),
    "a missing number": ("int32", [1, None], "is empty, expected a finite number (int32)"),
    "infinity for half": ("float16", [1.0, 1e5], "is 100000.0, expected a finite number (float16)"),
    "no truth value": ("bool", [1, 2], "is 2, expected a finite number (bool)"),
    "a short list": ("float32[2]", [[1.0, 2.0], [1.0]], "is a list of 1 (1.0), expected finite numbers (float32[2])"),
    "a missing list": ("int32[*]", [[1], None], "is empty, expected finite numbers (int32[*])"),
    "NaN in a list": ("float32[*]", [[1.0], [0.0, float("nan")]], "is a list of 2 (0.0, nan), expected finite "),
    "rows of another width": (
        "float32[*,2]", [[[1.0, 2.0]], [[1.0, 2.0], [3.0]]], "is a list of 2 ([1.0, 2.0], [3.0]), expected ",
    ),
    "no UTF-8": ("text", [b"a", b"\xff"], "is b'\\xff', expected text in UTF-8"),
    "a missing text": ("text", ["a", None], "is empty, expected text in UTF-8"),
    "missing bytes": ("bytes", [b"", None], "is empty, expected bytes"),
    "a file elsewhere": (
        "bytes?", [{"bytes": b"a", "path": None}, {"bytes": None, "path": "b"}],
        "is {'bytes': None, 'path': 'b'}, expected bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_value_is_named_or_counted(case: str, tmp_path: Path) -> None:
    kind, values, expected = BAD[case]
    pq.write_table(pa.table({"v": values}), tmp_path / "a.parquet")
    files = [tmp_path / "a.parquet"]
    arguments: dict[str, Any] = {"num_shards": 1, "files": files, "columns": {"v": kind}}
    with pytest.raises(DataError) as error:
        rows_of(Parquet(**arguments))
    assert f"a.parquet, row 2: column v {expected}" in str(error.value)
    assert "fix it, or leave it out with source.on_bad: skip" in str(error.value)
    source = Parquet(**arguments, on_bad="skip")
    assert len(rows_of(source)) == 1
    assert len(source.skipped[0]) == 1


def test_text_of_a_parquet_file_is_not_believed_to_be_utf8(tmp_path: Path) -> None:
    array = pa.StringArray.from_buffers(
        2, pa.py_buffer(np.array([0, 1, 2], np.int32).tobytes()), pa.py_buffer(b"a\xff")
    )
    pq.write_table(pa.table({"v": array}), tmp_path / "a.parquet")
    source = Parquet(num_shards=1, files=[tmp_path / "a.parquet"], columns={"v": "text"})
    with pytest.raises(DataError, match="row 2: column v is .*, expected text in UTF-8"):
        rows_of(source)


def test_files_of_images_as_hugging_face_has_them(tmp_path: Path) -> None:
    images = [{"bytes": b"jpeg", "path": None}, None]
    pq.write_table(pa.table({"image": images}), tmp_path / "a.parquet")
    source = Parquet(num_shards=1, files=[tmp_path / "a.parquet"], columns={"image": "bytes?"})
    assert [row["image"] for row in rows_of(source).values()] == [b"jpeg", None]


CONFIG: dict[str, Any] = {"type": "parquet", "files": ["*.parquet"], "columns": {"v": "int32[*]"}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"columns": {"v": "int33"}}, "column v='int33' of a schema is not a type, expected "),
        ({"columns": {"ids": "int64"}}, "column 'ids' of a schema has an invalid name"),
        ({"columns": {"x.offsets": "int64"}}, "column 'x.offsets' of a schema has an invalid name"),
    ],
)  # fmt: skip
def test_refused(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": ["a"], "y": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ShardlineError) as error:
        rows_of(make(tmp_path, {**CONFIG, **change}))
    assert expected in str(error.value)


def test_what_counts_of_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": [[1]], "w": [[1]]}), tmp_path / "a.parquet")
    before = load_dataset(tmp_path, CONFIG)
    assert before.document["settings"]["source"]["columns"] == {"v": "int32[*]"}
    for change in ({"columns": {"v": "int16[*]"}}, {"rename": {"v": "w"}}):
        assert load_dataset(tmp_path, {**CONFIG, **change}).id != before.id


def test_a_large_row_group_is_read_in_blocks(tmp_path: Path) -> None:
    content = [bytes(2**20)] * 100
    pq.write_table(pa.table({"v": content}), tmp_path / "a.parquet", use_dictionary=False)
    source = Parquet(num_shards=1, files=[tmp_path / "a.parquet"], columns={"v": "bytes"})
    sizes = [len(table.ids) for table in source.iter_tables(0)]
    assert sum(sizes) == 100
    assert max(sizes) <= 64
