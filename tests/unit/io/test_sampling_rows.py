"""Which rows an epoch leaves out, and what fills up a batch: at any shape of data and world size."""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline_io.order.pieces import Piece
from shardline_io.order.sampling import TrainOrder, Window

Change = dict[str, Any]
CASES = settings(max_examples=40, deadline=None, derandomize=True, print_blob=True)


def pieces_of(rows: list[int]) -> tuple[Piece, ...]:
    """Return a split that begins elsewhere in each shard's file."""
    return tuple(Piece(shard, 3 * shard, 3 * shard + count) for shard, count in enumerate(rows))


def order(**change: Any) -> TrainOrder:
    base: Change = {
        "dataset_id": "a-0123456789ab",
        "global_batch": 24,
        "seed": 5,
        "window_rows": 100,
    }
    return TrainOrder(**{**base, **change})


def rows_of(window: Window) -> np.ndarray:
    """Return the rows of a window as (shard, row) [n, 2], fillers too."""
    numbers = [np.arange(p.first, p.last) for p in window.pieces]
    shards = np.repeat([p.shard for p in window.pieces], [len(n) for n in numbers])
    return np.column_stack([shards, np.concatenate(numbers)])[window.rows]


def windows(order: TrainOrder, epoch: int) -> Iterator[Window]:
    for index in range(-(-order.num_batches(epoch) // order.batches_per_window())):
        yield order.window(epoch, index)


UNEVEN = pieces_of([37, 50, 0, 61, 44, 58, 23, 70])
WHOLE = pieces_of([48] * 8)  # nothing is dropped


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"pieces": WHOLE}, "b041634e59c810fb"),
        ({"pieces": WHOLE, "streams": 4}, "3a6b223c27a352a6"),
        ({"pieces": WHOLE, "partition_shards": 2}, "cc55807152d6cbc3"),
        ({"pieces": WHOLE, "accumulate": 3, "window_rows": 30}, "5c7b8e5fd1351ab5"),
        ({"pieces": (Piece(0, 5, 245),)}, "b3befd860289ea3f"),
        ({"is_padded": True}, "4de9ea82fcfd9814"),
        ({"is_padded": True, "rank": 1, "world_size": 2}, "fc752ba911d9ec08"),
        ({"is_padded": True, "rank": 7, "world_size": 8, "window_rows": 48}, "5873c2f400bc1cb6"),
        ({"is_padded": True, "partition_shards": 3}, "c63897044e3af500"),
        ({"is_padded": True, "streams": 4}, "fe3d2730320fc4a8"),
        ({"is_padded": True, "streams": 8, "pieces": (Piece(0, 2, 15),), "global_batch": 8},
         "c767fd18c82bf248"),
    ],
)  # fmt: skip
def test_where_nothing_is_dropped_the_order_is_that_of_earlier_versions(
    change: Change, expected: str
) -> None:
    """Digests of the orders before any row was rotated, fillers of one rank included."""
    asked, found = order(**{"pieces": UNEVEN, **change}), hashlib.sha256()
    for epoch in (0, 1, 7):
        for window in windows(asked, epoch):
            found.update(rows_of(window).tobytes() + window.bounds.astype(np.int64).tobytes())
            found.update(b"" if window.weights is None else window.weights.tobytes())
    assert found.hexdigest()[:16] == expected


def times_dropped(asked: TrainOrder, epochs: int) -> np.ndarray:
    """Return how often each row of a split was left out [rows]."""
    rows = max(piece.last for piece in asked.pieces)
    seen = np.zeros(len(asked.pieces) * rows, dtype=np.int64)
    for epoch in range(epochs):
        found = np.concatenate([rows_of(window) for window in windows(asked, epoch)])
        counts = np.bincount(found @ [rows, 1], minlength=len(seen))
        assert counts.max() == 1
        assert counts.sum() == asked.steps(epoch) * asked.global_batch
        seen += counts
    places = [np.arange(p.first, p.last) + p.shard * rows for p in asked.pieces]
    return epochs - seen[np.concatenate(places)]


def test_every_row_of_a_single_shard_is_trained() -> None:
    """1,003 rows in batches of 64 leave out 43 of them in each epoch."""
    dropped = times_dropped(
        order(pieces=(Piece(0, 0, 1003),), global_batch=64, window_rows=2000), 100
    )
    assert dropped.sum() == 43 * 100
    assert dropped.min() >= 2, "100 * 43 / 1003 = 4.3 are expected"
    assert dropped.max() <= 7


@st.composite
def shapes(draw: st.DrawFn) -> Change:
    """Return settings whose global batch is split over streams, at least one in an epoch."""
    streams = draw(st.sampled_from([1, 1, 2, 3, 4]))
    rows = draw(st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(lambda n: sum(n) > 8))
    share = draw(st.integers(1, max(1, sum(rows) // streams)))
    return {
        "pieces": pieces_of(rows),
        "streams": streams,
        "global_batch": streams * share,
        "seed": draw(st.integers(0, 2**32)),
        "window_rows": draw(st.sampled_from([1, 40, 10_000])),
    }


@CASES
@given(shapes())
def test_every_row_is_dropped_about_equally_often(shape: Change) -> None:
    epochs, asked = 40, order(**{**shape, "window_rows": 10_000})
    dropped, total = times_dropped(asked, epochs), asked.num_rows(0)
    share = total % asked.global_batch / total
    expected = epochs * share
    # of one shard the starts are spread evenly; of several, the shards' order is random too
    several = 6 * np.sqrt(expected * (1 - share)) if len(asked.pieces) > 1 else 0
    assert abs(dropped - expected).max() <= 2 + asked.streams + several


@CASES
@given(shapes(), st.booleans(), st.integers(0, 5), st.data())
def test_fillers_are_rows_of_the_split_and_the_same_at_any_world_size(
    shape: Change, is_padded: bool, epoch: int, data: st.DataObject
) -> None:
    sizes = [n for n in range(2, 13) if shape["global_batch"] % n == 0] or [1]
    world_size = data.draw(st.sampled_from(sizes), label="world size")

    def steps(world_size: int) -> np.ndarray:
        ranks = [
            order(**shape, is_padded=is_padded, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        slices = []
        for rank in ranks:
            found = list(windows(rank, epoch))
            rows = np.concatenate([rows_of(window) for window in found])
            weights = [w.weights if w.weights is not None else np.ones(len(w.rows)) for w in found]
            columns = np.column_stack([rows, np.concatenate(weights)])
            slices.append(columns.reshape(rank.steps(epoch), -1, 3))
        return np.concatenate(slices, axis=1)

    alone = steps(1)
    assert np.array_equal(steps(world_size), alone)
    of_split = {(p.shard, row) for p in shape["pieces"] for row in range(p.first, p.last)}
    assert {(int(shard), int(row)) for shard, row, _ in alone.reshape(-1, 3)} <= of_split
