"""Lines of text files, plain or gzip, in ranges of bytes, so that no job reads more than its own part."""

import io
import re
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from shardline.core.errors import DataError
from shardline.data.sources.base import shard_slices

NEWLINE = b"\n"
_BLOCK_BYTES = 8 * 2**20
_PACKED_BYTES = 64 * 2**10  # unpacked at a time: at most 1,032 times as many
_MAGIC = b"\x1f\x8b"
_OTHER_MAGICS = (b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\0")
_EMPTY = (b"\n", b"\r\n")
_LINE = rb"(?!\r?(?:\n|\Z))[^\n]++"  # one that is not empty
_PARAGRAPH = re.compile(_LINE + rb"(?:\n" + _LINE + rb")*+")
_REMEDY = "fetch it again, or drop it from source.files"


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
        place = first
        if first > self._starts[index]:
            file = self.open(index)
            file.seek(first - 1)
            place += len(file.readline()) - 1  # the rest of a line that began earlier
        while place < last:
            file = self.open(index)
            file.seek(place)  # whoever was given the lines may have read elsewhere
            content = _whole_lines(file, min(_BLOCK_BYTES, last - place))
            if not content:
                return
            starts, ends = _lines_in(content)
            if len(starts):
                yield Lines(self.paths[index], place, content, starts, ends)
            place += len(content)

    def paragraphs(self, index: int, first: int, last: int) -> Iterator[Lines]:
        """Yield the paragraphs that begin at a byte from `first` to before `last`; empty lines end them."""
        place = self._after_paragraph(index, first)
        while place < last:
            file = self.open(index)
            file.seek(place)
            content = _whole_lines(file, min(_BLOCK_BYTES, last - place))
            if not content:
                return
            if not _ends_empty(content):
                content += b"".join(_rest_of_paragraph(file))
            found = [match.span() for match in _PARAGRAPH.finditer(content)]
            if found:
                starts, ends = np.array(found).T
                yield Lines(self.paths[index], place, content, starts, ends)
            place += len(content)

    def _after_paragraph(self, index: int, first: int) -> int:
        """Return where the line begins, from a byte on, that continues no paragraph."""
        before = min(
            3, first - self._starts[index]
        )  # as much as an empty line and the end before it
        if not before:
            return first
        file = self.open(index)
        file.seek(first - before)
        content, place = file.read(before), first
        if not content.endswith(NEWLINE):
            rest = file.readline()
            content, place = content + rest, place + len(rest)
        if not _ends_empty(content):
            place += sum(map(len, _rest_of_paragraph(file)))
        return place


def _whole_lines(file: IO[bytes], size: int) -> bytes:
    content = file.read(size)
    return content if content.endswith(b"\n") else content + file.readline()


def _rest_of_paragraph(file: IO[bytes]) -> Iterator[bytes]:
    """Yield lines up to the next empty one, that one too."""
    for line in iter(file.readline, b""):
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


def not_utf8(where: str, byte: int) -> DataError:
    """Return the error of a byte that is not UTF-8.

    Args:
        where: file and line.
    """
    return DataError(f"{where}: {found_byte(byte)}; save the file as UTF-8")


def found_byte(byte: int) -> str:
    """Say what is wrong with a byte that is not UTF-8."""
    return f"byte 0x{byte:02x} is not UTF-8"


def is_gzip(path: Path) -> bool:
    """Return whether a file is packed by gzip, whatever its name."""
    with path.open("rb") as file:
        return file.read(2) == _MAGIC


def open_text(path: Path) -> IO[bytes]:
    """Open a file for what it holds, unpacked.

    Raises:
        DataError: it is packed by another program than gzip; or later, by what reads it, that it
            cannot be unpacked. The message names the file.
    """
    file = path.open("rb")
    head = file.read(6)
    file.seek(0)
    if head.startswith(_MAGIC):
        return io.BufferedReader(_Unpacked(path, file), 2**20)
    if head.startswith(_OTHER_MAGICS):
        file.close()
        raise DataError(
            f"{path}: is compressed by another program than gzip, expected text, plain or .gz; unpack it, or pack it "
            "with gzip"
        )
    return file


class _Unpacked(io.RawIOBase):
    """What a gzip file holds. A step back of up to 8 MiB is cheap, which `gzip.open` unpacks all again for."""

    def __init__(self, path: Path, packed: IO[bytes]) -> None:
        self._path, self._packed = path, packed
        self._begin()

    def _begin(self) -> None:
        self._packed.seek(0)
        self._inflate = zlib.decompressobj(31)  # 31: with gzip's header and checksum
        self._place, self._ready = 0, memoryview(b"")
        # states to go back to: place, place in the packed file, decompressor
        self._states: deque[tuple[int, int, Callable[[], Any]]] = deque(maxlen=2)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._packed.close()
        super().close()

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        wanted = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: sys.maxsize}[whence]
        wanted += offset
        if wanted < self._place:
            self._go_back(wanted)
        while self._place < wanted and self._fill():
            self._skip(min(wanted - self._place, len(self._ready)))
        return self._place

    def readinto(self, buffer: Any) -> int:
        if not self._fill():
            return 0
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._skip(size)
        return size

    def _skip(self, size: int) -> None:
        self._ready = self._ready[size:]
        self._place += size

    def _go_back(self, wanted: int) -> None:
        for place, packed, inflate in reversed(self._states):
            if place <= wanted:
                self._packed.seek(packed)
                self._inflate, self._place, self._ready = inflate(), place, memoryview(b"")
                return
        self._begin()

    def _fill(self) -> bool:
        """Unpack some more where nothing is ready; return whether there was anything left."""
        while not self._ready:
            if not self._states or self._place - self._states[-1][0] >= _BLOCK_BYTES:
                state = self._inflate.copy()
                self._states.append((self._place, self._packed.tell(), state.copy))
            block = self._packed.read(_PACKED_BYTES)
            if not block and self._inflate.eof:
                return False
            try:
                self._ready = memoryview(self._unpack(block))
            except (zlib.error, EOFError) as error:
                raise DataError(
                    f"{self._path}: cannot be unpacked ({error}), expected a whole gzip file; {_REMEDY}"
                ) from None
        return True

    def _unpack(self, block: bytes) -> bytes:
        if not block:
            raise EOFError("it ends within its content")
        pieces = []
        while block:
            if self._inflate.eof:  # of one of several that were packed one by one
                block = block.lstrip(b"\0")
                if not block:
                    break
                self._inflate = zlib.decompressobj(31)
            pieces.append(self._inflate.decompress(block))
            block = self._inflate.unused_data
        return b"".join(pieces)
