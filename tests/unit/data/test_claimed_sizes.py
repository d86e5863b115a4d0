"""Headers that claim more than their file holds: one sentence that names the file, and no memory for the claim."""

import gzip
import json
import random
import resource
import struct
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.data.sources import packed
from shardline.data.sources.csv import Csv
from shardline.data.sources.idx import Idx
from shardline.data.sources.jsonl import Jsonl
from shardline.data.sources.litdata import LitData
from shardline.data.sources.mds import Mds
from shardline.data.sources.parquet import Parquet
from shardline.data.sources.text import Text
from shardline.data.sources.webdataset import WebDataset
from shardline.errors import DataError
from shardline.sources import Source
from shardline_io.shards import Shards
from tests.support.library_formats import chunk
from tests.unit.data.test_csv_notation import PACKERS

SEED = 20261127
CLAIMS = [3, 2**20, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**70]
_RNG = random.Random(SEED)
CLAIMS += [_RNG.randrange(2 ** _RNG.randrange(10, 70)) for _ in range(20)]
SPARE_BYTES = 1 << 30


@contextmanager
def little_memory() -> Iterator[None]:
    """Let this process have a GiB more than it has now."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE_BYTES, before[1])
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def read(kind: type[Source], files: list[Path], **options: object) -> int:
    """Return how many rows a source has, after reading all of them."""
    source = kind(files=files, num_shards=1, **options)
    assert source.schema
    return sum(len(table.ids) for table in source.iter_tables(0))


def refused(kind: type[Source], files: list[Path], claim: object, **options: object) -> str:
    """Return the sentence with which files are refused."""
    with little_memory(), pytest.raises(DataError) as error:
        read(kind, files, **options)
    message = str(error.value)
    assert any(str(file) in message for file in files), (SEED, claim, message)
    assert "; " in message
    assert len(message) < 700
    return message


def member(name: str, claim: int, content: bytes = b"1", kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = claim, kind
    return info.tobuf(tarfile.GNU_FORMAT) + content.ljust(-len(content) % 512 + len(content), b"\0")


@pytest.mark.parametrize("place", ["first", "second", "long name", "pax header"])
def test_a_tar_header(tmp_path: Path, place: str) -> None:
    path = tmp_path / "a.tar"
    for claim in CLAIMS[1:]:
        if claim < 4096:
            continue
        content = {
            "first": member("a.cls", claim),
            "second": member("a.cls", 1) + member("b.cls", claim),
            "long name": member("././@LongLink", claim, kind=b"L"),
            "pax header": member("a", claim, b"30 mtime=1", kind=b"x"),
        }[place]
        path.write_bytes(content + bytes(1024))
        message = refused(WebDataset, [path], claim)
        assert "cannot be read as a tar file" in message
        if place in ("first", "second"):
            assert f"at byte {0 if place == 'first' else 1024:,} has " in message
            assert f"of {claim:,} bytes" in message


def npy(shape: object, descr: str = "<f4") -> bytes:
    head = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(head) + 1) + head + b"\n" + bytes(16)


def test_an_npy_header(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    shapes: list[object] = [(claim,) for claim in CLAIMS if claim > 4]
    shapes += [(claim, claim) for claim in CLAIMS] + [(-1,), (-2, -2), (0, 2**62, 2**62)]
    contents = [npy(shape) for shape in shapes]
    contents += [b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{'descr'"]
    for content in contents:
        path.write_bytes(member("a.x.npy", len(content), content) + bytes(1024))
        assert " npy array" in refused(WebDataset, [path], content)


@pytest.mark.parametrize("is_packed", [False, True])
def test_the_dimensions_of_an_idx_file(tmp_path: Path, is_packed: bool) -> None:
    images, labels = tmp_path / "train-images-idx3", tmp_path / "train-labels-idx1"
    labels.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 0, 1]))
    claims = [claim for claim in CLAIMS if claim < 2**32]
    for shape in [(2, claim, claim) for claim in claims] + [(2, *[2**32 - 1] * 9)]:
        head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
        content = head + bytes(9)
        images.write_bytes(gzip.compress(content) if is_packed else content)
        message = refused(Idx, [images, labels], shape)
        assert "after its header, expected " in message
        assert "expected -" not in message


def test_an_index_of_mds_and_of_litdata(tmp_path: Path) -> None:
    content = chunk([b"\x01\0\0\0\0\0\0\0"])
    name, index = tmp_path / "shard.00000.mds", tmp_path / "index.json"
    name.write_bytes(pa.compress(content, codec="zstd", asbytes=True))
    for claim in [one for one in CLAIMS if one != len(content)]:
        for samples, size in ((1, claim), (claim, len(content)), (claim, claim)):
            raw = {"basename": "shard.00000.raw", "bytes": size}
            entry = {
                "format": "mds", "version": 2, "column_names": ["n"], "column_encodings": ["int"], "samples": samples,
                "column_sizes": [8], "raw_data": raw, "zip_data": {"basename": name.name}, "compression": "zstd",
            }  # fmt: skip
            index.write_text(json.dumps({"shards": [entry]}))
            refused(Mds, [index, name], (samples, size))
            spec = json.dumps([1, {"type": None, "context": None, "children_spec": []}])
            config = {
                "data_spec": spec, "data_format": ["int"], "compression": "zstd", "item_loader": "PyTreeLoader",
            }  # fmt: skip
            piece = {"filename": name.name, "chunk_size": samples, "chunk_bytes": size}
            index.write_text(json.dumps({"config": config, "chunks": [piece]}))
            refused(LitData, [index, name], (samples, size))


def test_the_sizes_in_a_sample_of_mds(tmp_path: Path) -> None:
    name, index = tmp_path / "shard.00000.mds", tmp_path / "index.json"
    for claim in (one for one in CLAIMS if one < 2**32):
        value = bytes([66, 4 | 2]) + struct.pack("<I", claim) + b"x"  # an array of so many float64
        for sample in (struct.pack("<I", claim) + b"ab", struct.pack("<I", len(value)) + value):
            content = chunk([sample])
            name.write_bytes(content)
            entry = {
                "format": "mds", "version": 2, "column_names": ["n"], "column_encodings": ["ndarray"], "samples": 1,
                "column_sizes": [None], "raw_data": {"basename": name.name, "bytes": len(content)},
            }  # fmt: skip
            index.write_text(json.dumps({"shards": [entry]}))
            refused(Mds, [index, name], claim)


def test_a_footer_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(20.0), "y": np.arange(20)}), path)
    whole = path.read_bytes()
    for claim in (one for one in CLAIMS if one < 2**32):
        path.write_bytes(whole[:-8] + struct.pack("<I", claim) + b"PAR1")
        refused(Parquet, [path], claim, label="y", features=["x"], num_classes=20)


@pytest.mark.parametrize("claim", [one for one in CLAIMS if one < 2**64])
def test_a_header_of_a_shard(tmp_path: Path, claim: int) -> None:
    head = json.dumps(
        {"x": {"dtype": "F32", "shape": [claim], "data_offsets": [0, claim]}}
    ).encode()
    for length in (claim, len(head)):
        content = struct.pack("<Q", length) + head + bytes(4)
        (tmp_path / "s").write_bytes(content)
        manifest = {"shards": [{"file": "s", "bytes": len(content)}]}
        with little_memory(), pytest.raises(DataError, match=r"s has no valid header"):
            Shards(manifest, tmp_path).names()


@pytest.mark.parametrize(
    ("kind", "begin", "options"),
    [
        (Csv, b"x,y\n1,0\n", {"label": "y", "features": ["x"], "num_classes": 2}),
        (Csv, b"x", {"label": "y", "features": ["x"], "num_classes": 2}),
        (Jsonl, b'{"x": "a"}\n', {"columns": {"x": "text"}}),
        (Text, b"a\n", {"unit": "line"}),
        (Text, b"a\n", {"unit": "paragraph"}),
        (Text, b"a\n", {"unit": "file"}),
    ],
)
def test_a_small_gzip_file_of_one_endless_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Source], begin: bytes,
    options: dict[str, object],
) -> None:  # fmt: skip
    monkeypatch.setattr(packed, "LONGEST_BYTES", 32 * 2**20)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(begin + b"1" * (80 * 2**20), 1))
    assert "has a row of more than 0.03" in refused(kind, [path], begin, **options)


@pytest.mark.parametrize("pack", [PACKERS["zip"], PACKERS["zstd"], PACKERS["bzip2"]])
def test_a_small_packed_file_of_one_endless_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(packed, "LONGEST_BYTES", 8 * 2**20)
    path = tmp_path / "a"
    path.write_bytes(pack(b"x,y\n1,0\n" + b"1" * (20 * 2**20)))
    options = {"label": "y", "features": ["x"], "num_classes": 2}
    assert "has a row of more than 0.0078125" in refused(Csv, [path], "1", **options)
    with pytest.raises(DataError, match=r"has a row of more than 0\.0078125"):
        read(Csv, [path], **options, line_breaks=True)


def test_what_is_whole_is_read_under_the_same_limit(tmp_path: Path) -> None:
    tar = tmp_path / "a.tar"
    tar.write_bytes(member("a.cls", 1) + member("a.x.npy", len(npy((4,))), npy((4,))) + bytes(1024))
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"a\n" * 20))
    with little_memory():
        assert read(WebDataset, [tar]) == 1
        assert read(Text, [path], unit="paragraph") == 1


def test_an_idx_file_of_more_dimensions_than_an_array_may_have(tmp_path: Path) -> None:
    path = tmp_path / "images-idx3"
    path.write_bytes(bytes([0, 0, 8, 200]) + struct.pack(">200I", *[1] * 200) + b"a")
    assert "begins with 000008c8, expected an IDX header" in refused(Idx, [path], 200)
