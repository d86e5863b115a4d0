"""Batches of any columns: the same global batches on any number of ranks, each row once, and filled up alike."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.data import windowmap
from shardline.data.shard_map import ShardMap
from shardline.data.stream import ShardStream
from shardline.errors import DataError
from shardline.sources import Ragged, Schema, Source, Table
from shardline_io.column_names import LENGTHS, MEAN_COUNT, PRESENT, WEIGHTS
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.sampling import TrainOrder
from tests.support.columns import Given, as_array, manifest_of, sources, together


def rows_by_id(source: Given) -> dict[int, dict[str, Any]]:
    return {
        int(row): values
        for shard in range(source.num_shards)
        for row, (_, values) in zip(source.ids(shard), source.rows[shard], strict=True)
    }


def check_batch(source: Given, ids: np.ndarray, batch: Any, longest: dict[str, int] | None) -> None:
    """Compare a batch with the rows that the source gave; `longest` where it is filled up to more than its own."""
    rows = rows_by_id(source)
    count = len(next(iter(batch.values())))
    places = np.flatnonzero(batch[WEIGHTS] > 0) if WEIGHTS in batch else np.arange(count)
    for name, column in source.columns.items():
        for place, row in zip(places.tolist(), ids.tolist(), strict=True):
            value, found = rows[row][name], batch[name][place]
            if column.optional:
                assert bool(batch[name + PRESENT][place]) == (value is not None)
            if column.kind != "array":
                assert found == (value or {"text": "", "bytes": b""}[column.kind])
            elif value is None:
                assert not found.any()
            else:
                expected = as_array(column, value)
                if column.varies:
                    assert batch[name + LENGTHS][place] == len(expected)
                    assert not found[len(expected) :].any()
                    found = found[: len(expected)]
                assert np.array_equal(found.numpy(), expected)
        if column.varies and column.kind == "array":
            real = batch[name + LENGTHS][places]
            if longest is None:  # the batch is a whole global batch
                assert batch[name + MEAN_COUNT] == real.sum()
            most = longest[name] if longest else int(batch[name + LENGTHS].max())
            assert batch[name].shape[1] == most


@settings(max_examples=60, deadline=None, print_blob=True)
@given(
    source=sources(), world_size=st.sampled_from([1, 2, 3, 4, 8]), accumulate=st.sampled_from([1, 2]),
    streams=st.sampled_from([1, 2]), window_rows=st.integers(1, 40), copied=st.sampled_from([0, 65536]),
)  # fmt: skip
def test_global_batches_are_the_same_on_any_number_of_ranks(
    source: Given, world_size: int, accumulate: int, streams: int, window_rows: int, copied: int
) -> None:
    batch = world_size * accumulate * streams
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(windowmap, "COPIED_BYTES", copied)
        manifest = manifest_of(source, Path(folder))
        shards = ShardMap(manifest, Path(folder))

        def batches(rank: int, ranks: int, parts: int) -> Iterator[tuple[np.ndarray, Any]]:
            order = TrainOrder(
                dataset_id="d", pieces=shards.pieces("train"), global_batch=batch, seed=1,
                window_rows=max(window_rows, batch), streams=streams, is_padded=True, rank=rank,
                world_size=ranks, accumulate=parts,
            )  # fmt: skip
            stream = ShardStream(shards, order)
            for epoch in (0, 1):
                for found in stream.batches(epoch):
                    yield stream.batch_ids, found

        whole = list(batches(0, 1, 1))
        seen = [row for ids, _ in whole for row in ids.tolist()]
        train = sorted(
            int(row)
            for shard in range(source.num_shards)
            for row, (split, _) in zip(source.ids(shard), source.rows[shard], strict=True)
            if split == 0
        )
        assert sorted(seen) == sorted(2 * train)
        for ids, found in whole:
            check_batch(source, ids, found, None)
        parts = [list(batches(rank, world_size, accumulate)) for rank in range(world_size)]
        for step, (ids, found) in enumerate(whole):
            mine = [
                parts[rank][step * accumulate + k]
                for rank in range(world_size)
                for k in range(accumulate)
            ]
            assert np.concatenate([of for of, _ in mine]).tolist() == ids.tolist()
            longest = {
                n: found[n].shape[1]
                for n, c in source.columns.items()
                if c.varies and c.kind == "array"
            }
            for own, values in mine:
                check_batch(source, own, values, longest)
            joined = together([values for _, values in mine])
            for name, of in found.items():
                if isinstance(of, list):
                    assert joined[name] == of
                elif name != WEIGHTS:
                    assert torch.equal(joined[name], of)


@settings(max_examples=30, deadline=None, print_blob=True)
@given(source=sources(), batch=st.integers(1, 5), window_rows=st.integers(1, 9))
def test_held_out_rows_come_once_in_their_order(
    source: Given, batch: int, window_rows: int
) -> None:
    with TemporaryDirectory() as folder:
        manifest = manifest_of(source, Path(folder))
        if not manifest.splits["test"]:
            return
        order = HeldOutOrder(
            pieces=ShardMap(manifest, Path(folder)).pieces("test"),
            global_batch=batch,
            window_rows=window_rows,
        )
        stream, seen = ShardStream(ShardMap(manifest, Path(folder)), order), []
        for found in stream.batches():
            check_batch(source, stream.batch_ids, found, None)
            seen += stream.batch_ids.tolist()
        assert seen == sorted(
            int(row)
            for shard in range(source.num_shards)
            for row, (split, _) in zip(source.ids(shard), source.rows[shard], strict=True)
            if split == 2
        )


class Tokens(Source):
    """One shard of 40 rows of up to 7 tokens, and a wide column."""

    schema = Schema(columns={"tokens": "int32[*]", "wide": "float32[100]"})

    def iter_tables(self, shard: int) -> Any:
        lengths = np.arange(40) % 8
        tokens = Ragged(
            values=np.arange(lengths.sum(), dtype=np.int32), offsets=np.cumsum([0, *lengths])
        )
        columns = {"tokens": tokens, "wide": np.ones((40, 100), np.float32)}
        yield Table(ids=np.arange(40), columns=columns, splits=np.zeros(40, int))


@pytest.mark.parametrize("copied", [0, 65536])
@pytest.mark.parametrize("place", [0, 1, 17, 40])
@pytest.mark.parametrize("offset", [-1, 3, 141, 2**62, -(2**63)])
def test_offsets_that_lead_out_of_a_column_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: int, place: int, offset: int
) -> None:
    monkeypatch.setattr(windowmap, "COPIED_BYTES", copied)
    source = Tokens(num_shards=1)
    manifest = manifest_of(source, tmp_path)
    shards = ShardMap(manifest, tmp_path)
    path = shards.path(0)
    content = bytearray(path.read_bytes())
    start = shards.layout(0).offsets["tokens.offsets"] + 8 * place
    was = int.from_bytes(content[start : start + 8], "little", signed=True)
    content[start : start + 8] = offset.to_bytes(8, "little", signed=True)
    path.write_bytes(content)
    order = TrainOrder(
        dataset_id="d",
        pieces=shards.pieces("train"),
        global_batch=40,
        seed=1,
        window_rows=40,
    )
    if offset == was:
        return
    with pytest.raises(
        DataError, match=r"the offsets of tokens do not rise from 0 to 140.*verify --repair"
    ):
        list(ShardStream(shards, order, num_epochs=1).batches())
