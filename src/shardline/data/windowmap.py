"""The rows of a window in one range of addresses, so that one call gathers rows of any file.

Each file is mapped at a multiple of both the page and the row size. Row i of the file
in place p is then row p * R + i of one array, and a batch is one `numpy.take`, whichever
files its rows lie in. The page cache holds the bytes, once for all ranks of a node.
"""

import ctypes
import errno
import math
import mmap
import os
import resource
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np
import torch

from shardline.core.errors import DataError
from shardline.data.pieces import Piece, num_rows
from shardline.data.raw_files import quick_libc, read_exactly
from shardline.data.shard_format import HEADER_BYTES
from shardline.data.shard_map import ShardMap

# So few bytes of a file are read: a mapping takes longer, and a place in vm.max_map_count
COPIED_BYTES = 65536
PAGE_BYTES, _HUGE_BYTES = mmap.PAGESIZE, 2 << 20
_MOST_BYTES = 1 << 43  # of 47 bits of address space, which several windows share
_CHUNK_BYTES = 8 << 20  # asked of the kernel at a time
# mman.h of Linux; Python's mmap module cannot place a mapping
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MADV_WILLNEED, _MADV_POPULATE_READ = 3, 22
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

_libc = ctypes.CDLL(None, use_errno=True)
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class _Reservation:
    """An address range, given back with all that lies in it when no array refers to it."""

    def __init__(self, size: int) -> None:
        self.address = _mmap(None, size, 0, _ANONYMOUS | _MAP_NORESERVE, -1)
        self.__array_interface__ = {
            "version": 3, "shape": (size,), "typestr": "|u1", "data": (self.address, False),
        }  # fmt: skip
        weakref.finalize(self, _libc.munmap, self.address, size)


def _mmap(address: int | None, size: int, protection: int, flags: int, file: int) -> int:
    found: int | None = quick_libc.mmap(address, size, protection, flags, file, 0)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


class WindowMap:
    """Rows of a dataset, in memory until nothing refers to this any more.

    The range of addresses has a place for each mapped file, then the rows of those
    shards that have too few of them for a mapping, back to back.

    Args:
        shards: the dataset.
        pieces: the rows; between two pieces of one shard its other rows may be read too.

    Raises:
        DataError: a file cannot be read, or the machine's limits do not let it be mapped.
    """

    def __init__(self, shards: ShardMap, pieces: Sequence[Piece]) -> None:
        self._shards, self._row_bytes = shards, shards.row_bytes
        self._spans = _spans(pieces)
        # by shard, decided once: a place that is reserved and not mapped must never be touched
        mapped = {s: span for s, span in self._spans.items() if is_mapped(span, self._row_bytes)}
        copied = [span for shard, span in self._spans.items() if shard not in mapped]
        self._reserve(len(mapped), num_rows(copied) * self._row_bytes)
        self._origins: dict[int, int] = {}  # by shard: the place of row 0, in units
        self._labels: dict[int, np.ndarray] = {}  # by shard: those of its span
        self._map(list(mapped.values()))
        self._copy(copied)
        for piece in pieces:
            if piece.shard in mapped:
                self._load(piece)

    def holds(self, pieces: Iterable[Piece]) -> bool:
        """Return whether all rows of pieces are there."""
        spans = ((piece, self._spans.get(piece.shard)) for piece in pieces)
        return all(s and s.first <= piece.first and piece.last <= s.last for piece, s in spans)

    def rows(self, pieces: Iterable[Piece]) -> np.ndarray:
        """Return where the rows of pieces lie, for `gather` [n] int64."""
        step = self._row_bytes // self._unit
        starts = [(self._origins[piece.shard], piece) for piece in pieces]
        return np.concatenate(
            [np.arange(at + p.first * step, at + p.last * step, step) for at, p in starts]
        )

    def labels(self, pieces: Iterable[Piece]) -> np.ndarray:
        """Return the labels of pieces [n]."""
        found = []
        for piece in pieces:
            start = self._spans[piece.shard].first
            found.append(self._labels[piece.shard][piece.first - start : piece.last - start])
        return np.concatenate(found)

    def gather(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Copy the features of rows [n] into `out` [n, *shape], which is contiguous."""
        target = out.reshape(-1).view(np.uint8).reshape(len(rows), self._row_bytes)
        if self._unit == self._row_bytes:
            # "clip" spares the copy that numpy makes to be able to refuse a bad index
            self._grid.take(rows, axis=0, out=target, mode="clip")
        else:  # numpy would first copy all of an array whose rows overlap
            bytes_ = torch.from_numpy(self._bytes[HEADER_BYTES:])
            grid = bytes_.as_strided((len(bytes_) - self._row_bytes + 1, self._row_bytes), (1, 1))
            torch.index_select(grid, 0, torch.from_numpy(rows), out=torch.from_numpy(target))

    def _reserve(self, num_mapped: int, copied_bytes: int) -> None:
        """Reserve addresses: a stride for each mapped file, then the rows that are copied."""
        row, memory = self._row_bytes, None
        strides = _strides(row, self._shards.largest_bytes)
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        most = _MOST_BYTES if limit == resource.RLIM_INFINITY else min(_MOST_BYTES, limit // 16)
        for stride, unit in strides:
            self._stride, self._unit = stride, unit
            # as the files' rows, those that are copied lie at multiples of the row size
            num_before = -(-max(0, num_mapped * stride - HEADER_BYTES) // row)
            self._copied_at = HEADER_BYTES + num_before * row
            size = self._copied_at + copied_bytes
            if size < most or (stride, unit) == strides[-1]:
                with suppress(OSError):
                    memory = _Reservation(size + _HUGE_BYTES)
                    break
        if memory is None:
            raise DataError(
                f"dataset {self._shards.manifest['dataset']}: a window of {num_mapped:,} shards needs {size:,} bytes "
                "of address space, which is not there; raise the limit (`ulimit -v`) or lower data.window_bytes"
            )
        start = -memory.address % _HUGE_BYTES
        self._address = memory.address + start
        self._bytes = np.asarray(memory)[start : start + size]
        num_rows = (size - HEADER_BYTES) // row
        self._grid = self._bytes[HEADER_BYTES : HEADER_BYTES + num_rows * row].reshape(-1, row)

    def _map(self, spans: Sequence[Piece]) -> None:
        for place, span in enumerate(spans):
            at = place * self._stride
            self._origins[span.shard] = at // self._unit
            with self._shards.opened(span.shard) as file:
                # to where the next file begins, since a gap would be a mapping too
                flags = mmap.MAP_SHARED | _MAP_FIXED
                _mmap(self._address + at, self._stride, mmap.PROT_READ, flags, file)
            start, dtype = self._shards.place("labels", span)
            size = num_rows([span]) * dtype.itemsize
            self._labels[span.shard] = self._bytes[at + start : at + start + size].view(dtype)

    def _copy(self, spans: Sequence[Piece]) -> None:
        at, row = self._copied_at, self._row_bytes
        if spans:
            start = at // PAGE_BYTES * PAGE_BYTES
            access = mmap.PROT_READ | mmap.PROT_WRITE
            size = len(self._bytes) - start
            _mmap(self._address + start, size, access, _ANONYMOUS | _MAP_FIXED, -1)
        for span in spans:
            end = at + num_rows([span]) * row
            origin = at - HEADER_BYTES - span.first * row
            self._origins[span.shard] = origin // self._unit
            with self._shards.opened(span.shard) as file:
                read_exactly(file, self._bytes[at:end], HEADER_BYTES + span.first * row)
                self._labels[span.shard] = self._shards.column(file, "labels", span)
            at = end

    def _load(self, piece: Piece) -> None:
        base = self._origins[piece.shard] * self._unit + HEADER_BYTES
        first, last = piece.first * self._row_bytes, piece.last * self._row_bytes
        start, end = base + first // PAGE_BYTES * PAGE_BYTES, base + last
        self._madvise(start, end, _MADV_WILLNEED)  # a hint: that it fails costs time alone
        for chunk in range(start, end, _CHUNK_BYTES):
            self._populate(piece, chunk, min(chunk + _CHUNK_BYTES, end))

    def _populate(self, piece: Piece, start: int, end: int) -> None:
        code = self._madvise(start, end, _MADV_POPULATE_READ)
        if code == errno.EINVAL:  # Linux before 5.14: touch each page
            np.add.reduce(self._bytes[start:end:PAGE_BYTES], dtype=np.int64)
        elif code:
            raise self._shards.unreadable(piece.shard, OSError(code, os.strerror(code)))

    def _madvise(self, start: int, end: int, advice: int) -> int:
        failed = end > start and _libc.madvise(self._address + start, end - start, advice)
        return ctypes.get_errno() if failed else 0


def is_mapped(piece: Piece, row_bytes: int) -> bool:
    """Return whether a piece is mapped in place of being copied."""
    return (piece.last - piece.first) * row_bytes > COPIED_BYTES


def read_features(shards: ShardMap, pieces: Sequence[Piece]) -> np.ndarray:
    """Return a copy of the features of pieces [n, *shape]."""
    window, found = (
        WindowMap(shards, pieces),
        np.empty((num_rows(pieces), *shards.shape), shards.dtype),
    )
    window.gather(window.rows(pieces), found)
    return found


def _spans(pieces: Iterable[Piece]) -> dict[int, Piece]:
    """Return by shard the rows from its first piece's begin to its last one's end."""
    spans: dict[int, Piece] = {}
    for piece in pieces:
        known = spans.get(piece.shard, piece)
        first, last = min(known.first, piece.first), max(known.last, piece.last)
        spans[piece.shard] = Piece(piece.shard, first, last)
    return spans


def _strides(row_bytes: int, largest: int) -> list[tuple[int, int]]:
    """Return distances of two files with the unit in which rows' places are counted, best first.

    A file that begins at a multiple of a huge page is mapped by huge pages where the page
    cache holds it so: thirteen times as fast, 7 ns for 97 per 4 KiB. At a multiple of the
    row size too, rows are those of one array. Where that would use up the addresses (rows
    of 10,000,001 bytes: 41 GB a file), places are counted in bytes.
    """
    huge, page = _HUGE_BYTES, PAGE_BYTES
    grids = [
        (math.lcm(row_bytes, huge), row_bytes), (math.lcm(row_bytes, page), row_bytes),
        (huge, 1), (page, 1),
    ]  # fmt: skip
    return [(-(-largest // grid) * grid, unit) for grid, unit in grids]
