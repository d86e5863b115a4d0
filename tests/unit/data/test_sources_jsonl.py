"""JSON Lines: each row once with the values that its object has, and bad ones by file, line and column."""

import base64
import gzip
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.data.build import build_shards, describe_part, seal
from shardline.data.columns import Column
from shardline.data.sources import lines as lines_module
from shardline.data.sources.jsonl import Jsonl
from shardline.errors import DataError, ShardlineError
from shardline.sources import SPLITS, Source
from tests.support.columns import SCHEMA, as_array, values
from tests.support.source_cases import load_dataset, make
from tests.support.tokenizers import END, byte_level

REMEDY = "; fix it, or leave it out with source.on_bad: skip"


def rows_of(source: Source) -> dict[int, dict[str, Any]]:
    """Return all rows by id."""
    rows = [row for shard in range(source.num_shards) for row in source.iter_rows(shard)]
    found = {row.pop("ids"): row for row in rows}
    assert len(found) == len(rows)
    return found


def write(folder: Path, *lines: Any, **options: Any) -> dict[str, Any]:
    """Write objects, or what they are written as, and return a source of them."""
    texts = [line if isinstance(line, str | bytes) else json.dumps(line) for line in lines]
    data = b"\n".join(text.encode() if isinstance(text, str) else text for text in texts)
    (folder / "a.jsonl").write_bytes(data)
    return {"type": "jsonl", "files": ["a.jsonl"], **options}


def message(folder: Path, source: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(ShardlineError) as error:
        rows_of(make(folder, source, **settings))
    text = str(error.value)
    assert "\n" not in text
    return text.replace(f"{folder}/", "")


def as_json(column: Column, value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if value is None or isinstance(value, str) else np.asarray(value).tolist()


@settings(deadline=None, max_examples=150)
@given(columns=SCHEMA, data=st.data())
def test_every_row_once_with_its_values(columns: dict[str, Column], data: st.DataObject) -> None:
    row = st.fixed_dictionaries({name: values(column) for name, column in columns.items()})
    rows = data.draw(st.lists(row, min_size=1, max_size=9))
    texts = [json.dumps({n: as_json(columns[n], v) for n, v in one.items()}) for one in rows]
    content = data.draw(st.sampled_from(["\n", "\r\n", "\n\n", "\n  \n"])).join(texts).encode()
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_BLOCK_BYTES", data.draw(st.integers(1, 200)))
        path = Path(folder) / "a.jsonl"
        path.write_bytes(gzip.compress(content) if data.draw(st.booleans()) else content)
        source = Jsonl(
            num_shards=data.draw(st.integers(1, 4)),
            files=[path],
            columns={name: str(column) for name, column in columns.items()},
        )
        found = list(rows_of(source).values())  # in the order of the file
    assert len(found) == len(rows)
    for given_row, row_found in zip(rows, found, strict=True):
        for name, column in columns.items():
            value = row_found[name]
            if given_row[name] is None:
                assert value is None
            else:
                assert np.array_equal(as_array(column, value), as_array(column, given_row[name]))


def test_keys_that_differ_from_columns(tmp_path: Path) -> None:
    row = {"a b": 1, "meta": {"url": "x", "n": {"m": 2}}, "meta.url": "whole", "more": [{}]}
    source = write(
        tmp_path, row, columns={"x": "int8", "url": "text", "m": "int16"},
        rename={"x": "a b", "url": "meta.url", "m": "meta.n.m"},
    )  # fmt: skip
    (found,) = rows_of(make(tmp_path, source, shards=1)).values()
    assert found == {"x": 1, "url": "whole", "m": 2}


def test_tokens_labels_ids_and_splits(tmp_path: Path) -> None:
    known = byte_level(tmp_path / "tokenizer.json")
    lines = [
        {"text": f"the cat {n}", "kind": "ab"[n % 2], "key": f"row {n}", "part": ("train", "val", "test")[n % 3]}
        for n in range(30)
    ]  # fmt: skip
    source = write(
        tmp_path, *lines, columns={"text": "text"}, tokenize={"tokens": "text"}, label="kind", classes=["b", "a"],
        tokenizer="tokenizer.json", end=END, id_column="key",
    )  # fmt: skip
    made = make(tmp_path, source, splits={"column": "part"})
    assert list(made.schema.columns) == ["text", "tokens", "labels"]
    assert made.schema.columns["tokens"] == "uint16[*]"
    rows = rows_of(made)
    assert len(rows) == 30
    for row in rows.values():
        assert known.decode(row["tokens"].tolist()[:-1]) == row["text"]
        assert known.id_to_token(int(row["tokens"][-1])) == END
        assert row["labels"] == (int(row["text"][8:]) + 1) % 2
    splits = {
        text: SPLITS[split]
        for shard in range(3)
        for table in made.iter_tables(shard)
        for text, split in zip(table.columns["text"], table.splits, strict=True)
    }
    assert splits == {f"the cat {n}": ("train", "validation", "test")[n % 3] for n in range(30)}
    moved = write(tmp_path, *reversed(lines), **{k: v for k, v in source.items() if k != "files"})
    assert rows_of(make(tmp_path, moved, splits={"column": "part"})).keys() == rows.keys()


def test_labels_may_be_numbers_and_truth_values(tmp_path: Path) -> None:
    columns = {"columns": {"x": "int64"}, "label": "y"}
    for labels, options, expected in (
        ([0, 1.0, 2, "2"], {"num_classes": 3}, [0, 1, 2, 2]),
        ([True, False], {"classes": ["false", "true"]}, [1, 0]),
    ):
        rows = [{"x": n, "y": label} for n, label in enumerate(labels)]
        source = make(tmp_path, write(tmp_path, *rows, **columns, **options), shards=1)
        assert [row["labels"] for row in rows_of(source).values()] == expected


# --- what cannot be used --------------------------------------------------------------------

GOOD = {"x": 1}
JSON = "expected one JSON object in each line"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[1, 2]", f"it is a list of 2, {JSON}"),
        ('"x"', f'it is "x", {JSON}'),
        ("null", f"it is missing, {JSON}"),
        ("{", f"it is not JSON (it ends too early), {JSON}"),
        ('{"x": 1} {"x": 2}', f'it is not JSON (unexpected text at character 10: "{{\\"x\\": 2}}"), {JSON}'),
        ("[" * 100_000, f"it is not JSON (nested too deeply), {JSON}"),
        (b'{"y": "\xff", "x": 1}', f"it is not UTF-8 (invalid start byte), {JSON}"),
        ('{"y": "\\ud800", "x": 1}', f"it is not JSON (.*), {JSON}"),
    ],
)  # fmt: skip
def test_lines_that_are_no_objects(line: str | bytes, expected: str, tmp_path: Path) -> None:
    source = write(tmp_path, GOOD, "", line, GOOD, columns={"x": "int64"})
    found = message(tmp_path, source, shards=1)
    assert re.fullmatch(
        re.escape(f"a.jsonl, line 3: {expected}{REMEDY}").replace(r"\.\*", ".*"), found
    ), found
    left = make(tmp_path, source | {"on_bad": "skip"}, shards=1)
    assert len(rows_of(left)) == 2
    assert len(left.skipped[0]) == 1


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("int8", 128, "is 128, expected a number (int8)"),
        ("int8", 1.5, "is 1.5, expected a number (int8)"),
        ("uint8", -1, "is -1, expected a number (uint8)"),
        ("int64", 2**63, f"is {2**63}, expected a number (int64)"),
        ("int64", 10**30, f"is {10**30}, expected a number (int64)"),
        ("int64", "7", 'is "7", expected a number (int64)'),
        ("int64", True, "is true, expected a number (int64)"),
        ("int64", [1], "is a list of 1, expected a number (int64)"),
        ("int64", None, "is missing, expected a number (int64)"),
        ("int64?", {}, "is an object, expected a number (int64)"),
        ("float16", 1e6, "is 1000000.0, expected a number (float16)"),
        ("float32", 1e300, "is 1e300, expected a number (float32)"),
        ("bool", 1, "is 1, expected true or false"),
        ("text", 3, "is 3, expected text"),
        ("bytes", "a", 'is "a", expected bytes in base64'),
        ("bytes", "ä===", 'is "ä===", expected bytes in base64'),
        ("float32[2]", [1], "is a list of 1, expected a list of numbers (float32) of shape [2]"),
        ("float32[2]", [1, None], "is a list of 2, expected a list of numbers (float32) of shape [2]"),
        ("float32[2]", [[1], 2], "is a list of 2, expected a list of numbers (float32) of shape [2]"),
        ("int32[*]", 7, "is 7, expected a list of numbers (int32) of shape [*]"),
        ("int32[*]", [1, "x" * 50], "is a list of 2, expected a list of numbers (int32) of shape [*]"),
        ("int32[*]", [2**31], "is a list of 1, expected a list of numbers (int32) of shape [*]"),
        ("int64[*]", [2**53 + 1, 0.0], "is a list of 2, expected a list of numbers (int64) of shape [*]"),
        ("int32[*,2]", [[1, 2], [3]], "is a list of 2, expected a list of numbers (int32) of shape [*,2]"),
        ("int32[*,2]", [1, 2], "is a list of 2, expected a list of numbers (int32) of shape [*,2]"),
        ("int32[*]", [[[[]]]], "is a list of 1, expected a list of numbers (int32) of shape [*]"),
    ],
)  # fmt: skip
def test_values_that_a_column_cannot_hold(
    column: str, value: Any, expected: str, tmp_path: Path
) -> None:
    source = write(tmp_path, {"x": value}, columns={"x": column})
    assert message(tmp_path, source, shards=1) == f"a.jsonl, line 1: column x {expected}{REMEDY}"


@pytest.mark.parametrize(
    ("row", "options", "expected"),
    [
        ({"txt": "a"}, {"tokenize": {"tokens": "text"}},
         'column tokens (key text) is missing, expected text; did you mean "txt"?'),
        ({"text": None}, {"tokenize": {"tokens": "text"}}, "column tokens (key text) is missing, expected text"),
        ({"x": 1, "y": "c"}, {"label": "y", "classes": ["a", "b"]},
         'column labels (key y) is "c", expected one of source.classes (a, b)'),
        ({"x": 1, "y": [1]}, {"label": "y", "num_classes": 9},
         "column labels (key y) is a list of 1, expected one of source.classes (0, 1, 2, 3, 4, ...)"),
        ({"x": 1, "k": 1.5}, {"id_column": "k"}, "id_column (key k) is 1.5, expected a whole number (int64) or text"),
        ({"x": 1, "k": 2**63}, {"id_column": "k"}, f"id_column (key k) is {2**63}, expected a whole number .*"),
        ({"x": 1, "k": ""}, {"id_column": "k"}, 'id_column (key k) is "", expected a whole number (int64) or text'),
        ({"x": 1, "part": "dev2"}, {"splits": {"column": "part"}},
         'splits.column (key part) is "dev2", expected train, validation (val, valid, dev) or test'),
    ],
)  # fmt: skip
def test_bad_keys(
    row: dict[str, Any], options: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    splits = {"splits": options["splits"]} if "splits" in options else {}
    options = {key: value for key, value in options.items() if key != "splits"}
    if "tokenize" not in options:
        options["columns"] = {"x": "int64"}
    found = message(tmp_path, write(tmp_path, row, **options), shards=1, **splits)
    assert found.startswith(f"a.jsonl, line 1: {expected}".removesuffix(".*")), found


def test_a_dataset_of_json(tmp_path: Path) -> None:
    rows = [
        {"text": f"line {n}", "boxes": [[n, 1.5, 2, 3]] * (n % 3), "score": None}
        for n in range(100)
    ]
    columns = {"text": "text", "boxes": "float32[*,4]", "score": "float32?"}
    source = write(tmp_path, *rows, columns=columns, tokenize={"tokens": "text"})
    dataset, made = load_dataset(tmp_path, source), make(tmp_path, source)
    shares = {"train": 0.8, "validation": 0.1, "test": 0.1}
    part = describe_part(dataset.id, build_shards(made, range(3), shares, tmp_path), made.skipped)
    manifest = seal([part], dataset=dataset.id, source=made, document=dataset.document)
    assert manifest.schema.columns == {**columns, "tokens": "uint8[*]"}
    assert sum(manifest.splits.values()) == 100
    assert sum(shard.values["boxes"] for shard in manifest.shards) == 99


def test_a_text_of_a_million_characters_among_numbers_takes_no_memory(tmp_path: Path) -> None:
    source = write(tmp_path, {"x": [1] * 10_000 + ["y" * 10**6]}, columns={"x": "int64[*]"})
    with pytest.raises(DataError, match="is a list of 10001, expected"):  # 40 GB as NumPy's texts
        rows_of(make(tmp_path, source, shards=1))
