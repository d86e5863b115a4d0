"""Streams of batches of stored rows, for training from shards larger than memory.

Threads shuffle, check and read the next window while batches are gathered from the current one. So
the training does not wait at the end of a window or epoch. There are no loader processes, and no
work per row.
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
from shardline.data.columns import counted_columns
from shardline.data.shard_map import ShardMap
from shardline.data.window_stream import WindowStream
from shardline.data.windowmap import NARROW_BYTES, WindowMap
from shardline_io.column_names import LENGTHS, PRESENT, WEIGHTS
from shardline_io.order.global_batch import Counted
from shardline_io.order.pieces import Piece, num_rows
from shardline_io.order.sampling import Order, Window
from shardline_io.preprocessing import NUMBERS, Preprocessor

_BLOCK_BYTES = 1 << 20  # gathered at once: dozens of small batches, which fit into the L2 cache
_BLOCK_BATCHES = 512  # more views would not fit into the L2 cache
_MAX_FREE = 4  # buffers kept for reuse


class _Plan(NamedTuple):
    """A window; `whole` is the window of all ranks if global batches must be counted."""

    window: Window
    whole: Window


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """A window in memory.

    Attributes:
        window: order of the window's rows.
        memory: rows of the window.
        wide: places in `memory` of this rank's rows, in order [n], by wide column.
        narrow: values of this rank's rows, in order [n, *shape], by narrow column, and the weights
            [n] if there are any.
        ragged: place of the first value, and number of values, of each row [n], by varying column.
        counted: numbers of values in the global batches, by varying array column.
        bounds: bounds of the window's batches.
        shards: shards of the dataset.
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
        """Row ids in the order of this rank's rows [n] int64."""
        ids: np.ndarray = self.shards.ids(self.window.pieces)[self.window.rows]
        return ids


class ShardStream(WindowStream[_Ready]):
    """Stream of one rank's batches of a split, gathered column by column.

    Batches of a table are tuples: features [B, *shape], labels [B], and weights [B] if any. Batches of
    other columns are dicts by name:

    - a fixed column [B, *shape], or a list of length B for bytes and text;
    - a varying column [B, longest, *shape], padded with zeros to the longest row of the global batch,
      with `{name}.lengths` [B] int64 and `{name}.mean_count`, a float32 scalar, see
      `global_batch.Counted`;
    - `{name}.present` [B] bool for an optional column;
    - `weight.mean_count`, a float32 scalar, if rows have weights: their sum in the global batch, divided
      by the number of batches that it is split into.

    Args:
        shards: shards of the dataset.
        order: order of the rows.
        check: function that raises if a shard is damaged; called before its rows are used.
        local_rank: this rank's number on its node; the ranks of a node check different shards first.
        num_epochs: number of visits; nothing is read ahead after the last one.
        pin: gather into page-locked memory, for asynchronous copies to a GPU.
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
        self._preprocessor = shards.preprocessor
        # columns of varying length count by their mean
        made = sum(of.item_bytes for of in shards.made.values()) if shards.preprocessor else 0
        self._row_bytes = max(shards.row_bytes, made)
        self._is_small = num_rows(order.pieces) <= order.window_rows
        self._counted = counted_columns(shards.manifest.schema, shards.columns)
        self._has_counted = bool(self._counted) and order.num_slices > 1
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
                if name in self._counted:
                    if whole.pieces != pieces:
                        lengths = self._shards.lengths(name, whole.pieces)
                    counted[name] = Counted.of(np.take(lengths, whole.rows), whole, self._order)
            elif name == self._shards.grid or column.item_bytes > NARROW_BYTES:
                wide[name] = np.take(memory.places(name, pieces), rows)
            else:
                narrow[name] = np.take(memory.values(name, pieces), rows, axis=0)
            if name in self._counted and not column.varies:  # the rows' weights
                values = np.take(self._shards.lengths(name, whole.pieces), whole.rows)
                counted[name] = Counted.of(values, whole, self._order)
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
        """Return the rows of a window; a split that fits into one window is mapped once."""
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
        row_bytes = self._row_bytes * max(1, bounds[1] - bounds[0])
        per_block = min(max(1, _BLOCK_BYTES // row_bytes), _BLOCK_BATCHES)
        for first in range(skipped, len(bounds) - 1, per_block):
            edges = bounds[first : first + per_block + 1]
            rows = slice(edges[0], edges[-1])
            columns = {
                name: self._buffers.gather(ready.memory, name, places[rows])
                for name, places in ready.wide.items()
            }
            columns |= {name: values[rows] for name, values in ready.narrow.items()}
            if self._preprocessor:
                columns = self._prepared(self._preprocessor, columns, edges[-1] - edges[0])
            names = tuple(columns)
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
                yield batch if self._is_table else self._named(ready, place, names, batch)
            del blocks, fixed, batch  # free the block unless the training keeps a batch

    def _prepared(
        self, preprocessor: Preprocessor, columns: dict[str, torch.Tensor], rows: int
    ) -> dict[str, torch.Tensor]:
        """Return the columns that preprocessing makes of a block's stored ones."""
        numbers, made_of = columns.get(NUMBERS), self._shards.made["features"]
        is_alike = self._shards.columns.get(NUMBERS) == made_of
        # gathered numbers are in memory of their own
        out = numbers if numbers is not None and is_alike else self._buffers.block("features", rows)
        made = preprocessor({name: of.numpy() for name, of in columns.items()}, out.numpy())
        return {
            name: columns.get(name, out) if name != "categories" else self._buffers.tensor(of)
            for name, of in made.items()
        }

    def _named(
        self, ready: _Ready, place: int, names: tuple[str, ...], columns: tuple[torch.Tensor, ...]
    ) -> Batch:
        """Return a batch by name, from its fixed columns."""
        fixed = dict(zip(names, columns, strict=True))
        batch: NamedBatch = {}
        rows = slice(ready.bounds[place], ready.bounds[place + 1])
        for name, column in self._shards.made.items():
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
    """Reusable memory for gathered rows, free once no batch refers to it."""

    def __init__(self, shards: ShardMap, *, pin: bool) -> None:
        self._columns, self._pin = {**shards.columns, **shards.made}, pin
        self._free: dict[str, deque[np.ndarray]] = {
            name: deque(maxlen=_MAX_FREE) for name in self._columns
        }

    def gather(self, memory: WindowMap, name: str, places: np.ndarray) -> torch.Tensor:
        """Return rows of a wide column [n, *shape] in memory that no earlier batch refers to."""
        block = self.block(name, len(places))
        memory.gather(name, places, block.numpy())
        return block

    def block(self, name: str, rows: int) -> torch.Tensor:
        """Return memory for rows of a column [n, *shape] that no earlier batch refers to."""
        if self._pin:
            # torch's allocator of page-locked memory waits for copies to a GPU
            column = self._columns[name]
            dtype = _torch_type(np.dtype(column.dtype))
            return torch.empty((rows, *column.shape), dtype=dtype, pin_memory=True)
        return torch.from_numpy(self._lend(name, rows))

    def tensor(self, column: np.ndarray) -> torch.Tensor:
        """Return a column as a tensor, page-locked under `pin`."""
        tensor = torch.from_numpy(column)
        return tensor.pin_memory() if self._pin else tensor

    def _lend(self, name: str, rows: int) -> np.ndarray:
        """Return memory for some rows, which is reused once nothing refers to it.

        Each batch's storage refers to the returned array, and this array to the buffer.
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
