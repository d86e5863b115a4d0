"""Lines of text files, plain or packed, read in byte ranges, so that a job reads only its own part."""

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
from shardline.core.found_files import content_of, wide_encoding
from shardline.data.sources.packed import is_packed, open_text, read_line
from shardline.data.sources.source import shard_slices

NEWLINE = b"\n"
_BLOCK_BYTES = 8 * 2**20
_HEAD_BYTES = 2**16
_EMPTY = (b"\n", b"\r\n")
_LINE = rb"(?!\r?(?:\n|\Z))[^\n]++"  # not an empty line
_PARAGRAPH = re.compile(_LINE + rb"(?:\n" + _LINE + rb")*+")


@dataclass(frozen=True)
class Lines:
    """Whole lines or paragraphs of a file.

    Attributes:
        path: Path of the file.
        place: Offset of the content in the unpacked file, in bytes.
        content: Bytes of the lines.
        starts: Offsets [N] in `content` of the first byte of each line that is not empty.
        ends: Offsets [N] of the ends of these lines, before the newline.
    """

    path: Path
    place: int
    content: bytes
    starts: np.ndarray
    ends: np.ndarray

    def where(self, line: int) -> str:
        """Return file and line number of a line, for messages."""
        return self.where_byte(int(self.starts[line]))

    def where_byte(self, byte: int) -> str:
        """Return file and line number of a byte of the content, for messages."""
        return f"{self.path}, line {self._lines_before + self.content.count(NEWLINE, 0, byte) + 1}"

    @cached_property
    def _lines_before(self) -> int:
        number, place = 0, self.place  # counting reads the file again, so only messages do it
        with open_text(self.path) as file:
            while content := file.read(min(_BLOCK_BYTES, place)):
                number, place = number + content.count(NEWLINE), place - len(content)
        return number

    def rows(self) -> list[bytes]:
        """Return the content of each line that is not empty, or of each paragraph."""
        places = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [self.content[start:end].removesuffix(b"\r") for start, end in places]


class TextFiles:
    """Text files that are split into shards by bytes.

    The size of a packed file is its packed size. A job unpacks only files that it reads, and
    unpacks a file twice if the file has rows of several shards.

    Args:
        paths: Paths of the files.
        starts: Offset of the first row in each file, after a header. Default: 0.
    """

    def __init__(self, paths: Sequence[Path], starts: Sequence[int] = ()) -> None:
        self.paths, self.starts = paths, starts or (0,) * len(paths)
        self._latest: tuple[int, IO[bytes]] | None = None
        self._unpacked: dict[int, int] = {}

    def slices(self, shard: int, num_shards: int) -> Iterator[tuple[int, int, int]]:
        """Yield the byte ranges of a shard, as (index in `paths`, first, last) of the unpacked file."""
        packed = [is_packed(path) for path in self.paths]
        sizes = [
            path.stat().st_size - (0 if of_packed else start)
            for path, start, of_packed in zip(self.paths, self.starts, packed, strict=True)
        ]
        for index, first, last in shard_slices(sizes, shard, num_shards):
            start, size = self.starts[index], sizes[index]
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
        """Open a file for its unpacked content. The file stays open until another file is opened."""
        # a shard begins where the previous shard ended, and a gzip file is already unpacked up to there
        if self._latest is None or self._latest[0] != index:
            if self._latest is not None:
                self._latest[1].close()
            self._latest = index, open_text(self.paths[index])
        return self._latest[1]

    def open_at(self, index: int, place: int) -> IO[bytes]:
        """Open a file at an offset of its unpacked content."""
        file = self.open(index)
        file.seek(place)
        return file

    def lines(self, index: int, first: int, last: int) -> Iterator[Lines]:
        """Yield the lines whose first byte is in [first, last), 8 MiB at a time."""
        self._refuse_returns(index, first)
        if first > self.starts[index]:
            first = self._begin(index, first)
        for place, content in self._contents(index, first, last):
            starts, ends = self.spans(content)
            if len(starts):
                yield Lines(self.paths[index], place, content, starts, ends)

    def _begin(self, index: int, first: int) -> int:
        """Return the offset of the first line that begins at `first` or after it."""
        return first + len(read_line(self.open_at(index, first - 1), self.paths[index])) - 1

    def rest(self, file: IO[bytes], path: Path, content: bytes) -> bytes:
        """Return the rest of the last line in `content`, which begins with a line."""
        return b"" if content.endswith(NEWLINE) else read_line(file, path)

    def spans(self, content: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return the offsets at which the lines in `content` begin and end."""
        data = np.frombuffer(content, dtype=np.uint8)
        return lines_in(data, np.flatnonzero(data == ord("\n")))

    def paragraphs(self, index: int, first: int, last: int) -> Iterator[Lines]:
        """Yield the paragraphs whose first byte is in [first, last). Empty lines separate paragraphs."""
        self._refuse_returns(index, first)
        first = self._after_paragraph(index, first)
        for place, content in self._contents(index, first, last, ends_empty=True):
            if found := [match.span() for match in _PARAGRAPH.finditer(content)]:
                starts, ends = np.array(found).T
                yield Lines(self.paths[index], place, content, starts, ends)

    def _contents(
        self, index: int, place: int, last: int, *, ends_empty: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """Yield offset and bytes of whole lines, 8 MiB at a time, or up to the next empty line."""
        path = self.paths[index]
        while place < last:
            file = self.open(index)
            file.seek(place)  # the caller may have read elsewhere between two blocks
            content = file.read(min(_BLOCK_BYTES, last - place))
            content += self.rest(file, path, content)
            if not content:
                return
            if ends_empty and not _ends_empty(content):
                content += b"".join(_rest_of_paragraph(file, path))
            yield place, content
            place += len(content)

    def _refuse_returns(self, index: int, first: int) -> None:
        """Reject a file whose lines end with a carriage return alone, which would be read as one line."""
        if first == self.starts[index]:
            file = self.open(index)
            file.seek(first)
            head = file.read(_HEAD_BYTES)
            if b"\r" in head.rstrip(b"\r") and b"\n" not in head:
                raise ends_by_return(self.paths[index])

    def _after_paragraph(self, index: int, first: int) -> int:
        """Return the offset of the first line from `first` on that does not continue a paragraph."""
        # 3 bytes: an empty line and the newline before it
        before = min(3, first - self.starts[index])
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
    """Yield lines up to the next empty line, which is included."""
    while line := read_line(file, path):
        yield line
        if line in _EMPTY:
            return


def _ends_empty(content: bytes) -> bool:
    """Return whether the last line is empty. The content must begin at a line's beginning."""
    return content.endswith((b"\n\n", b"\n\r\n")) or content in _EMPTY


def lines_in(data: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets at which the lines that are not empty begin and end [N] int64.

    Args:
        data: Bytes [M] uint8.
        ends: Offsets of the line breaks that end lines.
    """
    ends = np.append(ends, len(data))
    starts = np.append(0, ends[:-1] + 1)
    is_return = data[starts.clip(max=len(data) - 1)] == ord("\r")
    kept = ends - starts > is_return  # an empty line may still hold a carriage return
    return starts[kept], ends[kept]


def ends_by_return(path: Path) -> DataError:
    """Return the error for a file whose lines end with a carriage return alone, as in Mac OS 9."""
    return DataError(
        f"{path}: its lines end with a carriage return alone (\\r), expected \\n or \\r\\n; convert it, for example "
        f"with `tr '\\r' '\\n' < {path.name}`"
    )


def refuse_wide(path: Path, head: bytes) -> None:
    """Reject a file in UTF-16 or UTF-32.

    Args:
        path: Path of the file.
        head: First bytes of the file.

    Raises:
        DataError: The file is in one of these encodings. The message names both.
    """
    if encoding := wide_encoding(head):
        raise DataError(
            f"{path}: is {encoding}, expected UTF-8; convert it, for example with "
            f"`iconv -f {encoding} -t UTF-8 {path.name}`"
        )


def refuse_other_content(path: Path, head: bytes, expected: str) -> None:
    """Reject a file whose first bytes are those of another format, or of UTF-16 or UTF-32.

    Args:
        path: Path of the file.
        head: First bytes of the file.
        expected: Format that the source reads.

    Raises:
        DataError: The file is such a file. The message names it and its format.
    """
    refuse_wide(path, head)
    if found := content_of(head):
        raise DataError(
            f"{path}: is {found}, expected {expected}; fix it, or remove it from source.files"
        )


def not_utf8(where: str, byte: int) -> DataError:
    """Return the error for a byte that is not UTF-8; `where` is its file and line."""
    return DataError(f"{where}: {found_byte(byte)}; save the file as UTF-8")


def found_byte(byte: int) -> str:
    """Describe a byte that is not UTF-8."""
    return f"byte 0x{byte:02x} is not UTF-8"
