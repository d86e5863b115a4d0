"""Batches of rows as they are stored, for a training from shards larger than memory.

Threads shuffle, check and read the next window while batches are gathered from the present one, so
that neither a window's nor an epoch's end makes the training wait. No data loading process, nothing
done row by row.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import torch

from shardline.data.collate import Batch, NamedBatch, finished
from shardline.data.columns import varying_arrays
from shardline.data.shard_map import ShardMap
from shardline.data.window_stream import WindowStream
from shardline.data.windowmap import NARROW_BYTES, WindowMap
from shardline_io.column_names import LENGTHS, PRESENT, WEIGHTS
from shardline_io.order.global_batch import Counted
from shardline_io.order.pieces import Piece, num_rows
from shardline_io.order.sampling import Order, Window

_BLOCK_BYTES = 1 << 20  # gathered at once: small batches by the dozen, still in the L2 cache
_BLOCK_BATCHES = 512  # more views than these would not be in that cache
_MAX_FREE = 4  # buffers kept for reuse


class _Plan(NamedTuple):
    """A window, and that of all ranks together where something of them has to be counted."""

    window: Window
    whole: Window


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """A window in memory.

    Attributes:
        memory: the window's rows.
        wide: by wide column, the places there of what this rank consumes, in order [n].
        narrow: by narrow column, the values of what this rank consumes, in order [n, *shape], and
            the weights [n] where there are any.
        ragged: by varying column, where each row's values begin and how many there are [n].
        counted: by varying column of arrays, what is known of each global batch [batches].
        bounds: those of the window's batches.
    """

    window: Window
    memory: WindowMap
    wide: dict[str, np.ndarray]
    narrow: dict[str, torch.Tensor]
    ragged: dict[str, tuple[np.ndarray, np.ndarray]]
    counted: dict[str, Counted]
    bounds: list[int]
    shards: ShardMap

    @cached_property
    def ids(self) -> np.ndarray:
        """Row ids in the order consumed [n] int64."""
        ids: np.ndarray = self.shards.ids(self.window.pieces)[self.window.rows]
        return ids


class ShardStream(WindowStream[_Ready]):
    """Streams the rows of one split to one rank, column by column.

    A table's batches are tuples: features [B, *shape], labels [B], weights [B] if any. Those of other
    columns are dicts by name: a fixed column [B, *shape]; a varying one [B, longest, *shape],
    filled up with zeros to the longest row of the global batch, beside `{name}.lengths` [B]
    int64 and `{name}.mean_count`, a float32 scalar, see `global_batch.Counted`; bytes and texts
    as lists of B; `{name}.present` [B] bool beside an optional one.

    Args:
        shards: the dataset.
        order: which rows, in which order.
        check: called with each shard before its rows are used; raises if it is damaged.
        local_rank: ranks of a node begin at different shards, so that they share the checking.
        num_epochs: visits after which nothing is read ahead.
        pin: gather into page-locked memory, from which a GPU copies by itself.
    """

    _order: Order

    def __init__(
        self, shards: ShardMap, order: Order, *, check: Callable[[int], None] = lambda shard: None,
        local_rank: int = 0, num_epochs: int | None = None, pin: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(order, num_epochs)
        self._shards, self._check, self._local_rank = shards, check, local_rank
        self._buffers = _Buffers(shards, pin=pin)
        self._is_table = not shards.manifest.schema.columns
        self._is_small = num_rows(order.pieces) <= order.window_rows
        self._has_counted = bool(varying_arrays(shards.columns)) and order.num_slices > 1
        self._whole_order = order.whole()
        self._whole: WindowMap | None = None

    def _plan(self, key: tuple[int, int]) -> _Plan:
        window = self._order.window(*key)
        return _Plan(window, self._whole_order.window(*key) if self._has_counted else window)

    def _read(self, plan: _Plan) -> _Ready:
        window, whole = plan
        self._check_all(window.pieces)
        memory = self._map(window.pieces)
        rows, pieces = window.rows, window.pieces
        wide, narrow, ragged, counted = {}, {}, {}, {}
        for name, column in self._shards.columns.items():
            if column.varies:
                starts, lengths = memory.ragged(name, pieces)
                ragged[name] = np.take(starts, rows), np.take(lengths, rows)
                if column.kind == "array":
                    if whole.pieces != pieces:
                        lengths = self._shards.lengths(name, whole.pieces)
                    counted[name] = Counted.of(np.take(lengths, whole.rows), whole, self._order)
            elif name == self._shards.grid or column.item_bytes > NARROW_BYTES:
                wide[name] = np.take(memory.places(name, pieces), rows)
            else:
                narrow[name] = np.take(memory.values(name, pieces), rows, axis=0)
            if column.optional:
                narrow[name + PRESENT] = np.take(memory.values(name + PRESENT, pieces), rows)
        if window.weights is not None:
            narrow[WEIGHTS] = window.weights
        return _Ready(
            window=window,
            memory=memory,
            wide=wide,
            narrow={name: self._buffers.tensor(values) for name, values in narrow.items()},
            ragged=ragged,
            counted=counted,
            bounds=window.bounds.tolist(),
            shards=self._shards,
        )

    def _check_all(self, pieces: Sequence[Piece]) -> None:
        turn = self._local_rank % len(pieces)
        for piece in (*pieces[turn:], *pieces[:turn]):
            self._check(piece.shard)

    def _map(self, pieces: Sequence[Piece]) -> WindowMap:
        """Return the rows of a window; a split that is no larger than one is mapped once."""
        if self._is_small and self._whole is None:
            everything = [piece for piece in self._order.pieces if piece.first < piece.last]
            self._check_all(everything)
            self._whole = WindowMap(self._shards, everything)
        if self._whole is not None and self._whole.holds(pieces):
            return self._whole
        return WindowMap(self._shards, pieces)

    def _batches(self, windows: Iterator[tuple[_Ready, int]]) -> Iterator[Batch]:
        for ready, skipped in windows:
            yield from self._gather(ready, skipped)
            del ready

    def _gather(self, ready: _Ready, skipped: int) -> Iterator[Batch]:
        bounds = ready.bounds
        row_bytes = self._shards.row_bytes * max(1, bounds[1] - bounds[0])
        per_block = min(max(1, _BLOCK_BYTES // row_bytes), _BLOCK_BATCHES)
        for first in range(skipped, len(bounds) - 1, per_block):
            edges = bounds[first : first + per_block + 1]
            rows = slice(edges[0], edges[-1])
            columns = {
                name: self._buffers.gather(ready.memory, name, places[rows])
                for name, places in ready.wide.items()
            }
            columns |= {name: values[rows] for name, values in ready.narrow.items()}
            sizes = [end - start for start, end in pairwise(edges)]
            blocks = {
                name: (column,) if len(sizes) == 1 else column.split_with_sizes(sizes)
                for name, column in columns.items()
            }
            del columns
            fixed = zip(*blocks.values(), strict=True) if blocks else repeat((), len(sizes))
            batch: Any = None
            for place, batch in enumerate(fixed, first):
                self.position += 1
                self._given = ready, place
                yield batch if self._is_table else self._named(ready, place, batch)
            del blocks, fixed, batch  # the last views of the block, but for those that were kept

    def _named(self, ready: _Ready, place: int, columns: tuple[torch.Tensor, ...]) -> Batch:
        """Return a batch by name, from its fixed columns."""
        fixed = dict(zip((*ready.wide, *ready.narrow), columns, strict=True))
        batch: NamedBatch = {}
        rows = slice(ready.bounds[place], ready.bounds[place + 1])
        for name, column in self._shards.columns.items():
            if column.varies:
                starts, lengths = (of[rows] for of in ready.ragged[name])
                if column.kind == "array":
                    longest = int(ready.counted[name].longest[place])
                    values = ready.memory.padded(name, starts, lengths, longest)
                    batch[name] = torch.from_numpy(values)
                    batch[name + LENGTHS] = torch.from_numpy(lengths.copy())
                else:
                    places = zip(starts.tolist(), lengths.tolist(), strict=True)
                    batch[name] = [column.value(ready.memory.row(name, *row)) for row in places]
            else:
                batch[name] = fixed[name]
            if column.optional:
                batch[name + PRESENT] = fixed[name + PRESENT]
        batch |= {WEIGHTS: fixed[WEIGHTS]} if WEIGHTS in fixed else {}
        return finished(batch, {n: float(of.mean[place]) for n, of in ready.counted.items()})


class _Buffers:
    """Gathers rows into memory that is used again as soon as nobody looks at it any more."""

    def __init__(self, shards: ShardMap, *, pin: bool) -> None:
        self._columns, self._pin = shards.columns, pin
        self._free: dict[str, deque[np.ndarray]] = {
            name: deque(maxlen=_MAX_FREE) for name in shards.columns
        }

    def gather(self, memory: WindowMap, name: str, places: np.ndarray) -> torch.Tensor:
        """Return rows of a wide column [n, *shape] in a block that no earlier batch still shows."""
        if self._pin:
            # torch's allocator of page-locked memory knows which copies to a GPU are under way
            column = self._columns[name]
            dtype = _torch_type(np.dtype(column.dtype))
            block = torch.empty((len(places), *column.shape), dtype=dtype, pin_memory=True)
            out: np.ndarray = block.numpy()
        else:
            out = self._lend(name, len(places))
            block = torch.from_numpy(out)
        memory.gather(name, places, out)
        return block

    def tensor(self, column: np.ndarray) -> torch.Tensor:
        """Return a column as a tensor, page-locked where asked for."""
        tensor = torch.from_numpy(column)
        return tensor.pin_memory() if self._pin else tensor

    def _lend(self, name: str, rows: int) -> np.ndarray:
        """Return memory for some rows, which comes back once nothing refers to it any more.

        Each batch's storage refers to the array that is returned, and the array to the buffer.
        """
        column, free = self._columns[name], self._free[name]
        buffer = free.pop() if free else None
        if buffer is None or len(buffer) < rows:
            buffer = np.empty((rows, *column.shape), dtype=column.dtype)
        lent = buffer[:rows]
        weakref.finalize(lent, free.append, buffer).atexit = False
        return lent


def _torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=dtype)).dtype
