"""Blocks of a held-out split: the same rows for any number of ranks, every row once."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardline_io.order.blocks import BlockOrder
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.pieces import Piece


def batches(order: HeldOutOrder) -> list[list[tuple[int, int]]]:
    """Return the batches of an order, each row as shard and place there."""
    found = []
    for index in range(-(-order.num_batches() // order.batches_per_window())):
        window = order.window(0, index)
        rows = [(p.shard, place) for p in window.pieces for place in range(p.first, p.last)]
        taken = [rows[row] for row in window.rows.tolist()]
        bounds = window.bounds.tolist()
        found += [taken[a:b] for a, b in pairwise(bounds)]
    assert len(found) == order.num_batches()
    return found


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    batch=st.integers(1, 12),
    window_rows=st.integers(1, 40),
    world_size=st.integers(1, 7),
)
def test_blocks_are_the_batches_of_one_rank_dealt_in_turn(
    sizes: list[int], batch: int, window_rows: int, world_size: int
) -> None:
    pieces = tuple(Piece(shard, 3, 3 + size) for shard, size in enumerate(sizes))
    given = {"pieces": pieces, "global_batch": batch, "window_rows": window_rows}
    whole = batches(HeldOutOrder(**given))
    orders = [BlockOrder(**given, rank=rank, world_size=world_size) for rank in range(world_size)]
    for order in orders:
        assert batches(order) == whole[order.rank :: world_size]
        firsts, lasts = order.bounds(np.arange(order.num_blocks))
        assert (lasts - firsts).tolist() == [len(block) for block in whole]
