"""Samples to check a transform with before training: some of each part, spread over its shards."""

import math
from collections.abc import Iterator, Sequence
from itertools import count, islice

import numpy as np

from shardline.data.sample_index import Loaded
from shardline.data.sample_stream import StreamPart
from shardline.data.transforms.repeat_check import FEW
from shardline.data.transforms.transform_steps import Sample
from shardline.data.windowmap import WindowMap
from shardline_io.order.chance import Key
from shardline_io.order.pieces import Piece

_PER_DATASET = 200
_SHARDS = 8  # per part, since each is read and verified


def trial_samples(
    parts: Sequence[StreamPart], seed: int, *, num_datasets: int, has_chance: bool
) -> Iterator[tuple[Key, Sample]]:
    """Yield samples with their keys, a few of each part in turn.

    Args:
        seed: seed of the run, for the keys and the choice of samples.
        num_datasets: number of datasets in the parts; each has 200 samples, shared by its classes.
        has_chance: whether the transform is random; if so, small parts repeat in further passes.
    """
    number = max(FEW, _PER_DATASET * num_datasets // max(1, len(parts)))
    turns = [islice(_of_part(part, seed, number, has_chance), number) for part in parts]
    while turns:
        for turn in list(turns):
            few = list(islice(turn, FEW))
            yield from few
            if len(few) < FEW:
                turns.remove(turn)


def _of_part(
    part: StreamPart, seed: int, number: int, has_chance: bool
) -> Iterator[tuple[Key, Sample]]:
    pieces = [piece for piece in part.units.pieces if piece.first < piece.last]
    places = sorted({round(place) for place in np.linspace(0, len(pieces) - 1, _SHARDS)})
    size = math.ceil(number / len(places)) if pieces else 0
    loaded: list[Loaded] = []
    for turn in count() if has_chance and pieces else range(1):
        for at, place in enumerate(places if pieces else ()):
            if turn == 0:
                loaded.append(_load(part, pieces[place], size, seed))
            for unit, row in enumerate(loaded[at].ids.tolist()):
                yield (seed, part.key, turn, row), loaded[at].sample(unit)


def _load(part: StreamPart, piece: Piece, size: int, seed: int) -> Loaded:
    """Return consecutive units from a random position."""
    chance = np.random.default_rng([seed, part.key, piece.shard])
    first = int(chance.integers(piece.first, max(piece.first, piece.last - size) + 1))
    units = [Piece(piece.shard, first, min(first + size, piece.last))]
    rows = part.units.rows(units)
    for one in rows:
        part.check(one.shard)
    return part.units.load(WindowMap(part.shards, rows), units)
