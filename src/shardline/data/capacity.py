"""Check, before the first window, that this process's limits allow the windows of a training."""

import math
import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from shardline.core.errors import DataError
from shardline.data.addresses import PAGE_BYTES
from shardline.data.shard_map import ShardMap
from shardline.data.windowmap import is_mapped
from shardline_io.order.pieces import Piece, num_rows

LABEL_BYTES = 8
_SPARE_ENTRIES = 4096  # for later libraries, threads and page-locked memory
_SPARE_FILES = 16
_ENTRIES_PER_WINDOW = 4  # for the range itself, in addition to its files


class Capacity:
    """Sum of what a dataset's streams need, compared with this process's limits.

    Args:
        shards: shards of the dataset.
    """

    def __init__(self, shards: ShardMap) -> None:
        self._shards = shards
        self._needs: list[_Need] = []
        self._used_entries, self._used_bytes = _used_entries(), _used_bytes()

    def claim(
        self, pieces: Sequence[Piece], window_rows: int, batch: int, streams: int = 1
    ) -> None:
        """Add a stream's current window and the window that is read ahead.

        Args:
            pieces: rows that the stream visits.
            window_rows: rows in memory at a time.
            batch: rows of a batch over all ranks; at least these are in memory.
            streams: number of shuffled sequences (`data.streams`).

        Raises:
            DataError: `vm.max_map_count` or the limit of address space or open files is too low;
                names a window size that fits.
        """
        _check_files()
        self._needs.append(_Need(self._shards, pieces, batch, streams))
        rows, row_bytes = window_rows, self._shards.row_bytes
        entries, size = self._total(rows)
        limits = _most_entries(), _most_bytes()
        most = limits[0] - self._used_entries - _SPARE_ENTRIES
        room = limits[1] - self._used_bytes
        if entries <= most and size <= room:
            return
        fitting = self._most_rows(rows, most, room) * (row_bytes + LABEL_BYTES)
        smaller = f"lower data.window_bytes to {fitting}, " if fitting else ""
        what = f"dataset {self._shards.manifest.dataset}: windows of {rows * (row_bytes + LABEL_BYTES):,} bytes"
        if entries > most:
            raise DataError(
                f"{what} keep up to {entries:,} files mapped, expected at most {max(0, most):,} under "
                f"vm.max_map_count={limits[0]:,.0f}; {smaller}split the data into fewer shards, or run "
                f"`sysctl -w vm.max_map_count={limits[0] - most + entries:.0f}`"
            )
        raise DataError(
            f"{what} need {size:,} bytes of addresses, expected at most {max(0, room):,.0f} under "
            f"`ulimit -v {limits[1] / 1024:.0f}`; {smaller}split the data into smaller shards, or raise "
            f"the limit to {(self._used_bytes + size) // 1024 + 1}"
        )

    def _total(self, window_rows: int) -> tuple[int, int]:
        needs = [need.of(window_rows) for need in self._needs]
        return sum(need[0] for need in needs), sum(need[1] for need in needs)

    def _most_rows(self, window_rows: int, most: float, room: float) -> int:
        """Return the number of rows in the largest window that fits, or 0."""
        fits, fits_not = 0, window_rows
        while fits_not - fits > 1:
            middle = (fits + fits_not) // 2
            entries, size = self._total(middle)
            if entries <= most and size <= room:
                fits = middle
            else:
                fits_not = middle
        return fits


class _Need:
    """Upper bound of what a stream's windows need."""

    def __init__(self, shards: ShardMap, pieces: Sequence[Piece], batch: int, streams: int) -> None:
        row = shards.row_bytes
        sizes = [p.last - p.first for p in pieces if is_mapped(p, shards.row_bytes)]
        # most files are mapped if a window happens to contain the smallest ones
        self._rows = np.cumsum(np.sort(np.array(sizes, dtype=np.int64)))
        self._all_rows = num_rows(pieces)
        self._batch = batch
        self._ends = 2 * streams  # shards that a window of each stream only contains in part
        self._stride, self._row_bytes = -(-shards.largest_bytes // PAGE_BYTES) * PAGE_BYTES, row

    def of(self, window_rows: int) -> tuple[int, int]:
        """Return the number of mappings (`vm.max_map_count`) and the bytes of address space."""
        rows = max(window_rows, self._batch)
        files = int(np.searchsorted(self._rows, rows, side="right")) + self._ends
        files = min(files, len(self._rows))
        copied = min(rows, self._all_rows) * self._row_bytes
        windows = 1 if self._all_rows <= window_rows else 2
        return (
            windows * (files + _ENTRIES_PER_WINDOW),
            windows * (files * self._stride + copied),
        )


def _check_files() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with suppress(OSError):
        used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        if limit != resource.RLIM_INFINITY and limit - used < _SPARE_FILES:
            raise DataError(
                f"{used} files are open, expected at most {limit - _SPARE_FILES} under `ulimit -n {limit}` so that "
                f"shards can be opened; raise the limit to {used + _SPARE_FILES}"
            )


def _most_entries() -> float:
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return math.inf


def _used_entries() -> int:
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def _most_bytes() -> float:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def _used_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE_BYTES
    except OSError:
        return 0
