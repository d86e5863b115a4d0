"""All shards of a dataset in one address range, so that one call gathers rows of any of them.

Each file is mapped at a multiple of both the page and the row size. Row i of
shard s is then row s * R + i of one array, and a batch is one `numpy.take`,
whichever files its rows lie in. The page cache holds the bytes, once for all
ranks of a node; nothing is copied but the batches.
"""

import ctypes
import errno
import math
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shardline.errors import DataError
from shardline.sampling import Piece
from shardline.shardfile import HEADER_BYTES, Layout
from shardline.workflow import making

_HUGE_BYTES = 2 << 20
_MOST_BYTES = 1 << 45  # of 47 bits of address space
_CHUNK_BYTES = 8 << 20  # asked of the kernel at a time
# mman.h of Linux; Python's mmap module cannot place a mapping
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MADV_WILLNEED, _MADV_DONTNEED, _MADV_POPULATE_READ = 3, 4, 22

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class _Reservation:
    """An address range, given back when no array looks at it any more."""

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self.address = _mmap(None, size, 0, flags, -1, 0)
        self.__array_interface__ = {
            "version": 3, "shape": (size,), "typestr": "|u1", "data": (self.address, True),
        }  # fmt: skip
        weakref.finalize(self, _libc.munmap, self.address, size)


def _mmap(address: int | None, size: int, protection: int, flags: int, file: int, at: int) -> int:
    found: int | None = _libc.mmap(address, size, protection, flags, file, at)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


class ShardMap:
    """The shards of a sealed dataset, mapped.

    Args:
        manifest: the sealed manifest.
        folder: folder of the shards in the store.

    Attributes:
        features: all rows of all shards [S * R, *feature_shape] in the stored
            type; read only rows that `rows` gives, others are not there.

    Raises:
        DataError: a shard is missing, has another size than the manifest says,
            or the dataset is too large to be mapped.
    """

    def __init__(self, manifest: Mapping[str, Any], folder: Path) -> None:
        self.manifest, self.folder = manifest, folder
        schema, records = manifest["schema"], manifest["shards"]
        self._layouts = [Layout.of(schema, sum(record["rows"].values())) for record in records]
        dtype, shape = np.dtype(schema["feature_dtype"]), tuple(schema["feature_shape"])
        self.row_bytes: int = dtype.itemsize * math.prod(shape)
        self._stride = self._choose_stride()
        try:
            self._memory = _Reservation(self._stride * len(records) + _HUGE_BYTES)
        except OSError as error:
            raise DataError(
                f"dataset {manifest['dataset']} of {manifest['bytes']:,} bytes cannot be mapped ({error.strerror}); "
                "raise the limit of address space (`ulimit -v`)"
            ) from None
        start = -self._memory.address % _HUGE_BYTES
        self._address = self._memory.address + start
        self._bytes = np.asarray(self._memory)[start : start + self._stride * len(records)]
        for shard in range(len(records)):
            self._map(shard)
        num_rows = (len(self._bytes) - HEADER_BYTES) // self.row_bytes
        features = self._bytes[HEADER_BYTES : HEADER_BYTES + num_rows * self.row_bytes]
        self.features = features.view(dtype).reshape(-1, *shape)

    def _choose_stride(self) -> int:
        """Return the distance of two files: a multiple of the row size and of a huge page's.

        A file that begins at a multiple of a huge page is mapped by huge pages where the
        page cache holds it so: thirteen times as fast, 7 ns for 97 per 4 KiB. Where that
        would use up the address space, the page size has to do.
        """
        largest = max(layout.bytes for layout in self._layouts)
        for unit in (_HUGE_BYTES, HEADER_BYTES):
            grid = math.lcm(self.row_bytes, unit)
            stride = -(-largest // grid) * grid
            if stride * len(self._layouts) < _MOST_BYTES:
                break
        return stride

    def path(self, shard: int) -> Path:
        """Return the path of a shard's file."""
        return self.folder / str(self.manifest["shards"][shard]["file"])

    def rows(self, pieces: Iterable[Piece]) -> np.ndarray:
        """Return where the rows of pieces lie in `features` [n] int64."""
        per_shard = self._stride // self.row_bytes
        starts = [(piece.shard * per_shard, piece) for piece in pieces]
        return np.concatenate([np.arange(a + p.first, a + p.last) for a, p in starts])

    def labels(self, pieces: Iterable[Piece]) -> np.ndarray:
        """Return the labels of pieces [n]."""
        return self._column("labels", pieces)

    def ids(self, pieces: Iterable[Piece]) -> np.ndarray:
        """Return the row ids of pieces [n] int64."""
        return self._column("ids", pieces)

    def _column(self, name: str, pieces: Iterable[Piece]) -> np.ndarray:
        found = []
        for piece in pieces:
            layout = self._layouts[piece.shard]
            start = piece.shard * self._stride + layout.offsets[name]
            column = self._bytes[start : start + layout.nbytes(name)].view(layout.dtypes[name])
            found.append(column[piece.first : piece.last])
        return np.concatenate(found)

    def load(self, pieces: Iterable[Piece]) -> None:
        """Bring pieces into memory; returns when they are there.

        Raises:
            DataError: a file cannot be read.
        """
        for piece in pieces:
            start, end = self._range(piece)
            self._madvise(start, end, _MADV_WILLNEED)  # a hint: that it fails costs time alone
            for chunk in range(start, end, _CHUNK_BYTES):
                self._populate(piece, chunk, min(chunk + _CHUNK_BYTES, end))

    def release(self, pieces: Iterable[Piece], kept: Iterable[Piece] = ()) -> None:
        """Give back the memory of pieces; read again, they come from the page cache or disk.

        Args:
            kept: pieces that stay. A shard without any is given back whole, since
                the kernel maps neighbours of the pages that were asked for.
        """
        for piece in pieces:
            others = [other for other in kept if other.shard == piece.shard]
            if not others:
                start = piece.shard * self._stride
                self._madvise(start, start + self._stride, _MADV_DONTNEED)
            elif all(piece.last <= other.first or other.last <= piece.first for other in others):
                self._madvise(*self._range(piece), _MADV_DONTNEED)

    def _range(self, piece: Piece) -> tuple[int, int]:
        """Return the pages of a piece's features, as offsets from the range's start."""
        base, page = piece.shard * self._stride + HEADER_BYTES, mmap.PAGESIZE
        first, last = piece.first * self.row_bytes, piece.last * self.row_bytes
        return base + first // page * page, base + -(-last // page) * page

    def _populate(self, piece: Piece, start: int, end: int) -> None:
        code = self._madvise(start, end, _MADV_POPULATE_READ)
        if code == errno.EINVAL:  # Linux before 5.14: touch each page
            np.add.reduce(self._bytes[start : end : mmap.PAGESIZE], dtype=np.int64)
        elif code:
            raise DataError(
                f"shard {self.path(piece.shard)} cannot be read ({os.strerror(code)}); "
                f"{rebuild_command(self.manifest)}"
            )

    def _madvise(self, start: int, end: int, advice: int) -> int:
        failed = end > start and _libc.madvise(self._address + start, end - start, advice)
        return ctypes.get_errno() if failed else 0

    def _map(self, shard: int) -> None:
        path, record = self.path(shard), self.manifest["shards"][shard]
        remedy = rebuild_command(self.manifest)
        try:
            file = os.open(path, os.O_RDONLY)
            try:
                size = os.fstat(file).st_size
                expected = self._layouts[shard].bytes
                if not size == record["bytes"] == expected:
                    raise DataError(
                        f"shard {path} has {size:,} bytes, its manifest says {record['bytes']:,}; {remedy}"
                    )
                _mmap(
                    self._address + shard * self._stride, size,
                    mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, file, 0,
                )  # fmt: skip
            finally:
                os.close(file)
        except OSError as error:
            raise DataError(f"shard {path} cannot be read ({error.strerror}); {remedy}") from None


def rebuild_command(manifest: Mapping[str, Any]) -> str:
    """Return the remedy for a bad shard: how its dataset is repaired."""
    return (
        f"run `shardline verify --repair {manifest['dataset']}` and start the pipeline again, or rebuild that part "
        f"alone with `{making('results/datasets/' + manifest['dataset'] + '/manifest.json')}`"
    )
