"""Lines of text files in ranges of bytes: each line once, however files are packed and cut."""

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.data.sources import lines as lines_module
from shardline.data.sources import packed as packed_module
from shardline.data.sources.lines import TextFiles
from shardline.data.sources.packed import open_text
from shardline.errors import DataError

CONTENT = st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"bc", "ä".encode(), b"d" * 50])).map(
    b"".join
)


def pack(content: bytes, members: int) -> bytes:
    """Pack by gzip, in several members, as `cat a.gz b.gz` has them; 0 leaves it as it is."""
    if not members:
        return content
    step = len(content) // members + 1
    return b"".join(gzip.compress(content[i * step : (i + 1) * step]) for i in range(members))


@contextmanager
def files_of(packed: list[bytes], block: int, read: int) -> Iterator[list[Path]]:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_BLOCK_BYTES", block)
        patch.setattr(packed_module, "_STEP_BYTES", block)
        patch.setattr(packed_module, "_PACKED_BYTES", read)
        paths = [Path(folder) / f"{i}.txt" for i in range(len(packed))]
        for path, content in zip(paths, packed, strict=True):
            path.write_bytes(content)
        yield paths


@settings(deadline=None, max_examples=150)
@given(
    contents=st.lists(st.tuples(CONTENT, st.integers(0, 3)), min_size=1, max_size=3),
    shards=st.integers(1, 5),
    block=st.integers(1, 60),
    read=st.integers(1, 30),
    order=st.randoms(),
)
def test_each_line_once_in_any_order_of_shards(
    contents: list[tuple[bytes, int]], shards: int, block: int, read: int, order: object
) -> None:
    expected = [
        (index, line.removesuffix(b"\r"))
        for index, (content, _) in enumerate(contents)
        for line in content.split(b"\n")
        if line.removesuffix(b"\r")
    ]
    with files_of([pack(*one) for one in contents], block, read) as paths:
        texts, numbers = TextFiles(paths), list(range(shards))
        order.shuffle(numbers)  # type: ignore[attr-defined]
        by_shard = {
            shard: [
                (index, line)
                for index, first, last in texts.slices(shard, shards)
                for lines in texts.lines(index, first, last)
                for line in lines.rows()
            ]
            for shard in numbers
        }
        assert [row for shard in range(shards) for row in by_shard[shard]] == expected


@settings(deadline=None, max_examples=100)
@given(
    content=st.binary(max_size=400),
    members=st.integers(1, 3),
    block=st.integers(1, 60),
    read=st.integers(1, 30),
    steps=st.lists(st.tuples(st.integers(0, 450), st.integers(0, 100)), max_size=8),
)
def test_a_gzip_file_reads_as_what_it_holds(
    content: bytes, members: int, block: int, read: int, steps: list[tuple[int, int]]
) -> None:
    with files_of([pack(content, members)], block, read) as (path,), open_text(path) as file:
        plain = io.BytesIO(content)
        for place, size in steps:
            file.seek(place)
            plain.seek(place)
            assert file.read(size) == plain.read(size)
        assert file.seek(0, io.SEEK_END) == len(content)


@pytest.mark.parametrize("cut", [3, 15, -1, -9, -300])
def test_a_gzip_file_cut_short_is_named(cut: int, tmp_path: Path) -> None:
    whole = gzip.compress(bytes(range(256)) * 200, compresslevel=0)
    (tmp_path / "a.gz").write_bytes(whole[:cut])
    with pytest.raises(DataError, match=r"a\.gz: cannot be unpacked \(the file is truncated\)"):
        open_text(tmp_path / "a.gz").read()
    (tmp_path / "a.gz").write_bytes(whole[:-8] + b"\1\2\3\4" + whole[-4:])
    with pytest.raises(DataError, match=r"a\.gz: cannot be unpacked \(.*incorrect data check\)"):
        open_text(tmp_path / "a.gz").read()


def test_padding_between_and_behind_packed_files_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"a\n") + b"\0" * 70 + gzip.compress(b"b\n") + b"\0" * 512)
    assert open_text(path).read() == b"a\nb\n"


def test_shards_may_be_read_by_turns(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_text("".join(f"{path.name}{n}\n" for n in range(100)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_BLOCK_BYTES", 10)
        texts = TextFiles(paths)
        readers = [texts.lines(index, 0, 10**6) for index in (0, 1)]
        found = [row for both in zip(*readers, strict=True) for one in both for row in one.rows()]
    assert sorted(found) == sorted(f"{name}{n}".encode() for name in "ab" for n in range(100))
