"""Reading of text files that are packed with zip, Zstandard, bzip2 or xz."""

import bz2
import io
import lzma
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from shardline.core.errors import DataError
from shardline.core.found_files import is_hidden

_STEP_BYTES = 2**20  # unpacked at a time
_KEPT_BYTES = (
    16 * 2**20
)  # unpacked bytes that can be read again without unpacking from the beginning
_REMEDY = "download it again, or remove it from source.files"
_DAMAGED = (OSError, EOFError, ValueError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)  # fmt: skip


def _open_zstd(path: Path) -> IO[bytes]:
    import pyarrow as pa

    return cast(IO[bytes], pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))


def _open_zip(path: Path) -> IO[bytes]:
    archive = zipfile.ZipFile(path)
    names = [
        name
        for name in archive.namelist()
        if not name.endswith("/") and not any(map(is_hidden, name.split("/")))
    ]
    if "xl/workbook.xml" in names:
        raise DataError(f"{path}: is an Excel workbook, expected text; save each sheet as CSV")
    if len(names) != 1:
        found = f"{len(names)} files ({', '.join(names[:3])}{', ...' if names[3:] else ''})"
        raise DataError(
            f"{path}: contains {found if names else 'no file'}, expected a zip archive of one file; unpack it, and "
            "list its files in source.files"
        )
    return archive.open(names[0])


# name of the format, and the function that opens a file, by the first bytes of a file
FORMATS: dict[bytes, tuple[str, Callable[[Path], IO[bytes]]]] = {
    b"PK\x03\x04": ("zip", _open_zip),
    b"PK\x05\x06": ("zip", _open_zip),  # of an empty archive
    b"\x28\xb5\x2f\xfd": ("zstd", _open_zstd),
    b"BZh": ("bzip2", lambda path: cast(IO[bytes], bz2.BZ2File(path))),
    b"\xfd7zXZ\0": ("xz", lambda path: cast(IO[bytes], lzma.LZMAFile(path))),  # noqa: SIM115
}


def opened(path: Path, head: bytes) -> IO[bytes] | None:
    """Open a packed file for its unpacked content; None if its first bytes show no known format.

    Raises:
        DataError: The file is damaged, or an archive of several files. Reads raise it too.
    """
    known = next((of for magic, of in FORMATS.items() if head.startswith(magic)), None)
    return known and io.BufferedReader(_Unpacked(path, *known), 2**20)


class _Unpacked(io.RawIOBase):
    """The unpacked content of a file. Seeking back up to 16 MiB is cheap."""

    def __init__(self, path: Path, name: str, begin: Callable[[Path], IO[bytes]]) -> None:
        self._path, self._name, self._begin = path, name, begin
        self._stream: IO[bytes] | None = None
        self._restart()

    def _restart(self) -> None:
        self._close_stream()
        self._stream = self._read(lambda: self._begin(self._path))
        self._place = self._end = 0
        self._kept: deque[bytes] = deque()  # the bytes that end at `_end`

    def _read(self, what: Callable[[], Any]) -> Any:
        try:
            return what()
        except _DAMAGED as error:
            raise DataError(
                f"{self._path}: cannot be unpacked ({' '.join(str(error).split())[:200]}), expected a complete "
                f"{self._name} file; {_REMEDY}"
            ) from None

    def _close_stream(self) -> None:
        if self._stream:
            self._stream.close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._close_stream()
        super().close()

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        wanted = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: sys.maxsize}[whence]
        wanted += offset
        if wanted < self._end - sum(map(len, self._kept)):
            self._restart()
        while self._end < wanted and self._fill():
            pass
        self._place = min(wanted, self._end)
        return self._place

    def readinto(self, buffer: Any) -> int:
        if self._place == self._end and not self._fill():
            return 0
        start = self._end
        for block in reversed(self._kept):
            start -= len(block)
            if start <= self._place:
                piece = memoryview(block)[self._place - start :][: len(buffer)]
                buffer[: len(piece)] = piece
                self._place += len(piece)
                return len(piece)
        raise AssertionError(f"{self._place} is before the kept bytes")

    def _fill(self) -> bool:
        """Unpack a block. Return False at the end of the file."""
        stream = self._stream
        assert stream
        block = self._read(lambda: stream.read(_STEP_BYTES))
        if not block:
            return False
        self._kept.append(block)
        self._end += len(block)
        while sum(map(len, self._kept)) - len(self._kept[0]) >= _KEPT_BYTES:
            self._kept.popleft()
        return True
