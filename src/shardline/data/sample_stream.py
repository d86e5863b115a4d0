"""Streams of batches made sample by sample: mixed, transformed, packed, collated.

`ShardStream` is the faster counterpart for whole columns of one dataset. Samples of the next batches
are transformed ahead of the training, across the ends of windows.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from shardline.data.collate import Around, Collate
from shardline.data.columns import varying_arrays
from shardline.data.repeats import Repeats, places_to_repeat
from shardline.data.sample_index import Loaded, SampleIndex
from shardline.data.shard_map import ShardMap
from shardline.data.transforms.transform_steps import Sample
from shardline.data.window_stream import WindowStream
from shardline.data.windowmap import WindowMap
from shardline.data.workers import Pool
from shardline_io.order.chance import Key
from shardline_io.order.global_batch import Counted
from shardline_io.order.mix import MixedWindow, MixOrder, mixed_window
from shardline_io.order.sampling import Order

_BATCHES_AHEAD = 2


@dataclass(frozen=True, kw_only=True)
class StreamPart:
    """Part of a stream: a dataset, or the rows of one class.

    Attributes:
        units: units of the part, which the order counts.
        shards: shards of the dataset.
        key: the part's number in the keys of random numbers, independent of other parts.
        check: function that raises if a shard is damaged; called before its rows are used.
    """

    units: SampleIndex
    shards: ShardMap
    key: int = 0
    check: Callable[[int], None] = lambda shard: None


class _Plan(NamedTuple):
    """A window of an epoch; `whole` is the window of all ranks if global batches must be counted."""

    epoch: int
    window: MixedWindow
    whole: MixedWindow


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """A window in memory.

    Attributes:
        window: order of the window's units.
        loaded: units in memory, by part.
        ids: ids of the units that this rank consumes, in order [n] int64.
        repeated: indices of the units whose samples are transformed twice, ascending.
        counted: numbers of values in the global batches, by column.
    """

    window: MixedWindow
    loaded: tuple[Loaded | None, ...]
    ids: np.ndarray
    repeated: np.ndarray
    counted: dict[str, Counted]


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A batch in preparation.

    Attributes:
        ready: window of the batch.
        place: index of the batch in its window.
        rows: units of the batch in the window.
        around: lengths in the global batch.
        samples: samples of the batch after the transform.
        repeated: index, key and original of each sample that is transformed twice.
        columns: columns by name [B, *shape], instead of samples if none needs its own work.
    """

    ready: _Ready
    place: int
    rows: slice
    around: Around
    samples: "Future[list[Sample]] | Sequence[Sample]" = ()
    repeated: Sequence[tuple[int, Key, Sample]] = ()
    columns: dict[str, np.ndarray] | None = None


class SampleStream(WindowStream[_Ready]):
    """Stream of one rank's batches, made sample by sample.

    Args:
        parts: parts of the stream, in the order's numbering.
        order: order of a mix, of one part, or of the `joined` pieces of several parts' held-out split.
        collate: collation of samples into a batch.
        pool: pool that transforms samples; None without a transform.
        repeats: check that transforms a few samples a second time.
        seed: seed of the run, for the keys of random numbers.
        local_rank: this rank's number on its node; the ranks of a node check different shards first.
        num_epochs: number of visits; nothing is read ahead after the last one.
        pin: copy batches into page-locked memory, for asynchronous copies to a GPU.
    """

    def __init__(
        self, parts: Sequence[StreamPart], order: Order | MixOrder, collate: Collate, *,
        pool: Pool | None = None, repeats: Repeats | None = None, seed: int = 0, local_rank: int = 0,
        num_epochs: int | None = None, pin: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(order, num_epochs)
        self._parts, self._collate, self._pool = tuple(parts), collate, pool
        self._repeats, self._whole_order = repeats, order.whole()
        self._seed, self._local_rank, self._pin = seed, local_rank, pin
        self._varying = varying_arrays(parts[0].units.columns)
        self._counted = tuple(dict.fromkeys((*self._varying, *parts[0].units.counted)))

    @property
    def parts(self) -> tuple[StreamPart, ...]:
        """Parts of the stream, in the order's numbering."""
        return self._parts

    @property
    def batch_parts(self) -> np.ndarray:
        """Part of each unit in the last batch [B] int64, in the order of `batch_ids`."""
        return self._of_batch(lambda ready: ready.window.part)

    @property
    def batch_passes(self) -> np.ndarray:
        """Pass of each unit in the last batch [B] int64, in the order of `batch_ids`."""
        return self._of_batch(lambda ready: ready.window.passes)

    def _batches(self, windows: Iterator[tuple[_Ready, int]]) -> Iterator[Any]:
        pending: deque[_Pending] = deque()
        try:
            for ready, skipped in windows:
                for place in range(skipped, len(ready.window.bounds) - 1):
                    pending.append(self._begin(ready, place))
                    if len(pending) > (_BATCHES_AHEAD if self._pool else 0):
                        yield self._finish(pending.popleft())
                del ready
            while pending:
                yield self._finish(pending.popleft())
            if self._repeats:
                self._repeats.settle()
        finally:
            for one in pending:
                if isinstance(one.samples, Future):
                    one.samples.cancel()

    def _plan(self, key: tuple[int, int]) -> _Plan:
        pieces = [part.units.pieces for part in self._parts]
        window = whole = mixed_window(self._order, *key, pieces)
        if self._counted and self._order.num_slices > 1:
            whole = mixed_window(self._whole_order, *key, pieces)
        return _Plan(key[0], window, whole)

    def _read(self, plan: _Plan) -> _Ready:
        window = plan.window
        loaded = tuple(map(self._load, self._parts, window.pieces))
        ids = np.empty(len(window.unit), np.int64)
        for number, one in enumerate(loaded):
            if one is not None:
                of_part = window.part == number
                ids[of_part] = one.ids[window.unit[of_part]]
        counted = {name: self._count(name, plan.whole) for name in self._counted}
        repeated = ids[:0]
        if self._repeats:
            keys = np.array([part.key for part in self._parts], np.uint64)[window.part]
            repeated = places_to_repeat(self._seed, keys, window.passes, ids, plan.epoch)
        return _Ready(window=window, loaded=loaded, ids=ids, repeated=repeated, counted=counted)

    def _load(self, part: StreamPart, pieces: Sequence[Any]) -> Loaded | None:
        if not pieces:
            return None
        rows = part.units.rows(pieces)
        shards = list(dict.fromkeys(piece.shard for piece in rows))
        turn = self._local_rank % len(shards)
        for shard in (*shards[turn:], *shards[:turn]):
            part.check(shard)
        return part.units.load(WindowMap(part.shards, rows), pieces)

    def _count(self, name: str, whole: MixedWindow) -> Counted:
        """Return the numbers of values of a column in a window's global batches."""
        lengths = np.zeros(len(whole.unit), np.int64 if name in self._varying else np.float64)
        for number, (part, own) in enumerate(zip(self._parts, whole.pieces, strict=True)):
            if own:
                of_part = whole.part == number
                lengths[of_part] = part.units.lengths(name, own)[whole.unit[of_part]]
        return Counted.of(lengths, whole, self._order)

    def _begin(self, ready: _Ready, batch: int) -> _Pending:
        window = ready.window
        rows = slice(int(window.bounds[batch]), int(window.bounds[batch + 1]))
        if not (self._pool or self._collate.function):
            columns = self._columns(ready, window.part[rows], window.unit[rows])
            if columns is not None:
                around = Around(mean_counts=self._mean_counts(ready, batch))
                return _Pending(ready=ready, place=batch, rows=rows, around=around, columns=columns)
        parts, units = window.part[rows].tolist(), window.unit[rows].tolist()
        samples = [self._sample(ready, *place) for place in zip(parts, units, strict=True)]
        lengths = {
            name: [0 if sample[name] is None else len(sample[name]) for sample in samples]
            for name in self._varying
        }
        around = Around(
            longest={name: int(ready.counted[name].longest[batch]) for name in self._varying},
            lengths=lengths,
            mean_counts=self._mean_counts(ready, batch),
        )
        done: Future[list[Sample]] | list[Sample] = samples
        repeated: list[tuple[int, Key, Sample]] = []
        if self._pool:
            turns, ids = window.passes[rows].tolist(), ready.ids[rows].tolist()
            keys = [
                (self._seed, self._parts[part].key, turn, row)
                for part, turn, row in zip(parts, turns, ids, strict=True)
            ]
            done = self._pool.submit(list(zip(keys, samples, strict=True)))
            first, last = np.searchsorted(ready.repeated, (rows.start, rows.stop))
            places = (ready.repeated[first:last] - rows.start).tolist()
            repeated = [(place, keys[place], samples[place]) for place in places]
        return _Pending(
            ready=ready, place=batch, rows=rows, around=around, samples=done, repeated=repeated
        )

    def _mean_counts(self, ready: _Ready, batch: int) -> dict[str, float]:
        counted = self._parts[0].units.counted
        return {name: float(ready.counted[name].mean[batch]) for name in counted}

    def _columns(
        self, ready: _Ready, parts: np.ndarray, units: np.ndarray
    ) -> dict[str, np.ndarray] | None:
        """Return a batch as columns [B, *shape]; None if a part cannot return columns."""
        whole: dict[str, np.ndarray] = {}
        for number, loaded in enumerate(ready.loaded):
            of_part = np.flatnonzero(parts == number)
            if loaded is None or not len(of_part):
                continue
            columns = loaded.batch(units[of_part])
            if columns is None or len(of_part) == len(parts):
                return columns
            for name, values in columns.items():
                if name not in whole:
                    whole[name] = np.empty((len(parts), *values.shape[1:]), values.dtype)
                whole[name][of_part] = values
        return whole

    def _sample(self, ready: _Ready, part: int, unit: int) -> Sample:
        loaded = ready.loaded[part]
        assert loaded is not None
        return loaded.sample(unit)

    def _finish(self, pending: _Pending) -> Any:
        samples, weights = pending.samples, pending.ready.window.weights
        weights = None if weights is None else weights[pending.rows]
        if pending.columns is not None:
            batch = self._collate.whole(pending.columns, weights, pending.around.mean_counts)
        else:
            done = samples.result() if isinstance(samples, Future) else samples
            if self._repeats:
                for place, key, sample in pending.repeated:
                    self._repeats.check(key, sample, done[place])
            batch = self._collate(done, pending.around, weights)
        self.position += 1
        self._given = pending.ready, pending.place
        return _pinned(batch) if self._pin else batch


def _pinned(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.pin_memory()
    if isinstance(batch, dict):
        return {name: _pinned(value) for name, value in batch.items()}
    return tuple(map(_pinned, batch)) if isinstance(batch, tuple) else batch
