"""`{name}.mean_count`: what every rank knows of the step's global batch, and the gradient that follows from it."""

import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_lightning.utilities import data as lightning_data
from torch import nn

from shardline.data.collate import Collate
from shardline.data.columns import Column
from shardline.data.packs import PackUnits
from shardline.data.sample_index import RowUnits, SampleIndex
from shardline.data.sample_stream import SampleStream, StreamPart
from shardline.data.shard_map import ShardMap
from shardline.data.stream import ShardStream
from shardline.losses import token_mean
from shardline.training.trainer import quieten_lightning
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.mix import MixOrder, MixPart
from shardline_io.order.pieces import num_rows
from shardline_io.order.sampling import TrainOrder
from tests.support.columns import Given, manifest_of

COLUMNS = {
    "tokens": Column(dtype="int64", varies=True),
    "text": Column(dtype="uint8", varies=True, kind="text"),
}
RANKS, ACCUMULATE = [1, 2, 3, 4, 8], [1, 2, 3]
ROWS = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1]), st.integers(0, 9)), min_size=8, max_size=60
)


def ragged_rows(rows: list[tuple[int, int]]) -> Given:
    """Return two shards of rows; tokens are above 0, so that they differ from what fills up."""
    made = [
        (split, {"tokens": np.arange(1, length + 1) % 7 + 1, "text": "x"})
        for split, length in [(0, 5), (1, 3), *rows]
    ]
    halves = made[: len(made) // 2], made[len(made) // 2 :]
    return Given(COLUMNS, [sorted(half, key=lambda row: row[0]) for half in halves])


def units_of(kind: str, folder: Path, source: Given, split: str) -> tuple[SampleIndex, ShardMap]:
    manifest = manifest_of(source, folder)
    shards = ShardMap(manifest, folder)
    pieces = shards.pieces(split)
    if kind == "packs":
        return PackUnits(
            shards=shards, name=split, split=pieces, column="tokens", length=10
        ), shards
    return RowUnits(shards=shards, pieces=pieces), shards


def orders(
    kind: str, units: SampleIndex, batch: int, window: int
) -> Callable[[int, int, int], Any]:
    """Return what gives a rank's order of some kind, by rank, number of ranks and accumulated parts."""
    pieces: dict[str, Any] = {"global_batch": batch, "window_rows": window}

    def order(rank: int, ranks: int, accumulate: int) -> Any:
        if kind == "held_out":
            return HeldOutOrder(pieces=units.pieces, rank=rank, world_size=ranks, **pieces)
        place = {"rank": rank, "world_size": ranks, "accumulate": accumulate, "seed": 1, **pieces}
        if kind == "mix":
            parts = [
                MixPart(key=key, pieces=units.pieces, weight=Fraction(w))
                for key, w in (("a", 1), ("b", 2))
            ]
            return MixOrder(parts=tuple(parts), epoch_samples=2 * batch, **place)
        return TrainOrder(dataset_id="d", pieces=units.pieces, is_padded=True, **place)

    return order


@settings(max_examples=60, deadline=None, print_blob=True)
@given(
    rows=ROWS, ranks=st.sampled_from(RANKS), accumulate=st.sampled_from(ACCUMULATE),
    way=st.sampled_from(["train", "mix", "held_out"]), kind=st.sampled_from(["rows", "columns", "packs"]),
    window=st.integers(1, 80),
)  # fmt: skip
def test_the_count_of_the_global_batch_is_known_to_each_of_its_batches(
    rows: list[tuple[int, int]], ranks: int, accumulate: int, way: str, kind: str, window: int
) -> None:
    accumulate = 1 if way == "held_out" else accumulate
    kind = "rows" if way == "mix" and kind == "columns" else kind
    with TemporaryDirectory() as folder:
        split = "validation" if way == "held_out" else "train"
        units, shards = units_of(kind, Path(folder), ragged_rows(rows), split)
        if way == "held_out" and num_rows(units.pieces) < ranks:
            return
        order = orders(way, units, ranks * accumulate, window)
        part = StreamPart(units=units, shards=shards)
        parts = [part, part] if way == "mix" else [part]
        of_ranks = []
        for rank in range(ranks):
            own = order(rank, ranks, accumulate)
            collate = Collate(units.columns)
            stream = SampleStream(parts, own, collate)
            whole = ShardStream(shards, own) if kind == "columns" else stream
            of_ranks.append(list(whole.batches()))
    for first in range(0, len(of_ranks[0]), accumulate):
        mine = [batch for of in of_ranks for batch in of[first : first + accumulate]]
        assert list(mine[0])[-1:] == ["tokens.mean_count"], "columns come first"
        real = [b["tokens"][b["weights"] > 0] if "weights" in b else b["tokens"] for b in mine]
        count = sum(int((values > 0).sum()) for values in real)
        for batch in mine:
            assert batch["tokens.mean_count"].dtype == torch.float32
            assert batch["tokens.mean_count"].shape == ()
            assert float(batch["tokens.mean_count"]) == pytest.approx(count / len(mine), rel=1e-6)
        widths = {b["tokens"].shape[1] for b in mine}
        assert len(widths) == 1, "all are filled up to the longest of the global batch"


@settings(max_examples=20, deadline=None, print_blob=True)
@given(lengths=st.lists(st.integers(0, 9), min_size=48, max_size=48), ranks=st.sampled_from(RANKS))
def test_the_gradient_does_not_depend_on_how_a_global_batch_is_split(
    lengths: list[int], ranks: int
) -> None:
    with TemporaryDirectory() as folder:
        units, shards = units_of("rows", Path(folder), ragged_rows([(0, n) for n in lengths]), "train")  # fmt: skip
        order = orders("train", units, 48, 48)
        found = []
        for of, accumulate in ((1, 1), (ranks, 1), (ranks, 2)):
            streams = [ShardStream(shards, order(rank, of, accumulate)) for rank in range(of)]
            batches = [next(b) for s in streams for b in [s.batches()] for _ in range(accumulate)]
            found.append(gradient_of(batches))
    for one in found[1:]:
        for grad, alone in zip(one, found[0], strict=True):
            assert torch.allclose(grad, alone, rtol=1e-5, atol=1e-7)


def gradient_of(batches: list[Any]) -> list[torch.Tensor]:
    """Return the mean over all batches of a step of the gradients of a model of the next token."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8)).double()
    for batch in batches:
        tokens = batch["tokens"]
        logits = model(tokens[:, :-1]).transpose(1, 2)
        losses = nn.functional.cross_entropy(logits, tokens[:, 1:], reduction="none")
        place = torch.arange(1, tokens.shape[1])
        mask = place < batch["tokens.lengths"][:, None]
        loss = token_mean(losses, mask, mean_count=batch["tokens.mean_count"])
        (loss / len(batches)).backward()
    return [parameter.grad for parameter in model.parameters()]


def test_a_table_stays_a_tuple_and_a_column_that_is_taken_away_is_not_counted(
    tmp_path: Path,
) -> None:
    columns = {"features": Column(dtype="int64", varies=True), "labels": Column(dtype="int64")}
    source = Given(columns, [[(0, {"features": np.arange(n), "labels": n}) for n in range(4)]])
    manifest = manifest_of(source, tmp_path)
    shards = ShardMap(manifest, tmp_path)
    units = RowUnits(shards=shards, pieces=shards.pieces("train"))
    order = orders("train", units, 4, 4)(0, 1, 1)
    (padded,) = SampleStream(
        [StreamPart(units=units, shards=shards)], order, Collate(columns)
    ).batches()
    assert padded["features.mean_count"] == 6
    nested = SampleStream([StreamPart(units=units, shards=shards)], order, Collate(columns, mode="nested"))  # fmt: skip
    (batch,) = nested.batches()
    assert isinstance(batch, tuple)


def test_lightning_takes_the_size_of_a_batch_from_its_columns_without_a_warning() -> None:
    batch = {"tokens": torch.zeros(4, 3), "text": ["x"] * 4, "tokens.mean_count": torch.tensor(6.0)}
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        quieten_lightning()
        lightning_data.warning_cache.clear()  # it warns once in a process
        assert lightning_data.extract_batch_size(batch) == 4
    assert not shown
