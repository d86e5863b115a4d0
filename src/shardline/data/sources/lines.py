"""Lines of text files, plain or gzip, in ranges of bytes, so that no job reads more than its own part."""

import io
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np

from shardline.core.errors import DataError
from shardline.core.found_files import wide_encoding
from shardline.data.sources.packed import is_gzip, open_text, read_line
from shardline.data.sources.source import shard_slices

NEWLINE = b"\n"
_BLOCK_BYTES = 8 * 2**20
_HEAD_BYTES = 2**16
_EMPTY = (b"\n", b"\r\n")
_LINE = rb"(?!\r?(?:\n|\Z))[^\n]++"  # one that is not empty
_PARAGRAPH = re.compile(_LINE + rb"(?:\n" + _LINE + rb")*+")


@dataclass(frozen=True)
class Lines:
    """Whole lines of a file, or paragraphs.

    Attributes:
        path: the file.
        place: where in what the file holds they begin, in bytes.
        content: their bytes.
        starts: where in `content` each line begins that is not empty [N].
        ends: where it ends, before its newline [N].
    """

    path: Path
    place: int
    content: bytes
    starts: np.ndarray
    ends: np.ndarray

    def where(self, line: int) -> str:
        """Say where a line stands."""
        return self.where_byte(int(self.starts[line]))

    def where_byte(self, byte: int) -> str:
        """Say in which line a byte of the content stands."""
        return f"{self.path}, line {self._lines_before + self.content.count(NEWLINE, 0, byte) + 1}"

    @cached_property
    def _lines_before(self) -> int:
        number, place = 0, self.place  # counted by reading on, which only a message needs
        with open_text(self.path) as file:
            while content := file.read(min(_BLOCK_BYTES, place)):
                number, place = number + content.count(NEWLINE), place - len(content)
        return number

    def rows(self) -> list[bytes]:
        """Return what is in each line that is not empty, or paragraph."""
        places = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [self.content[start:end].removesuffix(b"\r") for start, end in places]


class TextFiles:
    """Text files that are cut by their bytes.

    A gzip file counts by its packed bytes: a job unpacks those that it reads, twice
    where they hold rows of several shards, and no others.

    Args:
        paths: the files.
        starts: where in each its rows begin, behind a header; left out, at its first byte.
    """

    def __init__(self, paths: Sequence[Path], starts: Sequence[int] = ()) -> None:
        self.paths, self._starts = paths, starts or (0,) * len(paths)
        self._latest: tuple[int, IO[bytes]] | None = None
        self._unpacked: dict[int, int] = {}

    def slices(self, shard: int, num_shards: int) -> Iterator[tuple[int, int, int]]:
        """Yield which bytes are in a shard: a file's place in `paths`, and [first, last) of what it holds."""
        packed = [is_gzip(path) for path in self.paths]
        sizes = [
            path.stat().st_size - (0 if is_packed else start)
            for path, start, is_packed in zip(self.paths, self._starts, packed, strict=True)
        ]
        for index, first, last in shard_slices(sizes, shard, num_shards):
            start, size = self._starts[index], sizes[index]
            if not packed[index]:
                yield index, start + first, start + last
            elif last - first == size:
                yield index, start, sys.maxsize
            else:
                bytes_ = self._unpacked_bytes(index) - start
                yield index, start + bytes_ * first // size, start + bytes_ * last // size

    def _unpacked_bytes(self, index: int) -> int:
        if index not in self._unpacked:
            with open_text(self.paths[index]) as file:
                self._unpacked[index] = file.seek(0, io.SEEK_END)
        return self._unpacked[index]

    def open(self, index: int) -> IO[bytes]:
        """Return what a file holds, to be read; it stays open until another one is asked for."""
        # a shard begins where the one before ended, and a gzip file is unpacked up to there
        if self._latest is None or self._latest[0] != index:
            if self._latest is not None:
                self._latest[1].close()
            self._latest = index, open_text(self.paths[index])
        return self._latest[1]

    def lines(self, index: int, first: int, last: int) -> Iterator[Lines]:
        """Yield the lines that begin at a byte from `first` to before `last`, 8 MiB at a time."""
        self._refuse_returns(index, first)
        if first > self._starts[index]:  # behind the rest of a line that began earlier
            file = self.open(index)
            file.seek(first - 1)
            first += len(read_line(file, self.paths[index])) - 1
        for place, content in self._contents(index, first, last):
            starts, ends = _lines_in(content)
            if len(starts):
                yield Lines(self.paths[index], place, content, starts, ends)

    def paragraphs(self, index: int, first: int, last: int) -> Iterator[Lines]:
        """Yield the paragraphs that begin at a byte from `first` to before `last`; empty lines end them."""
        self._refuse_returns(index, first)
        first = self._after_paragraph(index, first)
        for place, content in self._contents(index, first, last, ends_empty=True):
            if found := [match.span() for match in _PARAGRAPH.finditer(content)]:
                starts, ends = np.array(found).T
                yield Lines(self.paths[index], place, content, starts, ends)

    def _contents(
        self, index: int, place: int, last: int, *, ends_empty: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """Yield place and bytes of whole lines, 8 MiB at a time, up to an empty one if asked."""
        path = self.paths[index]
        while place < last:
            file = self.open(index)
            file.seek(place)  # whoever was given the lines may have read elsewhere
            content = file.read(min(_BLOCK_BYTES, last - place))
            if not content.endswith(NEWLINE):
                content += read_line(file, path)
            if not content:
                return
            if ends_empty and not _ends_empty(content):
                content += b"".join(_rest_of_paragraph(file, path))
            yield place, content
            place += len(content)

    def _refuse_returns(self, index: int, first: int) -> None:
        """Refuse a file that would be one line, since its lines end by carriage returns alone."""
        if first == self._starts[index]:
            file = self.open(index)
            file.seek(first)
            head = file.read(_HEAD_BYTES)
            if b"\r" in head.rstrip(b"\r") and b"\n" not in head:
                raise ends_by_return(self.paths[index])

    def _after_paragraph(self, index: int, first: int) -> int:
        """Return where the line begins, from a byte on, that continues no paragraph."""
        # as much as an empty line and the end before it
        before = min(3, first - self._starts[index])
        if not before:
            return first
        file = self.open(index)
        file.seek(first - before)
        content, place = file.read(before), first
        if not content.endswith(NEWLINE):
            rest = read_line(file, self.paths[index])
            content, place = content + rest, place + len(rest)
        if not _ends_empty(content):
            place += sum(map(len, _rest_of_paragraph(file, self.paths[index])))
        return place


def _rest_of_paragraph(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield lines up to the next empty one, that one too."""
    while line := read_line(file, path):
        yield line
        if line in _EMPTY:
            return


def _ends_empty(content: bytes) -> bool:
    """Return whether the last line is empty; before the content a line ends."""
    return content.endswith((b"\n\n", b"\n\r\n")) or content in _EMPTY


def _lines_in(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return where the lines that are not empty begin and end [N] int64."""
    data = np.frombuffer(content, dtype=np.uint8)
    ends = np.append(np.flatnonzero(data == ord("\n")), len(data))
    starts = np.append(0, ends[:-1] + 1)
    is_return = data[starts.clip(max=len(data) - 1)] == ord("\r")
    kept = ends - starts > is_return  # an empty line may still hold a carriage return
    return starts[kept], ends[kept]


def ends_by_return(path: Path) -> DataError:
    """Return the error of a file whose lines end as those of Mac OS 9 did."""
    return DataError(
        f"{path}: its lines end by a carriage return alone (\\r), expected \\n or \\r\\n; write it again, such as by "
        f"`tr '\\r' '\\n' < {path.name}`"
    )


def refuse_wide(path: Path, head: bytes) -> None:
    """Refuse a file of UTF-16 or UTF-32.

    Args:
        head: its first bytes.

    Raises:
        DataError: names the file and its encoding.
    """
    if encoding := wide_encoding(head):
        raise DataError(
            f"{path}: is {encoding}, expected UTF-8; write it again, such as by "
            f"`iconv -f {encoding} -t UTF-8 {path.name}`"
        )


def not_utf8(where: str, byte: int) -> DataError:
    """Return the error of a byte that is not UTF-8.

    Args:
        where: file and line.
    """
    return DataError(f"{where}: {found_byte(byte)}; save the file as UTF-8")


def found_byte(byte: int) -> str:
    """Say what is wrong with a byte that is not UTF-8."""
    return f"byte 0x{byte:02x} is not UTF-8"
