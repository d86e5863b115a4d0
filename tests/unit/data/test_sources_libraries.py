"""Folders of other libraries: each row once, as it was written, and nothing that is damaged is believed."""

import json
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardline.data.build import build_shards
from shardline.data.columns import Column
from shardline.data.sources.from_files import UnusableError
from shardline.data.sources.hf import Hf
from shardline.data.sources.litdata import LitData
from shardline.data.sources.mds import Mds
from shardline.data.sources.webdataset import WebDataset
from shardline.errors import ConfigError, DataError
from shardline.sources import Source
from tests.support import library_formats as formats
from tests.support.arrow_tables import plain, rows_of
from tests.support.columns import SCHEMA, values
from tests.support.libraries.write import rows as written_rows
from tests.support.source_cases import load_dataset, make

LIBRARIES = Path(formats.__file__).parent / "libraries"
CLASSES: dict[str, Any] = {"hf": Hf, "litdata": LitData, "mds": Mds, "webdataset": WebDataset}
WRITERS: dict[str, Callable[..., None]] = {
    "hf": formats.write_hf,
    "litdata": formats.write_litdata,
    "mds": formats.write_mds,
    "webdataset": formats.write_webdataset,
}
FOLDERS = ("hf", "litdata", "litdata_zstd", "mds", "mds_zstd", "webdataset")
# What the files of a tar stand for, whose types no index tells.
IN_TARS: dict[str, Any] = {
    "columns": {"n": "int64", "text": "text", "content": "bytes", "tokens": "int32[*]", "boxes": "float32[2,3]"},
    "rename": {
        "n": "cls;index", "text": "txt", "content": "bin", "tokens": "tokens.npy", "boxes": "boxes.npy",
    },
}  # fmt: skip


def kind_of(folder: str) -> str:
    return folder.partition("_")[0]


def settings_of(folder: str) -> dict[str, Any]:
    options = IN_TARS if folder == "webdataset" else {}
    return {"type": kind_of(folder), "files": ["given"], **options}


def by_n(source: Source) -> list[dict[str, Any]]:
    return sorted(rows_of(source).values(), key=lambda row: row["n"])


@pytest.fixture(params=FOLDERS)
def folder(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_what_the_library_itself_wrote(folder: str, shards: int, tmp_path: Path) -> None:
    shutil.copytree(LIBRARIES / folder, tmp_path / "given")
    source = make(tmp_path, settings_of(folder), shards=shards)
    assert dict(source.schema.columns) == IN_TARS["columns"]
    assert by_n(source) == [{k: plain(v) for k, v in row.items()} for row in written_rows()]


@st.composite
def samples(draw: st.DrawFn) -> tuple[dict[str, Column], list[dict[str, Any]]]:
    """Columns and rows that all libraries can hold."""
    columns = {
        name: Column(dtype=c.dtype if c.dtype != "bool" else "int8", shape=c.shape, varies=c.varies, kind=c.kind)
        for name, c in draw(SCHEMA).items() if "." not in name and not name.startswith("__")
    } or {"x": Column(dtype="int8")}  # fmt: skip
    row = st.fixed_dictionaries({name: values(column) for name, column in columns.items()})
    return columns, draw(st.lists(row, min_size=1, max_size=9))


def source_of(kind: str, path: Path, columns: dict[str, Column], **options: Any) -> Source:
    if kind == "webdataset":
        options["rename"] = {name: formats.in_tar(name, c) for name, c in columns.items()}
    files = sorted(p for p in path.rglob("*") if p.is_file())
    written = {name: str(column) for name, column in columns.items()}
    source: Source = CLASSES[kind](files=files, columns=written, **options)
    return source


@pytest.mark.parametrize("kind", WRITERS)
@settings(max_examples=40, deadline=None)
@given(sample=samples(), per_file=st.integers(1, 5), shards=st.integers(1, 6))
def test_each_row_once_on_any_number_of_shards(
    kind: str, sample: Any, per_file: int, shards: int
) -> None:
    columns, rows = sample
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / "given"
        WRITERS[kind](path, columns, rows, per_file)
        source = source_of(kind, path, columns, num_shards=shards)
        expected = [{name: plain(value) for name, value in row.items()} for row in rows]
        found = list(rows_of(source_of(kind, path, columns, num_shards=1)).values())
        assert found == expected
        key = lambda row: json.dumps(row, default=str, sort_keys=True)  # noqa: E731
        assert sorted(rows_of(source).values(), key=key) == sorted(expected, key=key)
        assert rows_of(source) == rows_of(source_of(kind, path, columns, num_shards=1))
        one = source_of(kind, path, columns, num_shards=1)
        list(build_shards(one, [0], {"train": 1, "validation": 0, "test": 0}, path))


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), folder=st.sampled_from(FOLDERS), skip=st.booleans())
def test_what_is_damaged_gives_a_sentence_or_other_rows(
    data: st.DataObject, folder: str, skip: bool
) -> None:
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / "given"
        shutil.copytree(LIBRARIES / folder, path)
        victim = data.draw(st.sampled_from(sorted(p for p in path.rglob("*") if p.is_file())))
        content = bytearray(victim.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            del content[at:]
        else:
            patch = data.draw(st.binary(min_size=1, max_size=9) | st.just(b"\xff" * 8))
            content[at : at + len(patch)] = patch
        victim.write_bytes(content)
        options = IN_TARS if folder == "webdataset" else {}
        with suppress(DataError):
            source = CLASSES[kind_of(folder)](
                files=sorted(p for p in path.rglob("*") if p.is_file()), num_shards=2,
                on_bad="skip" if skip else "fail", **options,
            )  # fmt: skip
            rows_of(source)


def message(folder: str, tmp_path: Path, change: Callable[[Path], None], **options: Any) -> str:
    """The sentence that a folder ends with once something of it was changed."""
    shutil.copytree(LIBRARIES / folder, tmp_path / "given")
    change(tmp_path / "given")
    with pytest.raises((DataError, ConfigError)) as error:
        rows_of(make(tmp_path, {**settings_of(folder), **options}))
    return str(error.value).replace(f"{tmp_path}/", "")


def edit(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Change what a JSON file holds."""

    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return apply


def patch(name: str, place: int, content: bytes) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        held = bytearray((folder / name).read_bytes())
        held[place : place + len(content)] = content
        (folder / name).write_bytes(held)

    return apply


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size]) and None


def break_header(folder: Path) -> None:
    with tarfile.open(folder / "000.tar") as archive:
        place = archive.getmembers()[2].offset
    patch("000.tar", place + 100, b"\xff" * 60)(folder)


MDS = "given/shard.00000.mds"
DAMAGED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "samples that are not there": (
        "mds", edit("index.json", lambda i: i["shards"][0].update(samples=9)),
        f"{MDS}: has 4 samples, expected 9 by index.json; copy the whole folder again",
    ),
    "a cut file": ("mds", cut("shard.00000.mds", 300), f"{MDS}: has 300 bytes, expected 562 by index.json; "),
    "offsets that go back": ("mds", patch("shard.00000.mds", 8, bytes(4)), f"{MDS}: has invalid offsets, "),
    "offsets beyond the file": (
        "mds", patch("shard.00000.mds", 20, b"\xff" * 4), f"{MDS}: has invalid offsets, ",
    ),
    "a file elsewhere": (
        "mds", edit("index.json", lambda i: i["shards"][0]["raw_data"].update(basename="../../secret")),
        "given/index.json: lists ../../secret, which is not in source.files; ",
    ),
    "an unknown version": (
        "mds", edit("index.json", lambda i: i["shards"][0].update(version=3)),
        "given/index.json: is not an index of this format (ValueError: format mds, version 3); ",
    ),
    "no index": ("mds", lambda folder: (folder / "index.json").unlink(), f"{MDS}: no index.json beside it "),
    "a packed file of other size": (
        "mds_zstd", edit("index.json", lambda i: i["shards"][0]["raw_data"].update(bytes=10)),
        "given/shard.00000.mds.zstd: cannot be read (",
    ),
    "pickled objects": (
        "mds", edit("index.json", lambda i: i["shards"][0].update(column_encodings=["pkl"] * 5)),
        "given/index.json: column boxes is encoded as pkl, expected an encoding of numbers, text or bytes",
    ),
    "pickled leaves": (
        "litdata", edit("index.json", lambda i: i["config"]["data_format"].__setitem__(0, "pickle")),
        "column n is serialized as pickle, expected numbers, text or bytes that can be read without running",
    ),
    "an encrypted folder": (
        "litdata", edit("index.json", lambda i: i["config"].update(encryption={"level": "chunk"})),
        "given/index.json: its chunks have encryption, expected ",
    ),
    "zstd by frames": (
        "litdata_zstd", edit("index.json", lambda i: i["config"].update(compression_level="batch")),
        "given/index.json: its chunks have compression=zstd, compression_level=batch, expected ",
    ),
    "a cut tar": ("webdataset", cut("000.tar", 3000), "given/000.tar: cannot be read as a tar file ("),
    "a tar without its end": ("webdataset", cut("001.tar", 5 * 1024), "given/001.tar: cannot be read as a tar file ("),
    "a broken header": ("webdataset", break_header, "given/000.tar: cannot be read as a tar file (neither a file"),
    "a name that is no UTF-8": (
        "hf", patch("data-00000-of-00002.arrow", 896, b"\x80"),
        "given/data-00000-of-00002.arrow: cannot be read as Arrow ('utf-8' codec",
    ),
    "a missing Arrow file": (
        "hf", lambda folder: (folder / "data-00001-of-00002.arrow").unlink(),
        "given/state.json: lists data-00001-of-00002.arrow, which is not in source.files; copy the whole folder ",
    ),
    "a cut Arrow file": (
        "hf", cut("data-00000-of-00002.arrow", 1500), "given/data-00000-of-00002.arrow: cannot be read as Arrow (",
    ),
    "no state": (
        "hf", lambda folder: (folder / "state.json").unlink(),
        "given/data-00000-of-00002.arrow: no state.json beside it lists ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named(case: str, tmp_path: Path) -> None:
    folder, change, expected = DAMAGED[case]
    assert expected in message(folder, tmp_path, change, on_bad="skip")


def test_bad_rows_are_named_or_counted(tmp_path: Path) -> None:
    columns = {"n": Column(dtype="int64"), "t": Column(dtype="uint8", varies=True, kind="text")}
    rows = [{"n": n, "t": "é"} for n in range(3)]
    formats.write_mds(tmp_path / "given", columns, rows, 5)
    path = tmp_path / "given" / "shard.00000.mds"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    source = {"type": "mds", "files": ["given"]}
    with pytest.raises(DataError) as error:
        rows_of(make(tmp_path, source, shards=1))
    assert str(error.value).replace(f"{tmp_path}/", "") == (
        "given/shard.00000.mds, row 3: column t is not UTF-8 at byte 0, expected text; fix it, or leave it out with "
        "source.on_bad: skip"
    )
    left = make(tmp_path, source | {"on_bad": "skip"}, shards=1)
    assert (len(rows_of(left)), len(left.skipped[0])) == (2, 1)


def npy(dtype: str, rows: int) -> bytes:
    """The header of an array."""
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({rows},), }}".ljust(117)
    return b"\x93NUMPY\x01\x00\x76\x00" + head.encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "content", "kind", "expected"),
    [
        ("v.npy", pickle.dumps(1), "int64", "column v.npy is not an npy array ("),
        ("v.npy", npy("|O", 1), "int64[*]", "is an npy array of pickled objects"),
        ("v.npy", npy("<f8", 10**13), "float64[*]", "column v.npy is not an npy array ("),
        ("v.cls", b"cat", "int64", "column v.cls is b'cat', expected numbers"),
        ("v.cls", b"300", "uint8", "column v.cls has 300, expected finite numbers (uint8)"),
        ("v.json", b"[1, [2]]", "int64[*]", "column v.json has rows of different lengths, expected int64[*]"),
        ("v.json", b"[" * 100000, "int64[*]", "expected numbers"),
        ("v.json", b"[1e400]", "float32[*]", "column v.json has inf, expected finite numbers (float32[*])"),
        ("w.txt", b"a", "text", "sample 000000: column v.txt is missing, expected text"),
    ],
)  # fmt: skip
def test_files_in_a_tar_that_cannot_be_used(
    name: str, content: bytes, kind: str, expected: str, tmp_path: Path
) -> None:
    columns = {name: Column(dtype="uint8", kind="bytes", varies=True)}
    formats.write_webdataset(tmp_path / "tars", columns, [{name: content}], 1)
    extension = name.partition(".")[2]
    source = WebDataset(
        files=[tmp_path / "tars" / "00000.tar"], num_shards=1, columns={"v": kind},
        rename={"v": f"v.{extension}"},
    )  # fmt: skip
    with pytest.raises(DataError) as error:
        rows_of(source)
    assert expected in str(error.value)


def test_classes_and_columns_that_only_some_samples_have(tmp_path: Path) -> None:
    shutil.copytree(LIBRARIES / "webdataset", tmp_path / "given")
    source = make(
        tmp_path,
        {
            "type": "webdataset", "files": ["given/*.tar"], "rename": {"labels": "cls", "caption": "txt"},
            "columns": {"labels": "int64", "caption": "text", "mask": "bytes?"}, "num_classes": 4,
        },
    )  # fmt: skip
    assert source.schema.classes == ("0", "1", "2", "3")
    found = sorted(rows_of(source).values(), key=lambda row: row["labels"])
    assert found[1] == {"labels": 1, "caption": "row é 1", "mask": None}


def test_splits_by_folder(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        shutil.copytree(LIBRARIES / "mds", tmp_path / "given" / split)
    splits = {"files": {"train": ["train/*"], "validation": ["val/*"], "test": ["test/*"]}}
    source = make(tmp_path, {"type": "mds", "files": ["given"]}, splits=splits)
    found = [int(s) for shard in range(3) for t in source.iter_tables(shard) for s in t.splits]
    assert sorted(found) == [0] * 4 + [1] * 4 + [2] * 4


def test_an_index_of_a_whole_folder_gives_no_row_twice(tmp_path: Path) -> None:
    shutil.copytree(LIBRARIES / "mds", tmp_path / "given" / "0")
    index = json.loads((tmp_path / "given" / "0" / "index.json").read_text())
    for shard in index["shards"]:
        shard["raw_data"]["basename"] = f"0/{shard['raw_data']['basename']}"
    (tmp_path / "given" / "index.json").write_text(json.dumps(index))
    assert len(rows_of(make(tmp_path, {"type": "mds", "files": ["given"]}))) == 4


def test_class_names_of_hugging_face(tmp_path: Path) -> None:
    import pyarrow as pa

    features = {"y": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "x": {"_type": "Value"}}
    noted = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    table = pa.table({"x": [0.5, 1.5], "y": [1, 0]}).replace_schema_metadata(noted)
    (tmp_path / "given").mkdir()
    with pa.ipc.new_stream(tmp_path / "given" / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "given" / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    source = make(tmp_path, {"type": "hf", "files": ["given"], "label": "y"}, shards=1)
    assert source.schema.classes == ("cat", "dog")
    assert [row["labels"] for row in rows_of(source).values()] == [1, 0]


@pytest.mark.parametrize("kind", WRITERS)
def test_content_counts_and_place_does_not(kind: str, tmp_path: Path) -> None:
    shutil.copytree(LIBRARIES / kind, tmp_path / "given")
    source = settings_of(kind)
    before = load_dataset(tmp_path, source).id
    (tmp_path / "given").rename(tmp_path / "moved")
    assert load_dataset(tmp_path, source | {"files": ["moved"]}).id == before
    file = next(p for p in sorted((tmp_path / "moved").iterdir()) if p.suffix != ".json")
    file.write_bytes(file.read_bytes() + b"\0")
    assert load_dataset(tmp_path, source | {"files": ["moved"]}).id != before


def test_samples_of_tokens_are_arrays_alone(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    content = formats.chunk([np.arange(n, dtype="<i8").tobytes() for n in (3, 0, 2)])
    (tmp_path / "given" / "chunk-0-0.bin").write_bytes(content)
    leaf = {"type": None, "context": None, "children_spec": []}
    config = {
        "compression": None, "encryption": None, "item_loader": "TokensLoader", "data_spec": json.dumps([1, leaf]),
        "data_format": ["no_header_tensor:17"],
    }  # fmt: skip
    chunks = [{"chunk_bytes": len(content), "chunk_size": 3, "dim": 5, "filename": "chunk-0-0.bin"}]
    (tmp_path / "given" / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    source = make(tmp_path, {"type": "litdata", "files": ["given"]}, shards=1)
    assert source.schema.columns == {"tokens": "int64[*]"}
    assert [row["tokens"] for row in rows_of(source).values()] == [[0, 1, 2], [], [0, 1]]


def test_arrays_as_earlier_versions_of_litdata_wrote_them() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for order in "<>":
        head = struct.pack(f"{order}4I", 0, 2, 2, 3)
        decoded = LitData(num_shards=1).decode("tensor", head + array.tobytes())
        assert (decoded == array).all()
        with pytest.raises(UnusableError, match="has 6 bytes, expected type and shape of a tensor"):
            LitData(num_shards=1).decode("tensor", head[:6])
