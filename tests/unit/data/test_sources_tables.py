"""CSV, Parquet and Delta: every row once, however it is cut, and bad ones by name."""

import csv
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from shardline.data.sources import lines as lines_module
from shardline.data.sources import parquet as parquet_module
from shardline.data.sources.source import combine_digests
from shardline.errors import ConfigError, DataError, ShardlineError
from tests.support.delta_tables import delete_rows, need_features, rename_columns
from tests.support.source_cases import load_dataset, make, read

KINDS = ("csv", "parquet", "delta")
BASE: dict[str, Any] = {"label": "y", "classes": ["a", "b"]}

Write = Callable[[dict[str, Any]], dict[str, Any]]


def columns(first: int, rows: int) -> dict[str, Any]:
    """Rows whose numbers all follow from their number."""
    numbers = np.arange(first, first + rows)
    return {
        "key": numbers,
        "x0": numbers + 0.5,
        "x1": -numbers,
        "note": [f"row {n}" for n in numbers],
        "y": ["ab"[n % 2] for n in numbers],
        "part": [("train", "val", "test")[n % 3] for n in numbers],
    }


def write_csv(path: Path, table: dict[str, Any]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


def source_of(kind: str, folder: Path, *tables: dict[str, Any]) -> dict[str, Any]:
    """Write tables in a format and return the `source` that names them."""
    (folder / "data").mkdir(exist_ok=True)
    for number, table in enumerate(tables):
        if kind == "csv":
            write_csv(folder / "data" / f"{number}.csv", table)
        elif kind == "parquet":
            pq.write_table(pa.table(table), folder / "data" / f"{number}.parquet", row_group_size=7)
        else:
            write_deltalake(folder / "data", pa.table(table), mode="append")
    if kind == "delta":
        return {"type": "delta", "table": "data", "version": len(tables) - 1, **BASE}
    return {"type": kind, "files": [f"data/*.{kind}"], **BASE}


def message(folder: Path, source: dict[str, Any], **settings: Any) -> str:
    """The one sentence that reading a source ends with; folders left out."""
    with pytest.raises(ShardlineError) as error:
        read(make(folder, source, **settings))
    text = str(error.value)
    assert "\n" not in text
    return text.replace(f"{folder}/", "")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("shards", [1, 3, 50])
def test_packed_csv_has_the_same_rows(shards: int, tmp_path: Path) -> None:
    source = source_of("csv", tmp_path, columns(0, 20), columns(20, 17)) | {"id_column": "key"}
    plain = read(make(tmp_path, source, shards=shards))
    for path in (tmp_path / "data").glob("*.csv"):
        path.with_suffix(".csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    packed = read(make(tmp_path, source | {"files": ["data/*.csv.gz"]}, shards=shards))
    assert (packed.ids == plain.ids).all()
    assert (packed.features == plain.features).all()
    assert (packed.labels == plain.labels).all()


@pytest.mark.parametrize("shards", [1, 3, 50])
def test_every_row_once_however_it_is_cut(
    kind: str, shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "_BLOCK_BYTES", 100)
    monkeypatch.setattr(parquet_module, "_BLOCK_BYTES", 3 * 16)
    source = source_of(kind, tmp_path, columns(0, 20), columns(20, 17))
    source |= {"features": ["x1", "x0"], "id_column": "key"}
    rows = read(make(tmp_path, source, shards=shards))
    numbers = np.arange(37)
    assert (rows.ids == numbers).all()
    assert (rows.features == np.stack([-numbers, numbers + 0.5], axis=1)).all()
    assert (rows.labels == numbers % 2).all()
    assert rows.splits is None


def test_features_left_out_are_the_columns_of_numbers(kind: str, tmp_path: Path) -> None:
    source = make(tmp_path, source_of(kind, tmp_path, columns(0, 5)) | {"id_column": "key"})
    assert source.schema.feature_shape == (2,)
    assert source.schema.feature_dtype == "float32"
    row = next(source.iter_rows(2))
    assert (row["ids"], list(row["features"]), row["labels"]) in [
        (n, [n + 0.5, -n], n % 2) for n in range(5)
    ]


def test_ids_stay_the_same_when_files_and_shards_are_added(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path, columns(0, 20)) | {"features": ["x0"]}
    before = read(make(tmp_path, source))
    source = source_of(kind, tmp_path, columns(0, 20), columns(20, 9)) | {"features": ["x0"]}
    if kind == "delta":  # appended twice now
        source |= {"version": 2}
    after = read(make(tmp_path, source, shards=7))
    ids = dict(zip(after.ids, after.features[:, 0], strict=True))
    assert {i: ids.get(i) for i in before.ids} == dict(
        zip(before.ids, before.features[:, 0], strict=True)
    )


def test_ids_may_be_text(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path, columns(0, 20)) | {"id_column": "note", "features": ["x0"]}
    rows, again = read(make(tmp_path, source)), read(make(tmp_path, source, shards=1))
    assert (rows.ids == again.ids).all()
    assert (rows.features == again.features).all()


def test_splits_by_column(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path, columns(0, 12)) | {"id_column": "key"}
    rows = read(make(tmp_path, source, splits={"column": "part"}))
    assert rows.splits == ["train", "validation", "test"] * 4
    assert rows.features.shape == (12, 2)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_splits_by_file(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path, columns(0, 200), columns(200, 10), columns(210, 10))
    source |= {"id_column": "key"}
    names = {name: [f"{i}.{kind}"] for i, name in enumerate(("train", "validation", "test"))}
    rows = read(make(tmp_path, source, splits={"files": names}))
    assert rows.splits == ["train"] * 200 + ["validation"] * 10 + ["test"] * 10
    names = {"train": [f"data/[01].{kind}"], "validation": 0.2, "test": [f"2.{kind}"]}
    rows = read(make(tmp_path, source, splits={"files": names}))
    assert rows.splits is not None
    assert rows.splits[210:] == ["test"] * 10
    assert 25 < rows.splits[:210].count("validation") < 60
    assert rows.splits[:210].count("test") == 0


def test_numbers_as_labels(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path, columns(0, 5)) | {"label": "x0", "features": ["x1"]}
    del source["classes"]
    source |= {"task": "regression", "id_column": "key"}
    assert list(read(make(tmp_path, source)).labels) == [0.5, 1.5, 2.5, 3.5, 4.5]
    source |= {"task": "classification", "label": "key", "id_column": "note", "num_classes": 5}
    assert sorted(read(make(tmp_path, source)).labels) == [0, 1, 2, 3, 4]
    source |= {"num_classes": 4}
    assert re.search(
        r"column key is 4, expected one of .*\(0, 1, 2, 3\)", message(tmp_path, source)
    )


PLACE = {"csv": "data/0.csv, line 4", "parquet": "data/0.parquet, row 3"}


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("x0", None, "column x0 is empty, expected a finite number (float32)"),
        ("x0", float("nan"), "column x0 is (empty|nan), expected a finite number (float32)"),
        ("x0", float("inf"), "column x0 is inf, expected a finite number (float32)"),
        ("y", "c", "column y is c, expected one of source.classes (a, b)"),
        ("y", None, "column y is empty, expected one of source.classes (a, b)"),
        ("key", None, "column key is empty, expected a whole number"),
        ("part", "dev2", "column part is dev2, expected train, validation (val, valid, dev) or test"),
        ("part", None, "column part is empty, expected train, validation (val, valid, dev) or test"),
    ],
)  # fmt: skip
def test_bad_value(kind: str, column: str, value: Any, expected: str, tmp_path: Path) -> None:
    table = columns(0, 8)
    table[column] = [*list(table[column])[:2], value, *list(table[column])[3:]]
    if column == "key":
        table["key"] = pa.array([None if n == 2 else n for n in range(8)])
    if kind == "csv":
        table = {name: ["" if v is None else v for v in list(t)] for name, t in table.items()}
        if column == "key":
            table["key"] = ["" if n == 2 else n for n in range(8)]
    source = source_of(kind, tmp_path, table) | {"id_column": "key"}
    splits = (
        {"column": "part"} if column == "part" else {"train": 0.8, "validation": 0.1, "test": 0.1}
    )
    found = message(tmp_path, source, splits=splits)
    pattern = re.escape(expected).replace(r"\(empty\|nan\)", "(empty|nan)")
    remedy = re.escape("; fix it, or leave it out with source.on_bad: skip")
    assert re.search(rf"^{PLACE.get(kind, '.*row 3')}: {pattern}{remedy}$", found), found
    left = make(tmp_path, source | {"on_bad": "skip"}, splits=splits, shards=2)
    assert list(read(left).ids) == [0, 1, 3, 4, 5, 6, 7]
    assert sum(map(len, left.skipped.values())) == 1
    assert re.search(pattern, left.skipped[0][0])
    read(left)
    assert sum(map(len, left.skipped.values())) == 1, "a second reading counts anew"


def test_text_where_numbers_are_expected(tmp_path: Path) -> None:
    table = columns(0, 8)
    table["x0"] = [*table["x0"][:5], "seven", *table["x0"][6:]]
    source = source_of("csv", tmp_path, table) | {"features": ["x0", "x1"], "id_column": "key"}
    assert message(tmp_path, source) == (
        "data/0.csv, line 7: column x0 is seven, expected a finite number (float32); "
        "fix it, or leave it out with source.on_bad: skip"
    )
    assert list(read(make(tmp_path, source | {"on_bad": "skip"})).ids) == [0, 1, 2, 3, 4, 6, 7]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"label": "z"}, '.*: no columns named z; use one of key, x0, x1, note, y, part'),
        ({"features": ["x0", "nota"]}, '.*: no columns named nota; did you mean "note"?'),
        ({"id_column": "x0"}, "id_column x0 contains fractions, expected whole numbers or text; set source.id_column"),
    ],
)  # fmt: skip
def test_columns_that_are_not_there(
    kind: str, change: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    source = source_of(kind, tmp_path, columns(0, 8)) | change
    assert re.search(expected.replace("?", r"\?"), message(tmp_path, source))


# --- CSV ------------------------------------------------------------------------------------


def csv_source(folder: Path, *contents: str | bytes, **options: Any) -> dict[str, Any]:
    for number, content in enumerate(contents):
        data = content.encode() if isinstance(content, str) else content
        (folder / f"{number}.csv").write_bytes(data)
    return {"type": "csv", "files": ["*.csv"], **BASE, **options}


GOOD = "x,y\n1,a\n2,b\n"


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (
            (GOOD, "x,y,z\n1,a,3\n"),
            "1.csv: its header has an additional column z, unlike 0.csv; write the same header in all files, "
            "or make two datasets of them",
        ),
        ((GOOD, "y,x\na,1\n"), "1.csv: its header has another order of columns than 0.csv; write .*"),
        ((GOOD + "\n3,b,7\n",), "0.csv, line 5: the number of fields is 3, expected 2; fix it, or .*"),
        ((GOOD.encode() + b"3,\xe9\n",), "0.csv, line 4: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        ((GOOD, "x,y\n1,a\nx,y\n2,b\n"), "1.csv, line 3: the header is repeated here, as in joined files, .*"),
        ((gzip.compress(b""),), "0.csv: is empty, expected a line of column names; add a header, or .*"),
        ((b"PK\x03\x04abc\n",), "0.csv: cannot be unpacked .*, expected a complete zip file; .*"),
        ((gzip.compress(GOOD.encode() + b"3\n"),), "0.csv, line 4: the number of fields is 1, expected 2; fix it, .*"),
    ],
)  # fmt: skip
def test_bad_csv(contents: tuple[str | bytes, ...], expected: str, tmp_path: Path) -> None:
    found = message(tmp_path, csv_source(tmp_path, *contents), shards=1)
    assert re.fullmatch(expected, found), found


def test_ragged_rows_may_be_left_out(tmp_path: Path) -> None:
    source = csv_source(tmp_path, GOOD + "3\n\n4,a,9\n5,b\n", on_bad="skip")
    left = make(tmp_path, source)
    assert list(read(left).features[:, 0]) == [1, 2, 5]
    assert sorted(
        s.partition(".csv, ")[2] for skipped in left.skipped.values() for s in skipped
    ) == [
        "line 4: the number of fields is 1, expected 2",
        "line 6: the number of fields is 3, expected 2",
    ]


@pytest.mark.parametrize("features", [["x"], []])
def test_headers_without_rows(features: list[str], tmp_path: Path) -> None:
    source = csv_source(tmp_path, "x,y\n", "x,y\r\n\n", features=features)
    with pytest.raises(
        DataError, match=r"0\.csv: ends after line 1, the header, as do 1 other files, "
    ):
        assert make(tmp_path, source).schema


def test_headers_of_joined_files_may_be_left_out(tmp_path: Path) -> None:
    source = csv_source(tmp_path, "\ufeff" + GOOD + "\ufeff" + GOOD + "x,y\r\n", on_bad="skip")
    left = make(tmp_path, source)
    assert list(read(left).features[:, 0]) == [1, 2, 1, 2]
    assert sum(map(len, left.skipped.values())) == 2


def test_a_header_among_named_columns_is_no_row(tmp_path: Path) -> None:
    source = {"type": "csv", "files": ["*.csv"], "columns": {"y": "text"}, "on_bad": "skip"}
    csv_source(tmp_path, GOOD + GOOD)
    left = make(tmp_path, source, shards=1)
    assert sum(len(table.ids) for table in left.iter_tables(0)) == 4
    assert len(left.skipped[0]) == 1


def test_a_header_of_values_is_a_row_where_it_stands_again(tmp_path: Path) -> None:
    source = csv_source(tmp_path, "7,a\n1,a\n7,a\n", label="a", features=["7"])
    assert sorted(read(make(tmp_path, source)).features[:, 0]) == [1, 7]


@pytest.mark.parametrize(
    "content",
    [
        "x,y\r\n1,a\r\n2,b\r\n\r\n3,a",
        "\ufeffx,y\n1,a\n\n\n2,b\n3,a\n\n",
        ' \ufeffx,y\n" 1 ",a\n+2.0,"b"\n3e0, a\n'.lstrip(" "),
    ],
)
@pytest.mark.parametrize("shards", [1, 2, 9])
def test_notations_of_one_table(content: str, shards: int, tmp_path: Path) -> None:
    rows = read(make(tmp_path, csv_source(tmp_path, content, features=["x"]), shards=shards))
    assert sorted(zip(rows.features[:, 0], rows.labels, strict=True)) == [(1, 0), (2, 1), (3, 0)]


def test_truth_values_are_0_and_1(kind: str, tmp_path: Path) -> None:
    table = {"x": [True, False, True], "key": [0, 1, 2], "y": [False, True, True]}
    source = source_of(kind, tmp_path, table) | {"id_column": "key"}
    source |= {"classes": ["false", "true"]} if kind != "csv" else {"classes": ["False", "True"]}
    rows = read(make(tmp_path, source))
    assert rows.features.tolist() == [[1], [0], [1]]
    assert list(rows.labels) == [0, 1, 1]


def test_another_delimiter(tmp_path: Path) -> None:
    source = csv_source(tmp_path, GOOD.replace(",", ";"), delimiter=";")
    assert list(read(make(tmp_path, source)).features[:, 0]) == [1, 2]


# --- Parquet --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        (lambda data: data[: len(data) // 2], r"1.parquet: cannot be read as Parquet \(.*magic bytes.*\), expected"),
        (lambda data: b"", r"1.parquet: cannot be read as Parquet \(.*size is 0 bytes.*\), expected a complete file; "),
        (lambda data: data[:200] + data[-2000:], r"1.parquet: cannot be read as Parquet \(.*\), expected a complete"),
        (lambda data: b"x,y\n1,2\n", r"1.parquet: cannot be read as Parquet \(.*\), expected a complete file; "),
    ],
)  # fmt: skip
def test_parquet_cut_short(cut: Callable[[bytes], bytes], expected: str, tmp_path: Path) -> None:
    source = source_of("parquet", tmp_path, columns(0, 500), columns(500, 500))
    path = tmp_path / "data" / "1.parquet"
    path.write_bytes(cut(path.read_bytes()))
    assert re.search(expected, message(tmp_path, source))


def test_only_the_row_groups_of_a_shard_are_read(tmp_path: Path) -> None:
    source = source_of("parquet", tmp_path, columns(0, 700)) | {"features": ["x0"]}
    path = tmp_path / "data" / "0.parquet"
    place = pq.ParquetFile(path).metadata.row_group(99).column(1).data_page_offset
    data = bytearray(path.read_bytes())
    data[place : place + 40] = b"\xff" * 40
    path.write_bytes(data)
    damaged = make(tmp_path, source, shards=2)
    assert sum(len(table.ids) for table in damaged.iter_tables(0)) == 350
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        list(damaged.iter_tables(1))


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("fixed", [True, False])
def test_column_of_lists(kind: str, fixed: bool, tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(8, 3)
    of = pa.list_(pa.float32(), 3 if fixed else -1)
    table = {"key": np.arange(8), "y": ["a"] * 8, "v": pa.array(values.tolist(), of)}
    source = source_of(kind, tmp_path, table) | {"id_column": "key", "features": ["v"]}
    assert (read(make(tmp_path, source)).features == values).all()
    assert (read(make(tmp_path, source | {"dtype": "uint8"})).features == values).all()
    source["features"] = ["key", "v"]
    source["id_column"] = "y"
    assert "column v contains lists, expected numbers in each of several features" in message(
        tmp_path, source
    )


def test_ragged_and_incomplete_lists(tmp_path: Path) -> None:
    lists = [[1.0, 2.0], [3.0], None, [4.0, None], [5.0, 6.0], []]
    table = {"key": np.arange(6), "y": ["a"] * 6, "v": pa.array(lists, pa.list_(pa.float64()))}
    source = source_of("parquet", tmp_path, table) | {"id_column": "key", "features": ["v"]}
    assert message(tmp_path, source, shards=1) == (
        "data/0.parquet, row 2: column v is a list of 1, expected 2 finite numbers (float32); "
        "fix it, or leave it out with source.on_bad: skip"
    )
    left = make(tmp_path, source | {"on_bad": "skip"})
    rows = read(left)
    assert rows.features.tolist() == [[1, 2], [5, 6]]
    assert list(rows.ids) == [0, 4]
    assert sum(map(len, left.skipped.values())) == 4


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 300], "uint8", "column x is 300, expected a finite number (uint8)"),
        ([1, -1], "uint8", "column x is -1, expected a finite number (uint8)"),
        ([1.0, 1.5], "int32", "column x is 1.5, expected a finite number (int32)"),
        ([1.0, 1e300], "float32", "column x is (1e+300|inf), expected a finite number (float32)"),
    ],
)
def test_values_that_a_type_cannot_hold(
    kind: str, values: list[float], dtype: str, expected: str, tmp_path: Path
) -> None:
    source = source_of(kind, tmp_path, {"x": values, "y": ["a", "b"]}) | {"dtype": dtype}
    pattern = re.escape(expected).replace(r"\(1e\+300\|inf\)", r"(1e\+300|inf)")
    assert re.search(pattern, message(tmp_path, source))


def test_numbers_are_rounded_to_the_type_that_is_asked_for(kind: str, tmp_path: Path) -> None:
    table = {"x": [2**24 + 1, 2**24 + 3], "z": [0.1, 0.2], "y": ["a", "b"], "key": [0, 1]}
    source = source_of(kind, tmp_path, table) | {"features": ["x", "z"], "id_column": "key"}
    expected = np.stack([table["x"], table["z"]], axis=1)
    assert (read(make(tmp_path, source)).features == expected.astype(np.float32)).all()
    assert (read(make(tmp_path, source | {"dtype": "float64"})).features == expected).all()


# --- Delta ----------------------------------------------------------------------------------


def test_delta_reads_its_version_whatever_was_written_since(tmp_path: Path) -> None:
    source = source_of("delta", tmp_path, columns(0, 10), columns(10, 5)) | {"id_column": "key"}
    assert len(read(make(tmp_path, source)).ids) == 15
    first = load_dataset(tmp_path, source | {"version": 0})
    DeltaTable(tmp_path / "data").delete("key < 8")
    assert len(read(make(tmp_path, source | {"version": 0})).ids) == 10
    assert list(read(make(tmp_path, source | {"version": 2})).ids) == list(range(8, 15))
    assert load_dataset(tmp_path, source | {"version": 0}).id == first.id
    assert load_dataset(tmp_path, source | {"version": 2}).id != first.id


def test_delta_identity_holds_table_id_and_version_but_not_the_place(tmp_path: Path) -> None:
    source = source_of("delta", tmp_path, columns(0, 10))
    dataset = load_dataset(tmp_path, source)
    table_id = DeltaTable(tmp_path / "data").metadata().id
    assert dataset.document["source"] == {"00000/Delta table": f"{table_id} version 0"}
    assert make(tmp_path, source).content_digest == combine_digests(
        dataset.document["source"].values()
    )
    (tmp_path / "data").rename(tmp_path / "moved")
    assert load_dataset(tmp_path, source | {"table": "moved"}).id == dataset.id
    source_of("delta", tmp_path, columns(0, 10))  # the same rows in a table made anew
    assert load_dataset(tmp_path, source).id != dataset.id


def test_delta_partitions_are_columns(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "data", pa.table(columns(0, 12)), partition_by=["y", "part"])
    source = {"type": "delta", "table": "data", "version": 0, "id_column": "key", **BASE}
    rows = read(make(tmp_path, source, splits={"column": "part"}))
    assert (rows.labels == np.arange(12) % 2).all()
    assert rows.splits == ["train", "validation", "test"] * 4


def test_delta_that_is_not_there(tmp_path: Path) -> None:
    source = source_of("delta", tmp_path, columns(0, 5))
    assert message(tmp_path, source | {"version": 7}) == (
        "Delta table data: no version 7, the latest is 0; change source.version"
    )
    assert message(tmp_path, source | {"table": "nowhere"}) == (
        "Delta table nowhere: not found; check source.table"
    )
    assert re.fullmatch(
        r"config/config.yaml: datasets.d.source.table_id=x, but data has .*; it was created again, so correct the id",
        message(tmp_path, source | {"table_id": "x"}),
    )


def test_delta_file_that_was_vacuumed(tmp_path: Path) -> None:
    source = source_of("delta", tmp_path, columns(0, 5))
    (path,) = (tmp_path / "data").glob("*.parquet")
    path.unlink()
    found = message(tmp_path, source)
    assert re.match(
        rf"Delta table data version 0, {path.name}: not found, expected every file", found
    )


def by_scan(table: Path, column: str) -> dict[int, list[Any]]:
    """Rows by key, as the delta library's own engine reads them."""
    rows = pa.table(DeltaTable(table).scan()).to_pylist()
    return {row["key"]: [row[column], row["x1"]] for row in rows}


@pytest.mark.parametrize("mode", ["", "name", "id"])
@pytest.mark.parametrize("parted", [True, False])
@pytest.mark.parametrize("deleted", [[], [0], [1, 5, 6]])
@pytest.mark.parametrize("shards", [1, 5])
def test_delta_columns_that_are_mapped_and_rows_that_are_deleted(
    mode: str, parted: bool, deleted: list[int], shards: int, tmp_path: Path
) -> None:
    table, x = tmp_path / "data", "x0 new" if mode else "x0"
    given = pa.table(columns(0, 20))
    write_deltalake(table, given, partition_by=["part"] if parted else None)
    source = {"type": "delta", "table": "data", "version": 0, **BASE, "features": ["x0", "x1"]}
    plain = read(make(tmp_path, source))
    need_features(table, "deletionVectors", "columnMapping")
    file = str(next(table.rglob("part-*.parquet")).relative_to(table))
    if mode:
        rename_columns(table, {"x0": x, "part": "split"}, mode)
    if deleted:
        delete_rows(table, file, deleted)
    expected = by_scan(table, x)
    assert len(expected) == 20 - len(deleted)
    renamed = source | {"features": [x, "x1"]}
    rows = read(make(tmp_path, renamed | {"id_column": "key"}, shards=shards))
    assert dict(zip(rows.ids.tolist(), rows.features.tolist(), strict=True)) == expected
    split = {"column": "split" if mode else "part"}
    parts = read(make(tmp_path, renamed | {"id_column": "key"}, splits=split)).splits
    assert parts == [("train", "validation", "test")[key % 3] for key in sorted(expected)]
    # a row keeps its id, and so its split
    without_key = read(make(tmp_path, renamed, shards=shards))
    before = dict(zip(plain.ids.tolist(), plain.features.tolist(), strict=True))
    assert {i: before[i] for i in without_key.ids.tolist()} == dict(
        zip(without_key.ids.tolist(), without_key.features.tolist(), strict=True)
    )


@pytest.mark.parametrize("features", [["typeWidening"], ["deletionVectors", "typeWidening"]])
@pytest.mark.parametrize("mapped", [True, False])
def test_delta_features_that_the_reader_lacks(
    features: list[str], mapped: bool, tmp_path: Path
) -> None:
    source = source_of("delta", tmp_path, columns(0, 5))
    need_features(tmp_path / "data", *features, *(["columnMapping"] if mapped else []))
    if mapped:
        rename_columns(tmp_path / "data", {})
    assert re.fullmatch(
        r"Delta table data( version 0)?: .*cannot be .*typeWidening.*",
        message(tmp_path, source),
    )


def test_remote_delta_table_needs_its_id_in_the_config(tmp_path: Path) -> None:
    source = {"type": "delta", "table": "s3://bucket/t?sig=geheim", "version": 0, **BASE}
    with pytest.raises(ConfigError) as error:
        load_dataset(tmp_path, source)
    assert str(error.value) == (
        "config/config.yaml: datasets.d.source.table_id is missing for s3://bucket/t; add what "
        "`shardline digest` prints for it"
    )
    dataset = load_dataset(tmp_path, source | {"table_id": "some-id"})
    assert dataset.document["source"] == {"00000/Delta table": "some-id version 0"}
    assert "geheim" not in json.dumps(dataset.document)
