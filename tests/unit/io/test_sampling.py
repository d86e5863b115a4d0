"""The batch sequence: a function of dataset, seed and epoch, whatever the world size."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from shardline.errors import DataError
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.pieces import Line, Piece
from shardline_io.order.sampling import TrainOrder, permutation

ROWS = [37, 50, 0, 61, 44, 58, 23, 70]  # rows of the split in each shard; one shard has none
PIECES = tuple(Piece(shard, 3 * shard, 3 * shard + rows) for shard, rows in enumerate(ROWS))
TOTAL = sum(ROWS)


def order(**change):
    settings = {
        "dataset_id": "a-0123456789ab", "pieces": PIECES, "global_batch": 24, "seed": 5,
        "window_rows": 100, **change,
    }  # fmt: skip
    return TrainOrder(**settings)


def windows(order, epoch=0):
    count = -(-order.num_batches(epoch) // order.batches_per_window())
    return [order.window(epoch, index) for index in range(count)]


def batches(order, epoch=0):
    """Return each batch's rows as (shard, row), without those that only fill up."""
    found = []
    for window in windows(order, epoch):
        places = [
            (piece.shard, row) for piece in window.pieces for row in range(piece.first, piece.last)
        ]
        for low, high in zip(window.bounds[:-1], window.bounds[1:], strict=True):
            kept = (
                range(low, high)
                if window.weights is None
                else low + np.flatnonzero(window.weights[low:high])
            )
            found.append([places[window.rows[i]] for i in kept])
    return found


def steps(epoch=0, **change):
    """Return the rows of each global step: ranks in turn, each with its parts."""
    world_size, accumulate = change.get("world_size", 1), change.get("accumulate", 1)
    ranks = [batches(order(rank=rank, **change), epoch) for rank in range(world_size)]
    return [
        [
            row
            for rank in ranks
            for part in rank[step * accumulate : (step + 1) * accumulate]
            for row in part
        ]
        for step in range(len(ranks[0]) // accumulate)
    ]


EVERY_ROW = Counter((p.shard, row) for p in PIECES for row in range(p.first, p.last))


@pytest.mark.parametrize(
    "change", [{}, {"streams": 4}, {"partition_shards": 3}, {"is_padded": True}]
)
@pytest.mark.parametrize(("world_size", "accumulate"), [(2, 1), (4, 1), (8, 1), (1, 3), (2, 4)])
def test_each_step_takes_the_same_rows_in_the_same_order_at_any_world_size(
    change, world_size, accumulate
):
    for epoch in (0, 3):
        alone = steps(epoch, **change)
        assert steps(epoch, world_size=world_size, accumulate=accumulate, **change) == alone
        assert len({len(step) for step in alone[:-1]}) == 1


@pytest.mark.parametrize("streams", [1, 3, 8])
@pytest.mark.parametrize("window_rows", [1, 24, 100, 10_000])
def test_an_epoch_takes_each_row_once_but_those_of_the_last_partial_batch(streams, window_rows):
    dropped = steps(global_batch=24, streams=streams, window_rows=window_rows)
    assert len(dropped) == TOTAL // 24
    seen = Counter(row for step in dropped for row in step)
    assert seen <= EVERY_ROW
    padded = steps(global_batch=24, streams=streams, window_rows=window_rows, is_padded=True)
    assert len(padded) == -(-TOTAL // 24)
    assert Counter(row for step in padded for row in step) == EVERY_ROW


def test_weights_make_the_mean_over_ranks_the_mean_over_real_rows():
    weights = [
        windows(order(rank=rank, world_size=2, is_padded=True, window_rows=24))[-1].weights
        for rank in (0, 1)
    ]
    last = np.concatenate(weights)
    real = TOTAL % 24
    assert 0 < real < 24
    assert (last > 0).sum() == real
    assert last.mean() == pytest.approx(1)
    assert set(last[last > 0]) == {np.float32(24 / real)}
    assert windows(order(is_padded=True))[0].weights.min() == 1


def test_a_rank_without_any_real_row_still_gives_its_batch():
    short = order(pieces=(Piece(0, 0, 25),), is_padded=True, rank=7, world_size=8, window_rows=24)
    (_, last) = windows(short)
    assert len(last.rows) == 3
    assert not last.weights.any()
    assert len(last.pieces) == 1


@pytest.mark.parametrize("window_rows", [30, 100])
def test_a_window_holds_no_more_rows_than_asked_for(window_rows):
    for window in windows(order(window_rows=window_rows)):
        assert sum(piece.last - piece.first for piece in window.pieces) <= window_rows


def test_with_a_stream_for_each_rank_no_two_ranks_read_the_same_rows():
    read = [
        {
            (piece.shard, row)
            for window in windows(order(streams=4, rank=rank, world_size=4))
            for piece in window.pieces
            for row in range(piece.first, piece.last)
        }
        for rank in range(4)
    ]
    assert sum(map(len, read)) == len(set.union(*read))
    assert all(read)


def test_epochs_passes_seeds_and_datasets_differ_and_a_name_does_not_count():
    orders = [
        steps(),
        steps(epoch=1),
        steps(seed=6),
        steps(dataset_id="a-1123456789ab"),
    ]
    assert len({str(found) for found in orders}) == 4
    assert steps(dataset_id="b-0123456789ab") == orders[0]


def test_rows_are_shuffled_within_a_window_and_shards_over_an_epoch():
    first = windows(order(window_rows=10_000))[0]
    assert sorted(first.rows) != list(first.rows)
    assert list(order().shards(0)) != list(order().shards(1))
    assert sorted(order().shards(1)) == list(range(len(ROWS)))


def test_partitions_take_turns_through_a_pass_that_each_shard_is_in_once():
    cycle = order(partition_shards=3)
    assert cycle.num_parts == 2
    passes = [
        [int(s) for epoch in epochs for s in cycle.shards(epoch)] for epochs in ((0, 1), (2, 3))
    ]
    assert [sorted(shards) for shards in passes] == [list(range(8))] * 2
    assert passes[0] != passes[1]
    assert cycle.num_batches(0) == cycle.num_rows(0) // 24
    full = tuple(piece for piece in PIECES if piece.first < piece.last)
    alone = order(pieces=full, partition_shards=1, global_batch=1)
    assert [len(alone.shards(epoch)) for epoch in range(7)] == [1] * 7


def test_too_few_rows_for_a_batch_are_refused_unless_it_is_filled_up():
    message = "global_batch=400 is more than the 343 train rows of dataset a-0123456789ab, expected"
    with pytest.raises(DataError, match=message):
        order(global_batch=400)
    with pytest.raises(
        DataError, match="0 train rows of .* in a partition of data.partition_shards=1 shards"
    ):
        order(partition_shards=1)
    with pytest.raises(DataError, match="0 train rows"):
        order(partition_shards=1, is_padded=True)
    assert len(steps(global_batch=400, is_padded=True)) == 1


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("global_batch", [1, 10, 64, 1000])
@pytest.mark.parametrize("window_rows", [1, 80])
def test_held_out_rows_are_seen_once_with_equally_many_batches_on_each_rank(
    world_size, global_batch, window_rows
):
    ranks = [
        batches(
            HeldOutOrder(
                pieces=PIECES,
                global_batch=global_batch,
                window_rows=window_rows,
                rank=rank,
                world_size=world_size,
            )
        )
        for rank in range(world_size)
    ]
    assert len({len(rank) for rank in ranks}) == 1
    assert all(batch for rank in ranks for batch in rank)
    assert Counter(row for rank in ranks for batch in rank for row in batch) == EVERY_ROW


def test_fewer_held_out_rows_than_ranks_are_refused():
    message = "held-out split has 343 rows, expected at least one for each of 400 ranks; enlarge"
    with pytest.raises(DataError, match=message):
        HeldOutOrder(pieces=PIECES, global_batch=8, window_rows=8, world_size=400)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 1000])
def test_a_permutation_is_one_and_a_function_of_its_key(num_rows):
    found = permutation(num_rows, "key", 1)
    assert sorted(found) == list(range(num_rows))
    assert (found == permutation(num_rows, "key", 1)).all()
    assert num_rows < 3 or (found != permutation(num_rows, "key", 2)).any()


def test_a_permutation_puts_each_row_anywhere():
    places = np.array([permutation(16, "key", turn) for turn in range(4000)])
    counts = np.array([np.bincount(column, minlength=16) for column in places.T])
    assert counts.min() > 180  # 250 expected, deviation 15
    assert counts.max() < 320


def test_the_order_is_the_one_that_was_published():
    """Held to figures: a change here would make a resumed training skip and repeat samples."""
    assert permutation(8, "0123456789ab", 5, 0, 0, 0).tolist() == [0, 2, 6, 5, 3, 7, 4, 1]


def test_cutting_a_sequence_of_pieces():
    assert Line(PIECES).cut(30, 90) == (Piece(0, 30, 37), Piece(1, 3, 53), Piece(3, 9, 12))
    assert Line(PIECES).cut(5, 5) == ()
    assert dataclasses.astuple(Line(PIECES).cut(342, 400)[0]) == (7, 90, 91)
