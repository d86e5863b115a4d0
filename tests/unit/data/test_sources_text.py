"""Text files: each line, paragraph or file once, as tokens that give the text back."""

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
from shardline.data.sources import lines as lines_module
from shardline.data.sources import text as text_module
from shardline.data.sources import tokenizer as tokenizer_module
from shardline.data.sources.text import Text
from shardline.errors import DataError, ShardlineError
from shardline.sources import Source
from tests.support.source_cases import load_dataset, make
from tests.support.tokenizers import END, byte_level, words

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
LINES = st.lists(st.sampled_from(["", "a", "ä b", " ", "日本", "x" * 40, "\r"]), max_size=12)


def rows_of(source: Source, shards: list[int] | None = None) -> dict[int, dict[str, Any]]:
    """Return all rows by id."""
    rows = [row for shard in shards or range(source.num_shards) for row in source.iter_rows(shard)]
    found = {row.pop("ids"): row for row in rows}
    assert len(found) == len(rows)
    return found


def text_of(row: dict[str, Any]) -> str:
    return row["tokens"].tobytes().decode()


def write(folder: Path, *contents: str | bytes, suffix: str = "txt") -> dict[str, Any]:
    for number, content in enumerate(contents):
        data = content.encode() if isinstance(content, str) else content
        (folder / f"{number}.{suffix}").write_bytes(data)
    return {"type": "text", "files": [f"*.{suffix}"]}


def message(folder: Path, source: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(ShardlineError) as error:
        rows_of(make(folder, source, **settings))
    text = str(error.value)
    assert "\n" not in text
    return text.replace(f"{folder}/", "")


def expected_rows(content: str, unit: str) -> list[str]:
    """Return the rows of a file, found in another way than the source does."""
    if unit == "file":
        return [content] if content else []
    # `split`, since `splitlines` knows other ends of lines as well
    lines = [line.removesuffix("\r") for line in content.split("\n")]
    if unit == "line":
        return [line for line in lines if line]
    found, open_ = [], False
    for line, raw in zip(lines, content.split("\n"), strict=True):
        if not line:
            open_ = False
        elif open_:
            found[-1] += "\n" + raw
        else:
            found.append(raw)
            open_ = True
    return [text.removesuffix("\r") for text in found]


@settings(deadline=None, max_examples=200)
@given(
    files=st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n"]), st.booleans()), min_size=1, max_size=3),
    unit=st.sampled_from(["line", "paragraph", "file"]),
    shards=st.integers(1, 4),
    block=st.integers(1, 60),
    order=st.randoms(use_true_random=False),
)  # fmt: skip
def test_every_row_once_however_it_is_cut(
    files: list[tuple[list[str], str, bool]], unit: Any, shards: int, block: int, order: Any
) -> None:
    contents = [end.join(lines) for lines, end, _ in files]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_BLOCK_BYTES", block)
        patch.setattr(text_module, "_BLOCK_BYTES", block)
        paths = [Path(folder) / f"{number}.txt" for number in range(len(files))]
        for path, content, (_, _, is_packed) in zip(paths, contents, files, strict=True):
            data = content.encode()
            path.write_bytes(gzip.compress(data) if is_packed else data)
        arguments = {"files": paths, "unit": unit, "keep_text": True, "on_bad": "skip"}
        source = Text(num_shards=shards, **arguments)
        numbers = list(range(shards))
        order.shuffle(numbers)
        rows = rows_of(source, numbers)
        expected = [row for content in contents for row in expected_rows(content, unit)]
        assert sorted(map(text_of, rows.values())) == sorted(expected)
        assert all(text_of(row) == row["text"] for row in rows.values())
        again = rows_of(Text(num_shards=1, **arguments))
        assert {key: row["text"] for key, row in rows.items()} == {
            key: row["text"] for key, row in again.items()
        }


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12), data=st.data())
def test_no_shard_of_files_is_empty(sizes: list[int], data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, len(sizes)))
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number:02d}" for number in range(len(sizes))]
        for path, size in zip(paths, sizes, strict=True):
            path.write_text("a" * size)
        source = Text(num_shards=shards, files=paths, unit="file")
        counts = [len(rows_of(source, [shard])) for shard in range(shards)]
    assert min(counts) > 0
    assert sum(counts) == len(sizes)


@pytest.mark.parametrize(("end", "behind"), [("\n", b"\n"), (10, b"\n"), ("<end>", b"<end>")])
def test_end_of_bytes(end: str | int, behind: bytes, tmp_path: Path) -> None:
    source = make(tmp_path, write(tmp_path, "one\n\ntwo") | {"end": end})
    found = {row["tokens"].tobytes() for row in rows_of(source).values()}
    assert found == {b"one" + behind, b"two" + behind}


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    for unit in ("line", "file"):
        source = make(tmp_path, write(tmp_path, "\ufeffone\n", "\ufeffx\ufeff") | {"unit": unit})
        end = "\n" if unit == "file" else ""
        assert {text_of(row) for row in rows_of(source).values()} == {f"one{end}", "x\ufeff"}


# --- a tokenizer's file ---------------------------------------------------------------------


def is_taken(texts: list[str]) -> bool:
    """Return whether the lines do not end by carriage returns alone, which a source refuses."""
    content = "\n".join(texts)
    return "\n" in content or "\r" not in content.rstrip("\r")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(texts=st.lists(TEXT, max_size=8).filter(is_taken))
@settings(deadline=None, max_examples=60)
def test_tokens_give_the_text_back(texts: list[str]) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_module, "_BATCH_CHARS", 20)
        known = byte_level(Path(folder) / "tokenizer.json")
        path = Path(folder) / "a.txt"
        path.write_bytes("\n".join(texts).encode())
        options = {"tokenizer": str(Path(folder) / "tokenizer.json"), "keep_text": True}
        source = Text(num_shards=1, files=[path], **options)
        assert source.schema.columns["tokens"] == "uint16[*]"
        for row in rows_of(source).values():
            assert row["tokens"].dtype == np.uint16
            decoded = known.decode(row["tokens"].tolist(), skip_special_tokens=False)
            assert decoded == row["text"]


def test_special_tokens_and_end(tmp_path: Path) -> None:
    known = byte_level(tmp_path / "tokenizer.json")
    source = write(tmp_path, "the cat") | {"tokenizer": "tokenizer.json"}
    number = known.token_to_id(END)
    known.no_truncation()
    known.no_padding()
    plain = known.encode("the cat", add_special_tokens=False).ids
    for change, expected in (
        ({}, plain),
        ({"end": END}, [*plain, number]),
        ({"end": number}, [*plain, number]),
        ({"special_tokens": True}, [number, *plain]),
        ({"special_tokens": True, "end": END}, [number, *plain, number]),
    ):
        (row,) = rows_of(make(tmp_path, source | change, shards=1)).values()
        assert row["tokens"].tolist() == expected


def test_many_tokens_are_int32(tmp_path: Path) -> None:
    words(tmp_path / "tokenizer.json", {"none": 0, "cat": 65_536})
    source = make(tmp_path, write(tmp_path, "cat dog") | {"tokenizer": "tokenizer.json"}, shards=1)
    assert source.schema.columns == {"tokens": "int32[*]"}
    (row,) = rows_of(source).values()
    assert row["tokens"].tolist() == [65_536, 0]


def test_a_text_without_tokens_is_named(tmp_path: Path) -> None:
    words(tmp_path / "tokenizer.json", {"cat": 0})
    source = write(tmp_path, "cat\n\ncat\ndog\n") | {"tokenizer": "tokenizer.json"}
    assert re.fullmatch(
        r"0.txt, line 4: cannot be encoded by tokenizer.json \(.*\), expected tokens for any text; add .*",
        message(tmp_path, source, shards=1),
    )


@pytest.mark.parametrize(
    ("content", "change", "expected"),
    [
        ("{}", {}, "source.tokenizer=tokenizer.json cannot be read (.*), expected a tokenizer.json of .*"),
        (b"\xff", {}, "source.tokenizer=tokenizer.json cannot be read (.*), expected a tokenizer.json of .*"),
        (None, {"end": "<|endoftxt|>"}, "source.end=<|endoftxt|> is not a token of tokenizer.json; did you mean .*"),
        (None, {"end": "</s>"}, "source.end=</s> is not a token of tokenizer.json; use one of .*"),
        (None, {"end": 280}, "source.end=280 is not a token of tokenizer.json; set source.end to a token or .*"),
    ],
)  # fmt: skip
def test_bad_tokenizers(
    content: str | bytes | None, change: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    source = write(tmp_path, "the cat") | {"tokenizer": "tokenizer.json"} | change
    if content is None:
        byte_level(tmp_path / "tokenizer.json")
    else:
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / "tokenizer.json").write_bytes(data)
    found = message(tmp_path, source)
    assert re.fullmatch(re.escape(expected).replace(r"\.\*", ".*"), found), found


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    byte_level(tmp_path / "tokenizer.json")
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    source = write(tmp_path, "the cat")
    assert rows_of(make(tmp_path, source, shards=1))
    assert message(tmp_path, source | {"tokenizer": "tokenizer.json"}) == (
        "source.tokenizer=tokenizer.json needs the package tokenizers, which is not installed; "
        "run pip install 'shardline[tokenizers]', or set source.tokenizer: bytes"
    )


# --- hostile files --------------------------------------------------------------------------

BAD = {
    "latin": (b"one\ntwo\nth\xe9\nfour\n", "line 3: byte 0xe9 is not UTF-8, expected text in UTF-8"),
    "utf-16": ("one\n".encode("utf-16"), "line 1: byte 0xff is not UTF-8, expected text in UTF-8"),
    "surrogate": (b"one\n\xed\xa0\x80\n", "line 2: byte 0xed is not UTF-8, expected text in UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("unit", ["line", "paragraph", "file"])
@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_text(kind: str, unit: str, tmp_path: Path) -> None:
    content, expected = BAD[kind]
    source = write(tmp_path, "good\n", content) | {"unit": unit}
    found = f"1.txt, {expected}; fix it, or leave it out with source.on_bad: skip"
    if kind == "utf-16":
        found = "1.txt: is UTF-16, expected UTF-8; convert it, for example with `iconv -f UTF-16 -t UTF-8 1.txt`"
    assert message(tmp_path, source, shards=1) == found
    left = make(tmp_path, source | {"on_bad": "skip"}, shards=1)
    assert "good" in {text_of(row).strip() for row in rows_of(left).values()}
    rows_of(left)
    assert left.skipped[0][0] == f"{tmp_path}/1.txt, {expected}", "once, though it was read twice"
    if kind == "latin" and unit == "line":
        assert {text_of(row) for row in rows_of(left).values()} == {"good", "one", "two", "four"}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    source = write(tmp_path, b"a\n", gzip.compress(b"abc" * 100)[:-9])
    assert message(tmp_path, source, shards=1).startswith(
        "1.txt: cannot be unpacked (the file is truncated)"
    )
    source = write(tmp_path, b"a\n", b"BZh91AY")
    assert message(tmp_path, source).startswith("1.txt: cannot be unpacked (Compressed file ended")
    source = write(tmp_path, b"a\n", b"") | {"unit": "file"}
    assert message(tmp_path, source, shards=1) == (
        "1.txt: is empty, expected text; fix it, or leave it out with source.on_bad: skip"
    )


# --- built ----------------------------------------------------------------------------------


@pytest.fixture
def book(tmp_path: Path) -> dict[str, Any]:
    byte_level(tmp_path / "tokenizer.json")
    lines = [f"line {number} of the mat" for number in range(300)]
    source = write(tmp_path, "\n".join(lines[:250]), "\n".join(lines[250:]))
    return source | {"tokenizer": "tokenizer.json", "end": END, "keep_text": True}


def built(folder: Path, source: dict[str, Any], **settings: Any) -> dict[str, Any]:
    dataset, made = load_dataset(folder, source, **settings), make(folder, source, **settings)
    output = folder / "shards"
    output.mkdir(exist_ok=True)
    shards = build_shards(made, range(made.num_shards), settings.get("splits", {}), output)
    part = describe_part(dataset.id, shards, made.skipped)
    return seal([part], dataset=dataset.id, source=made, document=dataset.document)


def test_a_dataset_of_texts(book: dict[str, Any], tmp_path: Path) -> None:
    splits = {"files": {"train": ["0.txt"], "validation": 0.2, "test": ["1.txt"]}}
    manifest = built(tmp_path, book, splits=splits)
    assert manifest.schema.columns == {"tokens": "uint16[*]", "text": "text"}
    assert manifest.splits["test"] == 50
    assert manifest.splits["train"] + manifest.splits["validation"] == 250
    assert 0 < manifest.splits["validation"] < 100


def test_a_tokenizer_that_changed_meanwhile_is_found(book: dict[str, Any], tmp_path: Path) -> None:
    dataset, made = load_dataset(tmp_path, book), make(tmp_path, book)
    shards = build_shards(made, range(3), SHARES, tmp_path)
    part = describe_part(dataset.id, shards, {})
    changed = json.loads((tmp_path / "tokenizer.json").read_text()) | {"version": "1.0"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    with pytest.raises(DataError, match="the source's content is now"):
        seal([part], dataset=dataset.id, source=made, document=dataset.document)
