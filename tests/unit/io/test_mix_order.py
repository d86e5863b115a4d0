"""The order of a mix: counts by weight, each unit once a pass, the same steps on any number of ranks."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from operator import itemgetter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.errors import DataError
from shardline_io.order.mix import MixedWindow, MixOrder, MixPart
from shardline_io.order.pieces import Piece

Unit = tuple[int, int, int]  # part, shard, unit


@st.composite
def parts(draw: st.DrawFn) -> tuple[MixPart, ...]:
    count = draw(st.integers(1, 4))
    found = []
    for number in range(count):
        sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any))
        pieces = tuple(Piece(shard, 3, 3 + size) for shard, size in enumerate(sizes))
        weight = draw(st.fractions(Fraction(1, 1000), 10, max_denominator=1000))
        found.append(MixPart(key=f"k{number}", pieces=pieces, weight=weight))
    return tuple(found)


@st.composite
def orders(draw: st.DrawFn) -> MixOrder:
    batch = draw(st.sampled_from([1, 2, 6, 24]))
    return MixOrder(
        parts=draw(parts()), global_batch=batch, seed=draw(st.integers(0, 3)),
        window_rows=draw(st.integers(1, 60)), epoch_samples=batch * draw(st.integers(1, 5)),
    )  # fmt: skip


def consumed(order: MixOrder, epochs: int) -> list[list[tuple[Unit, int]]]:
    """Return the units of each batch, with the pass that each is of."""
    batches = []
    for epoch in range(epochs):
        for index in range(-(-order.num_batches(epoch) // order.batches_per_window())):
            window = order.window(epoch, index)
            units = units_of(window)
            for low, high in zip(window.bounds[:-1], window.bounds[1:], strict=True):
                batches.append(
                    list(zip(units[low:high], window.passes[low:high].tolist(), strict=True))
                )
    return batches


def units_of(window: MixedWindow) -> list[Unit]:
    listed = [
        [(piece.shard, unit) for piece in pieces for unit in range(piece.first, piece.last)]
        for pieces in window.pieces
    ]
    return [
        (part, *listed[part][unit])
        for part, unit in zip(window.part.tolist(), window.unit.tolist(), strict=True)
    ]


@settings(max_examples=150, deadline=None, print_blob=True)
@given(order=orders())
def test_counts_follow_the_weights_and_each_unit_comes_once_a_pass(order: MixOrder) -> None:
    batches = consumed(order, 3)
    seen: list[Counter[Unit]] = [Counter() for _ in order.parts]
    total = sum(part.weight for part in order.parts)
    for step, batch in enumerate(batches, 1):
        for (part, shard, unit), pass_ in sorted(batch, key=itemgetter(1)):
            assert seen[part][part, shard, unit] == pass_
            seen[part][part, shard, unit] += 1
        samples = step * order.global_batch
        counts = [of.total() for of in seen]
        assert sum(counts) == samples
        for number, part in enumerate(order.parts):
            units = sum(p.last - p.first for p in part.pieces)
            # passes one after another: none begins before the last one ended, but for a step's shuffling
            assert max(seen[number].values(), default=0) <= -(-counts[number] // units)
            # each rounding is off by at most a half, and shared out to the parts before
            assert abs(counts[number] - samples * part.weight / total) <= len(order.parts) / 2
        if len(counts) > 1:
            share = sum(part.weight for part in order.parts[:-1]) / total
            assert samples - counts[-1] == int((samples * share * 2 + 1) // 2)


@settings(max_examples=60, deadline=None, print_blob=True)
@given(order=orders(), ranks=st.sampled_from([1, 2, 3, 4, 8]), accumulate=st.sampled_from([1, 3]))
def test_ranks_share_each_global_batch(order: MixOrder, ranks: int, accumulate: int) -> None:
    batch = order.global_batch * ranks * accumulate
    order = replace(order, global_batch=batch, epoch_samples=2 * batch)
    whole = consumed(order, 2)
    mine = [
        consumed(replace(order, rank=rank, world_size=ranks, accumulate=accumulate), 2)
        for rank in range(ranks)
    ]
    for step, expected in enumerate(whole):
        parts = [of[step * accumulate : (step + 1) * accumulate] for of in mine]
        assert [unit for of in parts for part in of for unit in part] == expected


def test_the_passes_of_a_part_differ_and_do_not_depend_on_the_other_parts() -> None:
    pieces = tuple(Piece(shard, 0, 10) for shard in range(4))
    part = MixPart(key="web", pieces=pieces, weight=Fraction(1, 2))

    def of_part(*others: MixPart) -> list[Unit]:
        order = MixOrder(
            parts=(part, *others), global_batch=40 * (1 + len(others)), seed=1, window_rows=40,
            epoch_samples=40 * (1 + len(others)),
        )  # fmt: skip
        batches = consumed(order, 2)
        return [unit for batch in batches for unit, _ in batch if unit[0] == 0]

    alone = of_part()
    assert sorted(alone[:40]) == sorted(alone[40:])
    assert alone[:40] != alone[40:]
    others = [MixPart(key=key, pieces=pieces, weight=Fraction(1, 2)) for key in ("books", "code")]
    for few in (others[:1], others):
        beside = of_part(*few)
        assert sorted(beside[:40]) == sorted(beside[40:]) == sorted(alone[:40])


def test_what_cannot_be_mixed_is_refused_by_name() -> None:
    full, none = (Piece(0, 0, 9),), (Piece(0, 4, 4),)
    options = {"global_batch": 4, "seed": 1, "window_rows": 9, "epoch_samples": 9}
    with pytest.raises(DataError, match=r"books has no train rows.*leave it out"):
        MixOrder(
            parts=(MixPart(key="b", pieces=none, weight=Fraction(1), name="books"),), **options
        )
    with pytest.raises(DataError, match=r"web has weight 0.*more than 0"):
        MixOrder(parts=(MixPart(key="w", pieces=full, weight=Fraction(0), name="web"),), **options)
    with pytest.raises(
        DataError, match=r"3 samples, expected at least global_batch=4.*data.epoch_samples"
    ):
        MixOrder(
            parts=(MixPart(key="w", pieces=full, weight=Fraction(1)),),
            **{**options, "epoch_samples": 3},
        )


@pytest.mark.rotating
def test_a_mix_of_a_million_shards_finds_its_windows_at_once() -> None:
    pieces = tuple(Piece(shard, 0, 1000) for shard in range(1_000_000))
    parts = tuple(MixPart(key=f"k{n}", pieces=pieces, weight=Fraction(n + 1)) for n in range(3))
    order = MixOrder(
        parts=parts, global_batch=4096, seed=1, window_rows=1 << 20, epoch_samples=10**12
    )
    window = order.window(0, 10**5)
    assert np.unique(window.part, return_counts=True)[1].sum() == len(window.unit)
