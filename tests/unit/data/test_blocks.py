"""Blocks of a column's values: every value once, in any order of visits, and damage with a name."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.data import windowmap
from shardline.data.block_units import BlockUnits
from shardline.data.collate import Collate
from shardline.data.columns import Column
from shardline.data.sample_stream import SampleStream, StreamPart
from shardline.data.shard_map import ShardMap
from shardline.data.windowmap import WindowMap
from shardline.errors import DataError
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.pieces import Piece
from shardline_io.order.sampling import TrainOrder
from tests.support.columns import Given, manifest_of

TOKENS = {
    "tokens": Column(dtype="uint16", varies=True),
    "line": Column(dtype="uint8", varies=True, kind="text"),
    "boxes": Column(dtype="float32", shape=(2,), varies=True),
    "sizes": Column(dtype="int64", varies=True),
}
SPLITS = ("train", "validation", "test")
# by shard, the split and number of tokens of each row
SHARDS = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=9),
    min_size=1, max_size=4,
)  # fmt: skip


def texts(shards: list[list[tuple[int, int]]]) -> Given:
    """Return rows whose tokens count up over all shards, so that each value stands for its place."""
    rows, value = [], 0
    for shard in shards:
        rows.append([])
        for split, length in sorted(shard, key=lambda row: row[0]):
            tokens = np.arange(value, value + length, dtype=np.uint16)
            boxes = np.stack([tokens, -tokens.astype(np.float32)], axis=1).astype(np.float32)
            others = {"line": "x" * length, "boxes": boxes, "sizes": np.array([length])}
            rows[-1].append((split, {"tokens": tokens, **others}))
            value += length
    return Given(TOKENS, rows)


def values_of(source: Given, split: int) -> list[list[int]]:
    """Return by shard the tokens of a split, back to back."""
    return [
        [int(v) for s, row in shard if s == split for v in row["tokens"]] for shard in source.rows
    ]


def blocks_of(
    source: Given, folder: Path, split: str, length: int, others: tuple[str, ...] = ()
) -> BlockUnits:
    manifest = manifest_of(source, folder)
    return BlockUnits(
        shards=ShardMap(manifest, folder), split=ShardMap(manifest, folder).pieces(split), column="tokens",
        length=length,
        others=others,
    )  # fmt: skip


@settings(max_examples=100, deadline=None, print_blob=True)
@given(
    shards=SHARDS, split=st.integers(0, 2), length=st.integers(1, 12), copied=st.sampled_from([0, 65536]),
    data=st.data(),
)  # fmt: skip
def test_each_value_is_in_one_block_but_for_the_remainder_that_is_reported(
    shards: list[list[tuple[int, int]]], split: int, length: int, copied: int, data: st.DataObject
) -> None:
    source = texts([[(0, 4), *shards[0]], *shards[1:]])
    wanted = values_of(source, split)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(windowmap, "COPIED_BYTES", copied)
        units = blocks_of(source, Path(folder), SPLITS[split], length, ("boxes", "line"))
        has_rows = any(split == s for shard in source.rows for s, _ in shard)
        if has_rows and all(len(v) < length for v in wanted):
            with pytest.raises(DataError, match=f"expected at least data.pack.length={length} for"):
                _ = units.pieces
            return
        pieces = [piece for piece in units.pieces if piece.last]
        blocks = [v[n : n + length] for v in wanted for n in range(0, len(v) - length + 1, length)]
        total = sum(map(len, wanted))
        assert units.waste == pytest.approx(1 - len(blocks) * length / total if total else 0)
        if not pieces:
            return
        # any pieces of the blocks, such as a window has
        cut = data.draw(st.integers(0, pieces[-1].last - 1), label="cut")
        pieces[-1] = Piece(pieces[-1].shard, cut, pieces[-1].last)
        numbers = [sum(p.last for p in pieces[:-1]) + cut, sum(p.last for p in pieces)]
        blocks = blocks[: numbers[0] - cut] + blocks[numbers[0] :]
        loaded = units.load(WindowMap(units.shards, units.rows(pieces)), pieces)
        assert [loaded.sample(n)["tokens"].tolist() for n in range(len(blocks))] == blocks
        batch = loaded.batch(np.arange(len(blocks))[::-1])
        assert batch["tokens"].tolist() == blocks[::-1]
        along = [[[value, -value] for value in block] for block in blocks]
        assert [loaded.sample(n)["boxes"].tolist() for n in range(len(blocks))] == along
        assert batch["boxes"].tolist() == along[::-1]
        assert (batch["line"] == ord("x")).all()
        assert batch["line"].shape == (len(blocks), length)
        assert {name: list(found.shape[1:]) for name, found in batch.items()} == {
            name: list(column.shape) for name, column in units.columns.items()
        }
        assert loaded.ids.tolist() == [p.shard << 32 | n for p in pieces for n in range(p.first, p.last)]  # fmt: skip
        assert units.lengths("tokens", pieces).tolist() == [length] * len(blocks)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_training_is_given_each_block_once_a_pass_on_any_number_of_ranks(
    tmp_path: Path, ranks: int
) -> None:
    source = texts([[(0, 7), (0, 0), (0, 31), (1, 5)], [(0, 40), (2, 3), (2, 9)]])
    units = blocks_of(source, tmp_path, "train", 3)
    part = StreamPart(units=units, shards=units.shards)
    seen, ids = [], []
    for rank in range(ranks):
        order = TrainOrder(
            dataset_id="d", pieces=units.pieces, global_batch=6, seed=1, window_rows=9, rank=rank,
            world_size=ranks, is_padded=True,
        )  # fmt: skip
        stream = SampleStream([part], order, Collate(units.columns))
        for batch in stream.batches():
            real = batch["weights"] > 0
            assert batch["tokens"].dtype == torch.uint16
            seen += batch["tokens"][real].tolist()
            ids += stream.batch_ids.tolist()
    wanted = [v[n : n + 3] for v in values_of(source, 0) for n in range(0, len(v) - 2, 3)]
    assert sorted(seen) == wanted
    assert sorted(ids) == [*range(12), *(1 << 32 | n for n in range(13))]


def test_a_held_out_split_has_blocks_of_its_own_rows(tmp_path: Path) -> None:
    source = texts([[(0, 5), (1, 3), (1, 4), (2, 8)], [(0, 9), (1, 5)]])
    units = blocks_of(source, tmp_path, "validation", 3)
    order = HeldOutOrder(pieces=units.pieces, global_batch=2, window_rows=2)
    stream = SampleStream([StreamPart(units=units, shards=units.shards)], order, Collate(units.columns))  # fmt: skip
    seen = [block for batch in stream.batches() for block in batch["tokens"].tolist()]
    assert seen == [[5, 6, 7], [8, 9, 10], [29, 30, 31]]
    assert units.waste == pytest.approx(3 / 12)


@pytest.mark.parametrize("copied", [0, 65536])
def test_a_column_of_other_lengths_cannot_go_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    monkeypatch.setattr(windowmap, "COPIED_BYTES", copied)
    units = blocks_of(texts([[(1, 3), (0, 1), (0, 5)]]), tmp_path, "train", 2, others=("sizes",))
    message = r"row 1 of shard .* has 1 values of sizes, expected 5 as of tokens.*remove sizes from data\.pack\.with"
    with pytest.raises(DataError, match=message):
        units.load(WindowMap(units.shards, units.rows(units.pieces)), units.pieces)


def test_memory_of_a_block_counts_the_other_columns_of_its_rows(tmp_path: Path) -> None:
    units = blocks_of(texts([[(0, 100)] * 10]), tmp_path, "train", 10)
    per_row = units.shards.row_bytes
    assert per_row > 100 * (3 + 8)  # two bytes of a token, one of the line and eight of a box each
    assert units.unit_bytes == pytest.approx(per_row / 10, abs=1)


def test_a_length_of_no_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tokens has pack length 0, expected 1 to"):
        blocks_of(texts([[(0, 3)]]), tmp_path, "train", 0)


def test_whole_shards_are_counted_without_opening_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = blocks_of(texts([[(0, 5), (0, 7)], [(0, 9)]]), tmp_path, "train", 4)
    monkeypatch.setattr(ShardMap, "opened", None)
    assert units.pieces == (Piece(0, 0, 3), Piece(1, 0, 2))


@pytest.mark.parametrize(
    ("split", "offsets", "is_counted"),
    [
        ("train", [0, 9, 6, 8, 30], False),
        ("train", [0, 5, 2**62, 8, 30], False),
        ("train", [0, 5, -1, 8, 30], False),
        ("train", [0, -(2**63), 2**63 - 1, 30, 30], False),
        ("train", [0, 12, 11, 30, 30], True),
        ("train", [0, 5, 8, 12, 30], True),
        ("validation", [0, 5, 2**62, 8, 30], False),
        ("validation", [0, 5, 6, 7, 3], False),
        ("validation", [0, 5, 11, 40, 30], False),
        ("validation", [0, 5, 14, 20, 30], True),
    ],
)
@pytest.mark.parametrize("copied", [0, 65536])
def test_hostile_offsets_are_an_error_that_names_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, offsets: list[int], is_counted: bool, copied: int
) -> None:  # fmt: skip
    monkeypatch.setattr(windowmap, "COPIED_BYTES", copied)
    units = blocks_of(texts([[(0, 5), (0, 6), (1, 12), (1, 7)]]), tmp_path, split, 2)
    if is_counted:
        assert units.pieces
    path, start = units.shards.path(0), units.shards.layout(0).offsets["tokens.offsets"]
    content = bytearray(path.read_bytes())
    content[start : start + 40] = np.array(offsets, np.int64).tobytes()
    path.write_bytes(content)
    with pytest.raises(DataError, match="shard .*shard-00000.safetensors: the offsets of tokens"):
        units.load(WindowMap(units.shards, units.rows(units.pieces)), units.pieces)
