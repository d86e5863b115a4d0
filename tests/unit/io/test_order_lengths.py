"""Lengths of epochs and trainings: a limit leaves the batches before it as they are, on any number of ranks."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline_io.order.lengths import Lengths, first_rows, in_rows, part_of
from shardline_io.order.mix import MixedWindow, MixOrder, MixPart
from shardline_io.order.pieces import Piece, num_rows
from shardline_io.order.sampling import TrainOrder, Window

LIMITS = st.integers(1, 9) | st.floats(0.05, 1.0)


@st.composite
def orders(draw: st.DrawFn) -> TrainOrder | MixOrder:
    sizes = draw(st.lists(st.integers(4, 11), min_size=2, max_size=5))
    pieces = tuple(Piece(shard, 0, size) for shard, size in enumerate(sizes))
    rest = {
        "seed": draw(st.integers(0, 3)),
        "window_rows": draw(st.integers(4, 40)),
        "global_batch": 4,
    }
    if draw(st.booleans()):
        parts = (MixPart("a", pieces, Fraction(2)), MixPart("b", pieces[:1], Fraction(1)))
        return MixOrder(parts=parts, epoch_samples=draw(st.integers(4, 40)), **rest)
    return TrainOrder(
        dataset_id="d" * 12, pieces=pieces, partition_shards=draw(st.sampled_from([0, 1])),
        is_padded=draw(st.booleans()), **rest,
    )  # fmt: skip


def values(window: Window | MixedWindow) -> list[object]:
    """Return what each batch of a window consumes, and how it is weighted."""
    columns = (
        [window.rows] if isinstance(window, Window) else [window.part, window.unit, window.passes]
    )
    columns += [] if window.weights is None else [window.weights]
    bounds = zip(window.bounds[:-1], window.bounds[1:], strict=True)
    return [[column[low:high].tolist() for column in columns] for low, high in bounds]


def batches(order: TrainOrder | MixOrder, epoch: int) -> list[object]:
    windows = range(-(-order.num_batches(epoch) // order.batches_per_window()))
    return [batch for index in windows for batch in values(order.window(epoch, index))]


@settings(max_examples=60, deadline=None)
@given(order=orders(), limit=LIMITS, last=st.integers(1, 30), overfit=st.booleans())
def test_a_limited_training_consumes_the_first_batches_of_each_epoch(order, limit, last, overfit):
    limited = replace(order, lengths=Lengths(limit=limit, max_steps=last, is_overfit=overfit))
    whole = [batches(order, 0 if overfit else epoch) for epoch in range(limited.num_epochs(-1))]
    found = [batches(limited, epoch) for epoch in range(limited.num_epochs(-1))]
    for epoch, (mine, its) in enumerate(zip(found, whole, strict=True)):
        assert mine == its[: len(mine)]
        assert (
            len(mine)
            == limited.steps(epoch)
            <= part_of(order.all_steps(0 if overfit else epoch), limit)
        )
    assert sum(map(len, found)) == limited.total_steps(-1) == last
    assert limited.steps(len(found)) == 0


@settings(max_examples=40, deadline=None)
@given(order=orders(), limit=LIMITS, last=st.integers(1, 30), epochs=st.integers(1, 4))
def test_lengths_are_the_same_on_any_number_of_ranks(order, limit, last, epochs):
    lengths = Lengths(limit=limit, max_steps=last)
    alone = replace(order, lengths=lengths)
    rank = replace(order, lengths=lengths, rank=1, world_size=2, accumulate=2)
    assert rank.total_steps(epochs) == alone.total_steps(epochs) <= last
    for epoch in range(alone.num_epochs(epochs)):
        assert rank.num_batches(epoch) == 2 * alone.num_batches(epoch) == len(batches(rank, epoch))


def test_a_whole_number_is_a_count_and_a_float_a_share():
    assert [part_of(10, limit) for limit in (1, 30, 1.0, 0.25, 0.01)] == [1, 10, 10, 2, 1]
    pieces = [Piece(0, 0, 3), Piece(1, 0, 5)]
    assert first_rows(pieces, 4) == (Piece(0, 0, 3), Piece(1, 0, 1))
    assert num_rows(first_rows(pieces, in_rows(2, 3))) == 6
    assert first_rows(pieces, in_rows(0.5, 3)) == first_rows(pieces, 4)
    assert first_rows(pieces, 1.0) == first_rows(pieces, 99) == tuple(pieces)


@pytest.mark.parametrize(
    ("trainer", "lengths"),
    [
        ({"max_epochs": 3}, Lengths()),
        ({"max_steps": 7, "limit_train_batches": 2}, Lengths(limit=2, max_steps=7)),
        ({"overfit_batches": 0.5}, Lengths(limit=0.5, is_overfit=True)),
    ],
)
def test_settings_of_before_and_after_have_lengths(trainer, lengths):
    assert Lengths.of(trainer) == lengths
