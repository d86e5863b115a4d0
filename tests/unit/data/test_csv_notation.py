"""CSV as programs write it: line breaks in fields, other notations of numbers, missing values, packed files."""

import bz2
import csv
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.data.sources import lines as lines_module
from shardline.data.sources import unpacked as unpacked_module
from shardline.data.sources.csv import Csv
from shardline.data.sources.packed import open_text
from shardline.errors import DataError


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rows/", b"")
        archive.writestr("rows/a.csv", content)
        archive.writestr("__MACOSX/._a.csv", b"x")
    return file.getvalue()


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes, "gzip": gzip.compress, "zip": zipped, "zstd": zstd, "bzip2": bz2.compress, "xz": lzma.compress,
}  # fmt: skip
TEXTS = st.text(st.sampled_from(list('ab "\n\r,;x%.')), max_size=6)


def values(source: Csv) -> dict[str, list[Any]]:
    """Return the columns of all rows, shard by shard, and the ids."""
    rows = [row for shard in range(source.num_shards) for row in source.iter_rows(shard)]
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def text_of(value: Any) -> str:
    return bytes(value).decode() if not isinstance(value, str) else value


@settings(deadline=None, max_examples=80)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=25),
    packer=st.sampled_from(sorted(PACKERS)),
    end=st.sampled_from(["\n", "\r\n"]),
    shards=st.integers(1, 6),
    block=st.integers(1, 60),
)
def test_line_breaks_in_fields(
    texts: list[str], packer: str, end: str, shards: int, block: int
) -> None:
    """Each row arrives once and as it is, wherever shards and blocks are cut."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator=end, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(["n", "t"])
    writer.writerows(enumerate(texts))
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_BLOCK_BYTES", block)
        patch.setattr(unpacked_module, "_STEP_BYTES", 7)
        patch.setattr(unpacked_module, "_KEPT_BYTES", 16)
        path = Path(folder) / "a.csv"
        path.write_bytes(PACKERS[packer](file.getvalue().encode()))
        source = Csv(
            files=[path], num_shards=shards, columns={"n": "int64", "t": "text"}, line_breaks=True
        )
        found = values(source)
        order = np.argsort(found["n"])
        assert found["n"] == list(range(len(texts))), "in the order of the file"
        assert [text_of(found["t"][row]) for row in order] == texts
        again = Csv(files=[path], num_shards=1, columns={"n": "int64"}, line_breaks=True)
        assert values(again)["ids"] == found["ids"]


NUMBERS = st.floats(-1e6, 1e6).map(lambda x: round(x, 3)) | st.integers(-(10**7), 10**7).map(float)
CELLS = st.none() | NUMBERS


@settings(deadline=None, max_examples=80)
@given(
    cells=st.lists(st.tuples(CELLS, CELLS, st.sampled_from(["a", "NA", "-"])), min_size=1, max_size=30),
    notation=st.sampled_from([(".", ","), (",", "."), (",", " "), (".", "'"), (".", ""), (",", "")]),
    missing=st.sampled_from([("-",), ("unknown", "?")]),
    shards=st.integers(1, 4),
)  # fmt: skip
def test_numbers_arrive_as_pandas_reads_them(
    cells: list[tuple[float | None, float | None, str]],
    notation: tuple[str, str],
    missing: tuple[str, ...],
    shards: int,
) -> None:
    decimal, thousands = notation

    def written(value: float | None, *, grouped: bool) -> str:
        if value is None:
            return missing[0]
        text = f"{value:,.3f}" if grouped and thousands else f"{value:.3f}"
        return text.translate(str.maketrans({",": thousands, ".": decimal}))

    rows = [(written(x, grouped=True), written(y, grouped=False), t) for x, y, t in cells]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        with path.open("w", newline="") as file:
            csv.writer(file, delimiter=";").writerows([("x", "y", "t"), *rows])
        source = Csv(
            files=[path], num_shards=shards, delimiter=";", decimal=decimal, thousands=thousands, missing=missing,
            columns={"x": "float64?", "y": "float64?", "t": "text?"},
        )  # fmt: skip
        found = values(source)
        expected = pd.read_csv(
            path, sep=";", decimal=decimal, thousands=thousands or None, na_values=list(missing), keep_default_na=False,
            dtype={"t": str},
        )  # fmt: skip
    for name in ("x", "y"):
        got = np.array([np.nan if one is None else one for one in found[name]], dtype=float)
        np.testing.assert_array_equal(got, expected[name].to_numpy(float))
    texts = [None if one is None else text_of(one) for one in found["t"]]
    assert texts == [None if one is np.nan or one in missing else one for one in expected["t"]]


def write(folder: Path, content: str) -> Path:
    (folder / "a.csv").write_text(content)
    return folder / "a.csv"


def test_percentages_are_shares_with_and_without_a_sign(tmp_path: Path) -> None:
    path = write(tmp_path, "rate;n;y\n5%;1;0\n7,3 %;2;1\n12;3;1\n")
    source = Csv(
        files=[path], num_shards=1, label="y", num_classes=2, delimiter=";", decimal=",", percent=["rate"],
        dtype="float64",
    )  # fmt: skip
    assert source.features == ("rate", "n"), "a column of percentages is one of numbers"
    (table,) = source.iter_tables(0)
    np.testing.assert_array_equal(table.features, [[0.05, 1], [0.073, 2], [0.12, 3]])


def test_columns_of_grouped_numbers_and_of_gaps_are_features(tmp_path: Path) -> None:
    path = write(tmp_path, "a;b;c;y\n1.234,5;-;-;0\n;8;2;1\n-1.000;7;-;1\n2.345.678;8,5;4;1\n")
    source = Csv(
        files=[path], num_shards=1, label="y", num_classes=2, delimiter=";", decimal=",", thousands=".",
        missing=["-"], on_bad="skip",
    )  # fmt: skip
    assert source.features == ("a", "b", "c")
    (table,) = source.iter_tables(0)
    np.testing.assert_array_equal(table.features, [[2345678, 8.5, 4]])
    assert sorted(sentence.partition(", ")[2] for sentence in source.skipped[0]) == [
        "line 2: column b is empty, expected a finite number (float32)",
        "line 3: column a is empty, expected a finite number (float32)",
        "line 4: column c is empty, expected a finite number (float32)",
    ]


@pytest.mark.parametrize("text", ["12.34,5", "1.2345", "1.23", "1..234", ".123", "1.234.5", "1,234.567"])  # fmt: skip
def test_marks_that_are_not_between_thousands_are_rejected(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"x;y\n1.000;0\n{text};1\n")
    source = Csv(
        files=[path], num_shards=1, label="y", num_classes=2, features=["x"], delimiter=";", decimal=",",
        thousands=".",
    )  # fmt: skip
    with pytest.raises(DataError, match=r"line 3: column x is .*, expected a finite number"):
        list(source.iter_tables(0))


@pytest.mark.parametrize("packer", [name for name in PACKERS if name not in ("plain", "gzip")])
def test_packed_files_in_any_order_of_places(packer: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 400
    path = tmp_path / "a"
    path.write_bytes(PACKERS[packer](content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpacked_module, "_STEP_BYTES", 1000)
        patch.setattr(unpacked_module, "_KEPT_BYTES", 3000)
        with open_text(path) as file:
            assert file.seek(0, io.SEEK_END) == len(content)
            for place, size in ((0, 10), (99_000, 5000), (98_000, 100), (102_395, 10), (2, 50_000)):
                file.seek(place)
                assert file.read(size) == content[place : place + size]
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DataError, match=r"a: cannot be unpacked \(.*expected a complete .* file"):
        open_text(path).read()


def test_several_frames_of_zstd_are_one_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(zstd(b"x\n1\n") + zstd(b"2\n"))
    assert open_text(tmp_path / "a").read() == b"x\n1\n2\n"


@pytest.mark.parametrize("content", ['1,"a\nb"\n2,c\rd,\n', '1,"a\n', '1,a\n2,"b\n3,c"\n'])
def test_line_breaks_without_the_setting_are_rejected(content: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"n,t\n{content}")
    source = Csv(files=[path], num_shards=1, columns={"n": "int64", "t": "text"})
    with pytest.raises(DataError, match=r"a quote is not closed in its line, .*line_breaks: true"):
        list(source.iter_tables(0))
