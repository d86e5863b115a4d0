"""Rows of a window in one address range, so that one call gathers rows of any file.

Each file is mapped at a multiple of both the page size and the row size. Row i of the file at place p
is then row p * R + i of one array, so a batch is one `numpy.take` over all files. The bytes are in
the page cache, shared by all ranks of a node.
"""

import errno
import math
import os
import resource
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch

from shardline.core.errors import DataError
from shardline.data import addresses
from shardline.data.raw_files import read_exactly
from shardline.data.shard_format import HEADER_BYTES
from shardline.data.shard_map import ShardMap
from shardline_io.column_names import OFFSETS, PRESENT
from shardline_io.order.pieces import Piece

# Up to this size, parts of a file are copied: a mapping takes longer, and counts in vm.max_map_count
COPIED_BYTES = 65536
NARROW_BYTES = 64  # columns with rows up to this size are copied for a whole window
_MOST_BYTES = 1 << 43  # of 47 bits of address space, which several windows share
_ALIGNMENT = 64
_CHUNK_BYTES = 8 << 20  # requested from the kernel at a time


class _Extents(NamedTuple):
    """Entries [first, last) to copy from each tensor of a shard."""

    shard: int
    entries: dict[str, tuple[int, int]]


class WindowMap:
    """Rows of a dataset in memory.

    The address range begins with the mapped files. After these are copies from shards with too few
    rows for a mapping: the rows of the first column back to back, then the other tensors.

    Args:
        shards: shards of the dataset.
        pieces: rows to read; other rows between two pieces of one shard may be read too.

    Raises:
        DataError: a file cannot be read, or the machine's limits do not allow its mapping.
    """

    def __init__(self, shards: ShardMap, pieces: Sequence[Piece]) -> None:
        self._shards = shards
        grid = shards.grid
        self._row_bytes = shards.columns[grid].item_bytes if grid else 1
        self._spans = _spans(pieces)
        # decided once per shard, since access to a reserved but unmapped address ends the process
        mapped = {s: p for s, p in self._spans.items() if is_mapped(p, shards.row_bytes)}
        copied = [self._extents(span) for shard, span in self._spans.items() if shard not in mapped]
        self._reserve(len(mapped), copied)
        # by tensor and shard: address of the first entry, relative to the window
        self._origins: dict[str, dict[int, int]] = defaultdict(dict)
        self._map(list(mapped.values()))
        self._copy(copied)
        for piece in pieces:
            if piece.shard in mapped:
                self._load(piece)

    def holds(self, pieces: Iterable[Piece]) -> bool:
        """Return whether all rows of pieces are in memory."""
        spans = ((piece, self._spans.get(piece.shard)) for piece in pieces)
        return all(s and s.first <= piece.first and piece.last <= s.last for piece, s in spans)

    def places(self, name: str, pieces: Iterable[Piece]) -> np.ndarray:
        """Return the places of a fixed column's rows for `gather` [n] int64."""
        size = self._shards.columns[name].item_bytes
        unit, start = (self._unit, HEADER_BYTES) if name == self._shards.grid else (1, 0)
        origins, step = self._origins[name], size // unit
        places = []
        for piece in pieces:
            at = (origins[piece.shard] - start) // unit
            places.append(np.arange(at + piece.first * step, at + piece.last * step, step))
        return np.concatenate(places)

    def values(self, name: str, pieces: Iterable[Piece]) -> np.ndarray:
        """Return a copy of a fixed tensor's entries [n, *shape] for concatenated pieces."""
        return np.concatenate([self.view(name, p.shard, p.first, p.last) for p in pieces])

    def ragged(self, name: str, pieces: Iterable[Piece]) -> tuple[np.ndarray, np.ndarray]:
        """Return the place for `row`, and the number of values, of each row of a varying column [n] int64.

        Raises:
            DataError: the offsets of a shard do not rise within its values.
        """
        starts, lengths = [], []
        size = self._shards.columns[name].item_bytes
        for piece in pieces:
            offsets = self.view(name + OFFSETS, piece.shard, piece.first, piece.last + 1)
            self._shards.check_offsets(name, piece.shard, offsets)
            starts.append(self._origins[name][piece.shard] + offsets[:-1] * size)
            lengths.append(np.diff(offsets))
        return np.concatenate(starts), np.concatenate(lengths)

    def row(self, name: str, start: int, length: int) -> np.ndarray:
        """Return a read-only view of one row's values [length, *shape] in a varying column."""
        column = self._shards.columns[name]
        content = self._read_only[start : start + length * column.item_bytes]
        return content.view(column.dtype).reshape(length, *column.shape)

    def padded(
        self, name: str, starts: np.ndarray, lengths: np.ndarray, longest: int
    ) -> np.ndarray:
        """Return rows of a varying column [n, longest, *shape], padded with zeros.

        Args:
            starts: place of each row [n], see `ragged`.
            lengths: number of values in each row [n], at most `longest`.
            longest: length to pad to.
        """
        column = self._shards.columns[name]
        size, content = column.item_bytes, self._read_only
        out = np.zeros((len(starts), longest * size), np.uint8)
        # as bytes: views in the row's type and shape would take four times as long
        for row, start, end in zip(out, starts.tolist(), (lengths * size).tolist(), strict=True):
            row[:end] = content[start : start + end]
        return out.view(column.dtype).reshape(len(starts), longest, *column.shape)

    def gather(self, name: str, places: np.ndarray, out: np.ndarray) -> None:
        """Copy rows [n] of a fixed column into a contiguous array `out` [n, *shape]."""
        size, is_grid = self._shards.columns[name].item_bytes, name == self._shards.grid
        if is_grid and self._unit == size:
            target = out.reshape(-1).view(np.uint8).reshape(len(places), size)
            # "clip" avoids the copy that numpy makes in order to reject bad indices
            self._grid.take(places, axis=0, out=target, mode="clip")
        else:
            self.gather_bytes(places, out, HEADER_BYTES if is_grid else 0)

    def start(self, name: str, shard: int, entry: int) -> int:
        """Return the place of an entry of a shard's tensor, for `row` and `gather_bytes`."""
        size = self._shards.columns[name].item_bytes
        return self._origins[name][shard] + entry * size

    def gather_bytes(self, starts: np.ndarray, out: np.ndarray, origin: int = 0) -> None:
        """Copy the bytes at places [n] into a contiguous array `out` [n, ...].

        Args:
            origin: byte from which places are counted.
        """
        # numpy would first copy an array of overlapping rows
        size = out.nbytes // max(1, len(starts))
        bytes_ = torch.from_numpy(self._bytes[origin:])
        grid = bytes_.as_strided((len(bytes_) - size + 1, size), (1, 1))
        target = torch.from_numpy(out.reshape(-1).view(np.uint8).reshape(len(starts), size))
        torch.index_select(grid, 0, torch.from_numpy(starts), out=target)

    def view(self, name: str, shard: int, first: int, last: int) -> np.ndarray:
        """Return a read-only view of entries [first, last) of a shard's tensor."""
        layout = self._shards.layout(shard)
        shape, dtype = layout.shapes[name][1:], layout.dtypes[name]
        size = dtype.itemsize * math.prod(shape)
        start = self._origins[name][shard] + first * size
        found: np.ndarray = self._read_only[start : start + (last - first) * size].view(dtype)
        return found.reshape(last - first, *shape)

    def _extents(self, span: Piece) -> _Extents:
        """Return the entries of each tensor for the rows of a span."""
        entries, columns = {}, self._shards.columns
        varying = [name for name, column in columns.items() if column.varies]
        if varying:
            with self._shards.opened(span.shard) as file:
                for name in varying:
                    offsets = self._shards.offsets(file, name, span)
                    entries[name + OFFSETS] = (span.first, span.last + 1)
                    entries[name] = (int(offsets[0]), int(offsets[-1]))
        for name, column in columns.items():
            if not column.varies:
                entries[name] = (span.first, span.last)
            if column.optional:
                entries[name + PRESENT] = (span.first, span.last)
        return _Extents(span.shard, entries)

    def _reserve(self, num_mapped: int, copied: Sequence[_Extents]) -> None:
        """Reserve addresses: a stride for each mapped file, then space for the copies."""
        row, memory = self._row_bytes, None
        rows, others = 0, 0
        for extents in copied:
            for name, (first, last) in extents.entries.items():
                if name == self._shards.grid:
                    rows += last - first
                else:
                    others += self._size(extents.shard, name, first, last)
        options = addresses.strides(row, self._shards.largest_bytes)
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        most = _MOST_BYTES if limit == resource.RLIM_INFINITY else min(_MOST_BYTES, limit // 16)
        for stride, unit in options:
            self._stride, self._unit = stride, unit
            # copied rows begin at a multiple of the row size, like the rows of the files
            num_before = -(-max(0, num_mapped * stride - HEADER_BYTES) // row)
            self._copied_at = HEADER_BYTES + num_before * row
            self._others_at = _aligned(self._copied_at + rows * row)
            size = self._others_at + others
            if size < most or (stride, unit) == options[-1]:
                with suppress(OSError):
                    memory = addresses.Reservation(size + addresses.HUGE_BYTES)
                    break
        if memory is None:
            raise DataError(
                f"dataset {self._shards.manifest.dataset}: no address space for a window of {num_mapped:,} shards, "
                f"expected {size:,} free bytes; raise the limit (`ulimit -v`) or lower data.window_bytes"
            )
        start = -memory.address % addresses.HUGE_BYTES
        self._address = memory.address + start
        self._bytes = np.asarray(memory)[start : start + size]
        # views for users: a write to a mapped file would end the process
        self._read_only = self._bytes.view()
        self._read_only.flags.writeable = False
        num_rows = (size - HEADER_BYTES) // row
        self._grid = self._bytes[HEADER_BYTES : HEADER_BYTES + num_rows * row].reshape(-1, row)

    def _size(self, shard: int, name: str, first: int, last: int) -> int:
        """Return the size of a tensor's entries, rounded up so that the next tensor is aligned."""
        layout = self._shards.layout(shard)
        size = layout.dtypes[name].itemsize * math.prod(layout.shapes[name][1:])
        return _aligned((last - first) * size)

    def _map(self, spans: Sequence[Piece]) -> None:
        for place, span in enumerate(spans):
            at = place * self._stride
            for name, offset in self._shards.layout(span.shard).offsets.items():
                self._origins[name][span.shard] = at + offset
            with self._shards.opened(span.shard) as file:
                # up to the next file, since a gap would count as a mapping too
                addresses.map_file(self._address + at, self._stride, file)

    def _copy(self, copied: Sequence[_Extents]) -> None:
        at, others = self._copied_at, self._others_at
        if copied:
            start = at // addresses.PAGE_BYTES * addresses.PAGE_BYTES
            addresses.map_memory(self._address + start, len(self._bytes) - start)
        for extents in copied:
            shard, layout = extents.shard, self._shards.layout(extents.shard)
            with self._shards.opened(shard) as file:
                for name, (first, last) in extents.entries.items():
                    size = layout.dtypes[name].itemsize * math.prod(layout.shapes[name][1:])
                    begin = at if name == self._shards.grid else others
                    end = begin + (last - first) * size
                    self._origins[name][shard] = begin - first * size
                    start = layout.offsets[name] + first * size
                    read_exactly(file, self._bytes[begin:end], start)
                    if name == self._shards.grid:
                        at = end
                    else:
                        others = _aligned(end)

    def _load(self, piece: Piece) -> None:
        """Read a mapped piece's wide and varying columns into memory."""
        for name, column in self._shards.columns.items():
            origin, size = self._origins[name][piece.shard], column.item_bytes
            if column.varies:
                offsets = self.view(name + OFFSETS, piece.shard, piece.first, piece.last + 1)
                self._shards.check_offsets(name, piece.shard, offsets)
                self._bring(
                    piece, origin + int(offsets[0]) * size, origin + int(offsets[-1]) * size
                )
            elif name == self._shards.grid or size > NARROW_BYTES:
                self._bring(piece, origin + piece.first * size, origin + piece.last * size)

    def _bring(self, piece: Piece, first: int, end: int) -> None:
        start = first // addresses.PAGE_BYTES * addresses.PAGE_BYTES
        where = self._address + start, end - start
        # only hints: a failure costs nothing but time
        is_huge = end - start >= addresses.HUGE_BYTES and addresses.huge_pages_are_kept()
        if not is_huge or addresses.advise(*where, addresses.HUGEPAGE):
            addresses.advise(*where, addresses.WILLNEED)
        for chunk in range(start, end, _CHUNK_BYTES):
            self._populate(piece, chunk, min(chunk + _CHUNK_BYTES, end))

    def _populate(self, piece: Piece, start: int, end: int) -> None:
        code = addresses.advise(self._address + start, end - start, addresses.POPULATE_READ)
        if code == errno.EINVAL:  # Linux before 5.14: touch each page
            np.add.reduce(self._bytes[start : end : addresses.PAGE_BYTES], dtype=np.int64)
        elif code:
            raise self._shards.unreadable(piece.shard, OSError(code, os.strerror(code)))


def is_mapped(piece: Piece, row_bytes: int) -> bool:
    """Return whether a piece is mapped rather than copied."""
    return (piece.last - piece.first) * row_bytes > COPIED_BYTES


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _spans(pieces: Iterable[Piece]) -> dict[int, Piece]:
    """Return the smallest range of rows that contains a shard's pieces, by shard."""
    spans: dict[int, Piece] = {}
    for piece in pieces:
        known = spans.get(piece.shard, piece)
        first, last = min(known.first, piece.first), max(known.last, piece.last)
        spans[piece.shard] = Piece(piece.shard, first, last)
    return spans
