"""Batches made sample by sample: those of whole columns, and mixed, transformed and collated ones."""

from collections.abc import Sequence
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.data import windowmap
from shardline.data.classes import rows_of_classes
from shardline.data.collate import Around, Collate
from shardline.data.columns import Column
from shardline.data.sample_index import RowUnits, Sample
from shardline.data.sample_stream import Key, SampleStream, StreamPart
from shardline.data.shard_map import ShardMap
from shardline.data.stream import ShardStream
from shardline.errors import DataError
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.mix import MixOrder, MixPart, joined
from shardline_io.order.sampling import TrainOrder
from tests.support.columns import Given, manifest_of, sources, together


def equal(one: Any, other: Any) -> bool:
    """Return whether two batches have the same columns in the same order, and the same bytes."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def part_of(source: Given, folder: Path, split: str, key: int = 0) -> StreamPart:
    folder.mkdir(exist_ok=True)
    manifest = manifest_of(source, folder)
    shards = ShardMap(manifest, folder)
    units = RowUnits(shards=shards, pieces=shards.pieces(split))
    return StreamPart(units=units, shards=shards, key=key)


def one_window(part: StreamPart, **place: int) -> TrainOrder:
    pieces = part.units.pieces
    return TrainOrder(dataset_id="d", pieces=pieces, global_batch=8, seed=1, window_rows=8, **place)


@settings(max_examples=60, deadline=None, print_blob=True)
@given(
    source=sources(), world_size=st.sampled_from([1, 2, 3]), accumulate=st.sampled_from([1, 2]),
    streams=st.sampled_from([1, 2]), window_rows=st.integers(1, 40), copied=st.sampled_from([0, 65536]),
    start=st.integers(0, 3), is_padded=st.booleans(),
)  # fmt: skip
def test_samples_give_the_batches_of_whole_columns(
    source: Given, world_size: int, accumulate: int, streams: int, window_rows: int, copied: int,
    start: int, is_padded: bool,
) -> None:  # fmt: skip
    batch = world_size * accumulate * streams
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(windowmap, "COPIED_BYTES", copied)
        part = part_of(source, Path(folder), "train")
        rows = sum(piece.last - piece.first for piece in part.units.pieces)
        for rank in range(world_size):
            order = TrainOrder(
                dataset_id="d", pieces=part.units.pieces, global_batch=batch, seed=1,
                window_rows=max(window_rows, batch), streams=streams, is_padded=is_padded or rows < batch,
                rank=rank, world_size=world_size, accumulate=accumulate,
            )  # fmt: skip
            whole = ShardStream(part.shards, order)
            single = SampleStream([part], order, Collate(part.units.columns))
            for epoch, first in ((0, min(start, order.num_batches(0))), (1, 0)):
                wanted = ((found, whole.batch_ids) for found in whole.batches(epoch, first))
                count = first
                for (found, ids), made in zip(wanted, single.batches(epoch, first), strict=True):
                    count += 1
                    assert equal(found, made)
                    assert single.batch_ids.tolist() == ids.tolist()
                    assert single.position == whole.position == count


@settings(max_examples=30, deadline=None, print_blob=True)
@given(
    source=sources(), other=st.booleans(), batch=st.integers(1, 5), window_rows=st.integers(1, 9)
)
def test_held_out_rows_of_several_datasets_come_once(
    source: Given, other: bool, batch: int, window_rows: int
) -> None:
    with TemporaryDirectory() as folder:
        parts = [part_of(source, Path(folder, "a"), "test")]
        parts += [part_of(source, Path(folder, "b"), "test", key=1)] if other else []
        pieces = [part.units.pieces for part in parts]
        if not any(piece.first < piece.last for piece in pieces[0]):
            return
        order = HeldOutOrder(pieces=joined(pieces), global_batch=batch, window_rows=window_rows)
        stream, seen = SampleStream(parts, order, Collate(parts[0].units.columns)), []
        for _ in stream.batches():
            seen += list(zip(stream.batch_parts.tolist(), stream.batch_ids.tolist(), strict=True))
        wanted = sorted(
            int(row)
            for shard in range(source.num_shards)
            for row, (split, _) in zip(source.ids(shard), source.rows[shard], strict=True)
            if split == 2
        )
        assert seen == [(part, row) for part in range(len(parts)) for row in wanted]


class Inline:
    """Transforms at once, in this thread."""

    def submit(self, samples: Sequence[tuple[Key, Sample]]) -> "Future[list[Sample]]":
        done: Future[list[Sample]] = Future()
        done.set_result([self.changed(key, sample) for key, sample in samples])
        return done

    @staticmethod
    def changed(key: Key, sample: Sample) -> Sample:
        noise = np.random.default_rng(key).integers(0, 1000, 3)
        return {**sample, "noise": noise}


FIXED = {"x": Column(dtype="float32", shape=(2,)), "n": Column(dtype="int32", varies=True)}


def small(rows: int, first: int = 0) -> Given:
    values = [
        (0, {"x": np.full(2, first + row, np.float32), "n": np.arange(row % 4, dtype=np.int32)})
        for row in range(rows)
    ]
    return Given(FIXED, [values[::2], values[1::2]])


def mixed(
    parts: Sequence[StreamPart], batch: int, *, rank: int = 0, ranks: int = 1, accumulate: int = 1
) -> SampleStream:
    of_order = tuple(
        MixPart(key=f"k{part.key}", pieces=part.units.pieces, weight=Fraction(n + 1))
        for n, part in enumerate(parts)
    )
    order = MixOrder(
        parts=of_order, global_batch=batch, seed=1, window_rows=2 * batch, epoch_samples=5 * batch,
        rank=rank, world_size=ranks, accumulate=accumulate,
    )  # fmt: skip
    return SampleStream(parts, order, Collate(FIXED, multiple=3), pool=Inline(), seed=1)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_a_mix_that_is_transformed_is_the_same_on_any_number_of_ranks_and_from_any_step(
    tmp_path: Path, ranks: int
) -> None:
    parts = [part_of(small(n), tmp_path / str(n), "train", key=n) for n in (7, 11, 30)]
    whole = {
        epoch: [(b, stream.batch_ids.tolist()) for b in stream.batches(epoch)]
        for stream in [mixed(parts, 24)]
        for epoch in (0, 1, 2)
    }
    for epoch, start in ((0, 3), (1, 0), (2, 4)):
        streams = [mixed(parts, 24, rank=rank, ranks=ranks) for rank in range(ranks)]
        pieces = zip(*(stream.batches(epoch, start) for stream in streams), strict=True)
        count = start
        for (batch, ids), of_ranks in zip(whole[epoch][start:], pieces, strict=True):
            count += 1
            assert equal(batch, together(of_ranks))
            assert [row for stream in streams for row in stream.batch_ids.tolist()] == ids
            assert {stream.position for stream in streams} == {count}
    passes = [p for s in [mixed(parts, 24)] for e in (0, 1) for _ in s.batches(e) for p in s.batch_passes]  # fmt: skip
    assert set(passes) > {0, 1, 2}


def test_rows_are_chosen_by_class(tmp_path: Path) -> None:
    columns = {"features": Column(dtype="float32", shape=(3,)), "labels": Column(dtype="int64")}
    rows = [
        (0, {"features": np.full(3, row, np.float32), "labels": np.int64(row % 10 == 0)})
        for row in range(50)
    ]
    source = Given(columns, [rows[:20], rows[20:]], classes=("common", "rare"))
    part = part_of(source, tmp_path, "train")
    classes = rows_of_classes(part.shards, part.units.pieces, 2)
    assert [sum(p.last - p.first for p in one.pieces) for one in classes] == [45, 5]
    order = MixOrder(
        parts=tuple(MixPart(key=f"c{n}", pieces=one.pieces, weight=Fraction(1)) for n, one in enumerate(classes)),
        global_batch=10, seed=1, window_rows=20, epoch_samples=50,
    )  # fmt: skip
    parts = [StreamPart(units=one, shards=part.shards) for one in classes]
    stream = SampleStream(parts, order, Collate(columns))
    for batch in stream.batches():
        features, labels = batch
        assert labels.sum() == 5
        assert torch.equal(features[:, 0] % 10 == 0, labels == 1)
        assert [i % 1000 for i in stream.batch_ids] == [
            int(f) % 20 if f < 20 else int(f) - 20 for f in features[:, 0]
        ]


def test_a_users_function_makes_the_batch_and_is_told_the_longest_of_all_ranks(
    tmp_path: Path,
) -> None:
    part = part_of(small(8), tmp_path, "train")

    def function(samples: Sequence[Sample], longest: Any) -> Any:
        return [len(sample["n"]) for sample in samples], dict(longest)

    order = one_window(part, rank=1, world_size=2)
    stream = SampleStream([part], order, Collate(FIXED, function=function))
    ((lengths, longest),) = stream.batches()
    assert len(lengths) == 4
    assert longest == {"n": 3}


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({}, lambda s: {**s, "n": s["n"][:1]}, "changes the length of column n.*data.collate.lengths.n"),
        ({"lengths": {"n": 2}}, lambda s: s, "n has a sample of 3 values, expected at most 2.*raise the length"),
        ({}, lambda s: {**s, "x": np.zeros(len(s["n"]))}, r"x has samples of shape \[.*\] and .*one shape"),
        ({}, lambda s: s if len(s["n"]) else {**s, "y": 1}, "only some samples .* column y"),
    ],
)  # fmt: skip
def test_samples_that_make_no_batch_are_refused_by_column(
    tmp_path: Path, options: Any, change: Any, message: str
) -> None:
    class Changed(Inline):
        changed = staticmethod(lambda key, sample: change(sample))

    part = part_of(small(8), tmp_path, "train")
    order = one_window(part)
    stream = SampleStream([part], order, Collate(FIXED, **options), pool=Changed())
    with pytest.raises(DataError, match=message):
        list(stream.batches())


def test_samples_cannot_be_written_to(tmp_path: Path) -> None:
    part = part_of(small(8), tmp_path, "train")

    class Writing(Inline):
        @staticmethod
        def changed(key: Key, sample: Sample) -> Sample:
            sample["x"] += 1
            return sample

    order = one_window(part)
    with pytest.raises(ValueError, match="read-only"):
        list(SampleStream([part], order, Collate(FIXED), pool=Writing()).batches())


def test_bytes_and_texts_that_a_transform_makes_arrays_of_are_of_one_shape() -> None:
    columns = {"image": Column.parse("image", "bytes"), "words": Column.parse("words", "text")}
    decoded = [{"image": np.full((2, 2, 3), n, np.uint8), "words": np.arange(4)} for n in range(3)]
    batch = Collate(columns)(decoded, Around())
    assert {name: tuple(of.shape) for name, of in batch.items()} == {
        "image": (3, 2, 2, 3),
        "words": (3, 4),
    }
