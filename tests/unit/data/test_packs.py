"""Packs: every value once, none over its length, planned alike, and no trust in a plan's file."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from shardline.core.canonical import canonical_json
from shardline.data.collate import Collate
from shardline.data.columns import Column
from shardline.data.pack_plans import PlanFile, problems_of_plans
from shardline.data.packs import PackUnits
from shardline.data.sample_stream import SampleStream, StreamPart
from shardline.data.shard_map import ShardMap
from shardline.data.windowmap import WindowMap
from shardline.errors import DataError
from shardline_io.order import best_fit
from shardline_io.order.best_fit import plan_packs
from shardline_io.order.held_out import HeldOutOrder
from shardline_io.order.pieces import Piece
from shardline_io.order.sampling import TrainOrder
from tests.support.columns import Given, manifest_of, together

COLUMNS = {
    "tokens": Column(dtype="uint16", varies=True),
    "boxes": Column(dtype="float32", shape=(2,), varies=True),
    "other": Column(dtype="int32", varies=True),
}
SPLITS = ("train", "validation", "test")
SHARDS = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), min_size=1, max_size=12),
    min_size=1, max_size=3,
)  # fmt: skip


def ragged_rows(shards: list[list[tuple[int, int]]]) -> Given:
    """Return rows whose tokens count up from 1 over all shards, so that each value stands for its place."""
    rows, value = [], 1
    for shard in shards:
        rows.append([])
        for split, length in sorted(shard, key=lambda row: row[0]):
            tokens = np.arange(value, value + length, dtype=np.uint16)
            boxes = np.stack([tokens, -tokens.astype(np.float32)], axis=1).astype(np.float32)
            rows[-1].append((split, {"tokens": tokens, "boxes": boxes, "other": np.zeros(2, np.int32)}))  # fmt: skip
            value += length
    return Given(COLUMNS, rows)


def packs_of(source: Given, folder: Path, split: str, length: int, **options: Any) -> PackUnits:
    manifest = manifest_of(source, folder)
    return PackUnits(
        shards=ShardMap(manifest, folder), name=split, split=ShardMap(manifest, folder).pieces(split), column="tokens",
        length=length, **options,
    )  # fmt: skip


def parts_of(source: Given, split: int, length: int) -> list[list[int]]:
    """Return what packs of a length are made of: rows, those cut that are longer."""
    rows = [row["tokens"].tolist() for shard in source.rows for s, row in shard if s == split]
    return [row[n : n + length] for row in rows for n in range(0, len(row), length)]


@settings(max_examples=200, deadline=None, print_blob=True)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=60), length=st.integers(1, 30),
    group_rows=st.integers(1, 20), group_packs=st.integers(1, 3),
)  # fmt: skip
def test_a_plan_has_each_value_once_and_no_pack_over_its_length(
    lengths: list[int], length: int, group_rows: int, group_packs: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_fit, "GROUP_ROWS", group_rows)
        patch.setattr(best_fit, "GROUP_PACKS", group_packs)
        plan = plan_packs(np.array(lengths, np.int64), length)
        again = plan_packs(np.array(lengths, np.int64), length)
    segments = list(zip(plan.rows.tolist(), plan.parts.tolist(), strict=True))
    assert sorted(segments) == [(r, p) for r, n in enumerate(lengths) for p in range(-(-n // length))]  # fmt: skip
    for number, used in enumerate(plan.used.tolist()):
        of_pack = segments[plan.firsts[number] : plan.firsts[number + 1]]
        assert of_pack == sorted(of_pack)
        assert used == sum(min(lengths[row] - part * length, length) for row, part in of_pack)
        assert 0 < used <= length
    for name in ("firsts", "rows", "parts", "used"):
        assert np.array_equal(getattr(plan, name), getattr(again, name))


@settings(max_examples=200, deadline=None)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_a_group_is_packed_as_best_fit_one_by_one_would(sizes: list[int]) -> None:
    spaces: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [space for space in spaces if space >= size]
        if fitting:
            spaces.remove(min(fitting))
        spaces.append((min(fitting) if fitting else 30) - size)
    plan = plan_packs(np.array(sizes), 30)
    assert sorted(plan.used.tolist()) == sorted(30 - space for space in spaces)


def test_a_plan_of_some_version_stays_as_it_is() -> None:
    """Steps of a training are packs: whoever changes the planner raises `PLAN_VERSION`, and this digest."""
    lengths = np.random.default_rng(0).lognormal(5, 1.2, 100_000).astype(np.int64)
    plan = plan_packs(lengths, 2048)
    content = b"".join(a.tobytes() for a in (plan.firsts, plan.rows, plan.parts, plan.used))
    assert (best_fit.PLAN_VERSION, blake3(content).hexdigest()[:16]) == (1, "e34f043929909600")


@settings(max_examples=60, deadline=None, print_blob=True)
@given(
    shards=SHARDS, split=st.integers(0, 2), length=st.integers(1, 25), group_rows=st.integers(1, 20),
    data=st.data(),
)  # fmt: skip
def test_packs_hold_rows_one_after_another_with_zeros_behind(
    shards: list[list[tuple[int, int]]], split: int, length: int, group_rows: int, data: st.DataObject
) -> None:  # fmt: skip
    source = ragged_rows([[(0, 4), *shards[0]], *shards[1:]])
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_fit, "GROUP_ROWS", group_rows)
        units = packs_of(source, Path(folder), SPLITS[split], length, others=("boxes",))
        wanted = parts_of(source, split, length)
        places, used = length * len(units.plan.used), sum(map(len, wanted))
        assert units.waste == pytest.approx(1 - used / places if places else 0)
        found = []
        for piece in units.pieces:
            if not piece.last:
                continue
            cut = data.draw(st.integers(0, piece.last - 1), label="cut")
            for part in (Piece(piece.shard, 0, cut), Piece(piece.shard, cut, piece.last)):
                if part.first < part.last:
                    found += samples_of(units, part)
        assert sorted(found) == wanted


def samples_of(units: PackUnits, piece: Piece) -> list[list[int]]:
    """Return the rows of a piece's packs, told apart as the samples say."""
    found = []
    loaded = units.load(WindowMap(units.shards, units.rows([piece])), [piece])
    lengths = units.lengths("tokens", [piece]).tolist()
    sequences = units.lengths("tokens.cu_seqlens", [piece]).tolist()
    assert loaded.ids.tolist() == [piece.shard << 32 | n for n in range(piece.first, piece.last)]
    assert loaded.batch(np.arange(1)) is None
    for place, (used, num_ends) in enumerate(zip(lengths, sequences, strict=True)):
        sample = loaded.sample(place)
        assert set(sample) == set(units.columns)
        ends = sample["tokens.cu_seqlens"].tolist()
        assert (ends[0], ends[-1], len(ends)) == (0, used, num_ends)
        tokens = sample["tokens"]
        assert tokens.shape == sample["tokens.positions"].shape == (units.length,)
        if units.others:
            assert sample["boxes"].tolist() == [[t, -t] for t in tokens.tolist()]
        assert not tokens[used:].any()
        assert not sample["tokens.positions"][used:].any()
        for begin, end in pairwise(ends):
            assert sample["tokens.positions"][begin:end].tolist() == list(range(end - begin))
            found.append(tokens[begin:end].tolist())
    return found


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_training_is_given_each_pack_once_and_the_same_batches_on_any_number_of_ranks(
    tmp_path: Path, ranks: int
) -> None:
    rng = np.random.default_rng(1)
    source = ragged_rows([[(0, int(n)) for n in rng.integers(0, 30, 40)] for _ in range(2)])
    units = packs_of(source, tmp_path, "train", 16)
    part = StreamPart(units=units, shards=units.shards)

    def batches(rank: int, world_size: int) -> list[dict[str, torch.Tensor]]:
        order = TrainOrder(
            dataset_id="d", pieces=units.pieces, global_batch=6, seed=1, window_rows=12, rank=rank,
            world_size=world_size, is_padded=True,
        )  # fmt: skip
        return list(SampleStream([part], order, Collate(units.columns)).batches())

    of_ranks = zip(*(batches(rank, ranks) for rank in range(ranks)), strict=True)
    found = []
    for batch, alone in zip(map(together, of_ranks), batches(0, 1), strict=True):
        assert all(torch.equal(batch[name], alone[name]) for name in alone if name != "weights")
        real = batch["weights"].numpy() > 0
        assert batch["tokens.mean_count"] == (batch["tokens"].numpy()[real] > 0).sum()
        for row in np.flatnonzero(real):
            ends = batch["tokens.cu_seqlens"][row, : batch["tokens.cu_seqlens.lengths"][row]]
            found += [batch["tokens"][row, a:b].tolist() for a, b in ends.unfold(0, 2, 1).tolist()]
    assert sorted(found) == parts_of(source, 0, 16)


def test_a_held_out_split_has_packs_of_its_own_rows(tmp_path: Path) -> None:
    source = ragged_rows([[(0, 5), (1, 3), (1, 4), (2, 8)], [(0, 9), (1, 5)]])
    units = packs_of(source, tmp_path, "validation", 8)
    order = HeldOutOrder(pieces=units.pieces, global_batch=2, window_rows=2)
    stream = SampleStream([StreamPart(units=units, shards=units.shards)], order, Collate(units.columns))  # fmt: skip
    (batch,) = stream.batches()
    assert batch["tokens"].tolist() == [[*range(6, 13), 0], [*range(30, 35), 0, 0, 0]]
    assert batch["tokens.cu_seqlens"].tolist() == [[0, 3, 7], [0, 5, 0]]
    assert batch["tokens.cu_seqlens.lengths"].tolist() == [3, 2]


def test_a_column_of_other_lengths_cannot_go_along(tmp_path: Path) -> None:
    units = packs_of(ragged_rows([[(0, 2), (0, 5)]]), tmp_path, "train", 8, others=("other",))
    message = "row 1 of shard .* has 2 values of other, expected 5 as of tokens"
    with pytest.raises(DataError, match=message):
        units.load(WindowMap(units.shards, units.rows(units.pieces)), units.pieces)


ROWS = [[(0, 5), (0, 0), (0, 9), (0, 3), (1, 4), (1, 7)], [(0, 6), (0, 2)]]


def test_a_plan_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = packs_of(ragged_rows(ROWS), tmp_path, "train", 8)
    pieces, content = units.pieces, units.plan.path.read_bytes()
    monkeypatch.setattr(PlanFile, "_made", None)
    assert replace(units).pieces == pieces
    assert units.plan.path.read_bytes() == content
    assert units.plan.path.relative_to(tmp_path) == Path("packs/tokens-8-v1-train.safetensors")
    assert [path.name for path in units.plan.path.parent.iterdir()] == [units.plan.path.name]


def test_a_store_that_cannot_be_written_to_costs_each_process_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = packs_of(ragged_rows(ROWS), tmp_path, "train", 8)
    (tmp_path / "packs").write_text("a file where the folder should be")
    alone = units.pieces
    (tmp_path / "packs").unlink()
    assert replace(units).pieces == alone
    assert samples_of(units, units.pieces[0]) == samples_of(replace(units), units.pieces[0])


def resealed(path: Path, change: Any) -> None:
    """Change the tensors of a plan, and give it the digest that fits."""
    with safe_open(path, framework="numpy") as file:
        document = json.loads(file.metadata()["plan"])
    tensors = load_file(path)
    change(tensors)
    digest = blake3()
    for name in ("packs", "firsts", "used", "rows", "parts"):
        digest.update(f"{name}{list(tensors[name].shape)}".encode() + tensors[name].tobytes())
    document["blake3"] = digest.hexdigest()
    save_file(tensors, path, {"plan": canonical_json(document)})


def put(name: str, place: int, value: int) -> Any:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[name][place] = value

    return change


def shorter(name: str) -> Any:
    return lambda tensors: tensors.update({name: tensors[name][:-1].copy()})


@pytest.mark.parametrize(
    "change",
    [
        put("packs", 1, 2**62), put("packs", 1, -1), put("packs", 2, 1), put("firsts", 1, 2**63 - 1),
        put("firsts", 1, 0), put("firsts", 2, -(2**63)), put("firsts", 0, 1), put("used", 0, 9),
        shorter("packs"), shorter("firsts"), shorter("used"), shorter("rows"), shorter("parts"),
        lambda t: t.update(rows=t["rows"].astype(np.int64)),
        lambda t: t.update(rows=t["rows"].reshape(-1, 1)),
    ],
)  # fmt: skip
def test_a_plan_that_is_no_plan_is_made_again(tmp_path: Path, change: Any) -> None:
    units = packs_of(ragged_rows(ROWS), tmp_path, "train", 8)
    content = units.pieces and units.plan.path.read_bytes()
    resealed(units.plan.path, change)
    assert units.plan.path.read_bytes() != content
    assert replace(units).pieces == units.pieces
    assert units.plan.path.read_bytes() == content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("rows", 0, 2**32 - 1), "contains row 4,294,967,295 of shard 0, whose train rows end before 4"),
        (put("rows", 0, 4), "contains row 4 of shard 0, whose train rows end before 4"),
        (put("rows", 0, 1), "contains values that the rows of shard 0 do not have"),
        (put("parts", 0, 2**32 - 1), "contains values that the rows of shard 0 do not have"),
        (put("used", 0, 3), "contains values that the rows of shard 0 do not have"),
    ],
)  # fmt: skip
def test_a_forged_plan_reads_nothing_outside_its_rows(
    tmp_path: Path, change: Any, message: str
) -> None:
    units = packs_of(ragged_rows(ROWS), tmp_path, "train", 8)
    assert units.pieces
    resealed(units.plan.path, change)
    forged = replace(units)
    with pytest.raises(DataError, match=f"packs/tokens-8-v1-train.safetensors {message}.*delete the file"):  # fmt: skip
        forged.load(WindowMap(forged.shards, forged.rows(forged.pieces)), forged.pieces)


def test_every_byte_of_a_plan_is_verified(tmp_path: Path) -> None:
    units = packs_of(ragged_rows(ROWS), tmp_path, "train", 8)
    pieces, path = units.pieces, units.plan.path
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert replace(units).pieces == pieces, place
    for end in (0, 7, 8, 100, len(content) - 1):
        path.write_bytes(content[:end])
        assert replace(units).pieces == pieces
        assert path.read_bytes() == content


def test_verify_finds_a_plan_that_is_damaged_or_forged(tmp_path: Path) -> None:
    units = packs_of(ragged_rows(ROWS), tmp_path, "train", 8)
    path, shards = units.plan.path, units.shards
    assert list(problems_of_plans(shards, deep=True)) == []
    content = path.read_bytes()
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    for damaged in (content[:-1], flipped, b"", content[8:], content + b"!"):
        path.write_bytes(damaged)
        (problem,) = problems_of_plans(shards, deep=False)
        assert problem == f"{path} is not a plan of packs for these shards, or is damaged"
    path.write_bytes(content)
    for name in (
        "tokens-9-v1-train",
        "tokens-8-v1-test",
        "boxes-8-v1-train",
        "none-8-v1-train",
        "x",
    ):
        path.with_stem(name).write_bytes(content)
        (problem,) = problems_of_plans(shards, deep=False)
        assert problem.startswith(str(path.with_stem(name)))
        path.with_stem(name).unlink()
    resealed(path, put("rows", 0, 1))
    assert list(problems_of_plans(shards, deep=False)) == []
    (problem,) = problems_of_plans(shards, deep=True)
    assert problem == f"{path} differs in rows from a new plan of the shards' rows"


def test_the_plan_of_another_dataset_is_not_used(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    first = packs_of(ragged_rows(ROWS), one, "train", 8)
    shuffled = [[*ROWS[0][:2], (0, 3), (0, 9), *ROWS[0][4:]], ROWS[1]]
    second = packs_of(ragged_rows(shuffled), other, "train", 8)
    assert first.pieces
    (other / "packs").mkdir()
    second_path = other / "packs" / first.plan.path.name
    second_path.write_bytes(first.plan.path.read_bytes())
    assert samples_of(second, second.pieces[0])
    assert second_path.read_bytes() != first.plan.path.read_bytes()


def test_a_plan_behind_a_symbolic_link_is_replaced(tmp_path: Path) -> None:
    units = packs_of(ragged_rows(ROWS), tmp_path, "train", 8)
    assert units.pieces
    path = units.plan.path.rename(tmp_path / "elsewhere")
    units.plan.path.symlink_to(path)
    assert replace(units).pieces == units.pieces
    assert not units.plan.path.is_symlink()
