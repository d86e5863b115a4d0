"""Reading of files that are plain or packed; here with gzip, in `unpacked` otherwise."""

import io
import sys
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from shardline.core.errors import DataError
from shardline.data.sources.unpacked import FORMATS, opened

_STEP_BYTES = 8 * 2**20  # distance between two saved states of the decompressor
_PACKED_BYTES = 64 * 2**10  # unpacked at a time; the result is at most 1,032 times as large
LONGEST_BYTES = 2**30  # limit of a row: a line in a small gzip file may be larger than the memory
_MAGIC = b"\x1f\x8b"
_REMEDY = "download it again, or remove it from source.files"


def is_gzip(path: Path) -> bool:
    """Return whether a file is packed with gzip, by its content."""
    with path.open("rb") as file:
        return file.read(2) == _MAGIC


def is_packed(path: Path) -> bool:
    """Return whether a file is packed in a format that `open_text` reads, by its content."""
    with path.open("rb") as file:
        return file.read(6).startswith((_MAGIC, *FORMATS))


def open_text(path: Path) -> IO[bytes]:
    """Open a file for its unpacked content. Reads raise `DataError` if packed content is damaged.

    Raises:
        DataError: The file is an archive of several files. The message names it.
    """
    file = path.open("rb")
    head = file.read(6)
    file.seek(0)
    if head.startswith(_MAGIC):
        return io.BufferedReader(_Unpacked(path, file), 2**20)
    if other := opened(path, head):
        file.close()
        return other
    return file


def read_line(file: IO[bytes], path: Path) -> bytes:
    """Read up to the end of a line.

    Raises:
        DataError: The line is longer than `LONGEST_BYTES`.
    """
    return _at_most(file.readline(LONGEST_BYTES + 1), path)


def read_whole(file: IO[bytes], path: Path) -> bytes:
    """Read a file that is one row.

    Raises:
        DataError: The file is longer than `LONGEST_BYTES`.
    """
    return _at_most(file.read(LONGEST_BYTES + 1), path)


def _at_most(content: bytes, path: Path) -> bytes:
    if len(content) > LONGEST_BYTES:
        raise DataError(
            f"{path}: has a row of more than {LONGEST_BYTES / 2**30:g} GiB, which begins with {content[:20]!r}, "
            f"expected shorter rows; {_REMEDY}"
        )
    return content


class _Unpacked(io.RawIOBase):
    """The unpacked content of a gzip file. Seeking back up to 8 MiB is cheap, unlike with `gzip.open`."""

    def __init__(self, path: Path, packed: IO[bytes]) -> None:
        self._path, self._packed = path, packed
        self._begin()

    def _begin(self) -> None:
        self._packed.seek(0)
        self._inflate = zlib.decompressobj(31)  # 31: with gzip's header and checksum
        self._place, self._ready = 0, memoryview(b"")
        # saved states: offset, offset in the packed file, copy of the decompressor
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
        """Unpack a block if no bytes are ready. Return False at the end of the file."""
        while not self._ready:
            if not self._states or self._place - self._states[-1][0] >= _STEP_BYTES:
                state = self._inflate.copy()
                self._states.append((self._place, self._packed.tell(), state.copy))
            block = self._packed.read(_PACKED_BYTES)
            if not block and self._inflate.eof:
                return False
            try:
                self._ready = memoryview(self._unpack(block))
            except (zlib.error, EOFError) as error:
                raise DataError(
                    f"{self._path}: cannot be unpacked ({error}), expected a complete gzip file; {_REMEDY}"
                ) from None
        return True

    def _unpack(self, block: bytes) -> bytes:
        if not block:
            raise EOFError("the file is truncated")
        pieces = []
        while block:
            if self._inflate.eof:  # a gzip file may consist of several members
                block = block.lstrip(b"\0")
                if not block:
                    break
                self._inflate = zlib.decompressobj(31)
            pieces.append(self._inflate.decompress(block))
            block = self._inflate.unused_data
        return b"".join(pieces)
