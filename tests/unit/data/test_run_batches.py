"""What a run's settings make of its datasets: which batches, of which rows, and what is refused."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from shardline.config.resolved import DatasetPlace
from shardline.config.settings.run_settings import Data, Pack, RunSettings
from shardline.core.files import write_json
from shardline.core.world import World
from shardline.data.columns import Column
from shardline.data.datamodule import Normalizer, ShardDataModule
from shardline.data.run_batches import RunBatches
from shardline.data.sample_stream import SampleStream
from shardline.data.stream import ShardStream
from shardline.errors import ConfigError, DataError
from shardline.records.base import encode
from shardline_io.order.blocks import BlockOrder
from shardline_io.order.held_out import HeldOutOrder
from tests.support.columns import Given, manifest_of, together

COLUMNS = {"x": Column(dtype="float32", shape=(2,)), "n": Column(dtype="int32", varies=True)}
TABLE = {"features": Column(dtype="float32", shape=(2,)), "labels": Column(dtype="int64")}
HERE = __name__


class Noise:
    """Adds chance to x."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        return {**sample, "x": sample["x"] + np.float32(self.scale * generator.normal())}


class Twice:
    """Doubles x, in held-out splits as well."""

    def __call__(self, sample: dict[str, Any], generator: Any = None) -> dict[str, Any]:
        return {**sample, "x": 2 * sample["x"]}


class Global:
    """Draws from the generator of the whole process."""

    def __call__(self, sample: dict[str, Any], generator: Any) -> dict[str, Any]:
        return {**sample, "x": sample["x"] + random.random()}


class AsTable:
    """Makes features and a label of x."""

    def __call__(self, sample: dict[str, Any], generator: Any = None) -> dict[str, Any]:
        return {"features": sample["x"], "labels": np.int64(len(sample["n"]))}


def totals(samples: Sequence[Mapping[str, Any]], longest: Mapping[str, int]) -> Any:
    return torch.tensor([float(sample["x"].sum()) for sample in samples]), longest["n"]


def world(rank: int = 0, ranks: int = 1) -> World:
    return World(
        rank=rank, local_rank=rank, world_size=ranks, local_world_size=ranks, master_addr="", master_port=0,
        launcher="none",
    )  # fmt: skip


def place(folder: Path, rows: int, first: int, weight: str = "1", split: int = 0) -> DatasetPlace:
    """Build a dataset of rows x = (i, i), n = i % 4 numbers, of i from `first` on."""
    values = [
        (split, {"x": np.full(2, i, np.float32), "n": np.arange(i % 4, dtype=np.int32)})
        for i in range(first, first + rows)
    ]
    values += [(0, {"x": np.zeros(2), "n": []})] * (split > 0)
    return built(folder, Given(COLUMNS, [values[::2], values[1::2]]), weight)


def built(folder: Path, source: Given, weight: str = "1") -> DatasetPlace:
    folder.mkdir()
    manifest = structs.replace(manifest_of(source, folder), dataset=f"d-{folder.name}")
    write_json(folder / "manifest.json", encode(manifest))
    return DatasetPlace(manifest=folder / "manifest.json", shards=folder, weight=weight)


def settings(global_batch: int = 12, **data: Any) -> RunSettings:
    return RunSettings(global_batch=global_batch, data=Data(**data))


def batches(
    places: Sequence[DatasetPlace], of: RunSettings, rank: int = 0, ranks: int = 1, epochs: int = 2
) -> Iterator[Any]:
    stream, _ = RunBatches(places, of).train(world(rank, ranks))
    for epoch in range(epochs):
        yield from stream.batches(epoch)


def test_rows_as_they_are_stored_are_streamed_by_columns(tmp_path: Path) -> None:
    one = place(tmp_path / "a", 24, 0)
    assert isinstance(RunBatches([one], settings()).train(world())[0], ShardStream)
    for data in (
        {"transform": f"{HERE}:Twice"},
        {"collate": "nested"},
        {"collate": {"type": "pad", "multiple": 2}},
    ):
        stream, order = RunBatches([one], settings(**data)).train(world())
        assert isinstance(stream, SampleStream)
        plain, expected = RunBatches([one], settings()).train(world())
        assert order == expected
        list(stream.batches())
        list(plain.batches())
        assert stream.batch_ids.tolist() == plain.batch_ids.tolist()


@pytest.mark.parametrize("workers", [0, 1, 3, "threads:2", "auto"])
def test_a_transform_gives_the_same_bits_wherever_it_runs(tmp_path: Path, workers: Any) -> None:
    one = place(tmp_path / "a", 48, 0)
    transform = [{"type": f"{HERE}:Noise", "scale": 0.5}, f"{HERE}:Twice"]
    alone = list(batches([one], settings(transform=transform, workers=0)))
    plain = list(batches([one], settings()))
    noise = [b["x"] / 2 - p["x"] for b, p in zip(alone, plain, strict=True)]
    assert torch.unique(torch.cat(noise)).numel() > 90  # each row's, in each epoch, is another
    of = settings(transform=transform, workers=workers)
    ranks = [batches([one], of, rank, 2) for rank in range(2)]
    for whole, parts in zip(alone, zip(*ranks, strict=True), strict=True):
        joined = together(parts)
        assert all(torch.equal(whole[name], joined[name]) for name in whole)


def test_datasets_are_mixed_by_weight(tmp_path: Path) -> None:
    places = [place(tmp_path / "a", 10, 0, "7/10"), place(tmp_path / "b", 100, 1000, "3/10")]
    found = list(batches(places, settings(20, epoch_samples=100), epochs=3))
    assert len(found) == 15
    of_first = [int((batch["x"][:, 0] < 1000).sum()) for batch in found]
    assert of_first == [14] * 15
    counts = Counter(int(x) for batch in found for x in batch["x"][:, 0])
    assert {counts[i] for i in range(10)} == {21}
    assert {counts[i] for i in range(1000, 1100)} <= {0, 1}
    # an epoch is as long as all rows together, where nothing else is said
    assert len(list(batches(places, settings(20), epochs=1))) == 110 // 20
    stream, _ = RunBatches(places, settings(20)).train(world())
    batch = next(stream.batches())
    assert (stream.batch_parts == (batch["x"][:, 0].numpy() >= 1000)).all()


def test_held_out_rows_of_a_mix_come_once_and_are_transformed_without_chance(
    tmp_path: Path,
) -> None:
    places = [place(tmp_path / "a", 10, 0, split=1), place(tmp_path / "b", 7, 1000, split=1)]
    run_batches = RunBatches(places, settings(eval_transform=f"{HERE}:Twice"))
    stream, order = run_batches.held_out("validation", batch=4)
    assert order.num_rows == 17
    values = [int(x) // 2 for batch in stream.batches() for x in batch["x"][:, 0]]
    assert sorted(values) == [*range(10), *range(1000, 1007)]


@pytest.mark.parametrize("kind", [HeldOutOrder, BlockOrder])
@pytest.mark.parametrize("rows", [1, 3, 5, 100])
def test_a_split_that_is_read_once_has_the_same_batches_in_smaller_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, kind: Any
) -> None:
    places = [place(tmp_path / "a", 10, 0, split=1), place(tmp_path / "b", 7, 1000, split=1)]
    monkeypatch.setattr("shardline.data.run_batches._ONCE_ROWS", rows)
    for used in (places[:1], places):
        run_batches = RunBatches(used, settings())
        found: list[list[Any]] = []
        for epochs in (None, 1):
            stream, order = run_batches.held_out(
                "validation", batch=3, kind=kind, num_epochs=epochs
            )
            assert (order.window_rows == rows) == (epochs == 1)
            found.append([{name: of.tolist() for name, of in b.items()} for b in stream.batches()])
        assert found[0] == found[1]
        assert len(found[0]) == -(-order.num_rows // 3)


def test_classes_are_drawn_by_weight(tmp_path: Path) -> None:
    rows = [
        (0, {"features": np.full(2, i, np.float32), "labels": np.int64(i % 10 == 0)})
        for i in range(60)
    ]
    one = built(tmp_path / "a", Given(TABLE, [rows[:20], rows[20:]], classes=("common", "rare")))
    labels = [batch[1] for batch in batches([one], settings(10, class_weights="balanced"))]
    assert [int(of.sum()) for of in labels] == [5] * 12
    weights = {"common": 4, "rare": 1}
    labels = [batch[1] for batch in batches([one], settings(10, class_weights=weights))]
    assert [int(of.sum()) for of in labels] == [2] * 12
    with pytest.raises(
        ConfigError, match=r"data.class_weights=.* names odd, expected classes .* common, rare"
    ):
        RunBatches([one], settings(10, class_weights={"odd": 1.0})).train(world())


def test_a_transform_may_make_a_table(tmp_path: Path) -> None:
    one = place(tmp_path / "a", 24, 0)
    features, labels = next(batches([one], settings(transform=f"{HERE}:AsTable")))
    assert labels.tolist() == [int(x) % 4 for x in features[:, 0]]


def test_a_users_function_makes_batches(tmp_path: Path) -> None:
    one = place(tmp_path / "a", 24, 0)
    found = list(batches([one], settings(collate=f"{HERE}:totals")))
    assert sorted(int(x) // 2 for batch, _ in found for x in batch) == sorted([*range(24)] * 2)
    assert {longest for _, longest in found} == {3}


def test_lengths_are_chosen(tmp_path: Path) -> None:
    one = place(tmp_path / "a", 24, 0)
    batch = next(batches([one], settings(collate={"type": "pad", "lengths": {"n": 5}})))
    assert batch["n"].shape == (12, 5)
    batch = next(batches([one], settings(collate={"type": "pad", "multiple": 4})))
    assert batch["n"].shape == (12, 4)
    batch = next(batches([one], settings(collate="nested")))
    assert batch["n"].is_nested
    assert [len(row) for row in batch["n"].unbind()] == [int(x) % 4 for x in batch["x"][:, 0]]


def test_statistics_of_a_mix_are_those_of_all_rows(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    rows = [
        (0, {"features": row, "labels": np.int64(0)})
        for row in generator.normal(3, 2, (30, 2)).astype(np.float32)
    ]
    parts = [Given(TABLE, [rows[:10]], classes=("a",)), Given(TABLE, [rows[10:]], classes=("a",))]
    places = [built(tmp_path / str(n), part, "1/2") for n, part in enumerate(parts)]
    whole = built(tmp_path / "all", Given(TABLE, [rows], classes=("a",)))
    constants = [
        Normalizer(RunBatches(of, settings()), "standard", torch.float64).constants
        for of in (places, [whole])
    ]
    for mine, expected in zip(*constants, strict=True):
        assert torch.allclose(mine, expected, rtol=1e-6)


def test_what_cannot_be_streamed_is_refused_at_once(tmp_path: Path) -> None:
    one = place(tmp_path / "a", 24, 0)
    other = built(tmp_path / "b", Given({"x": COLUMNS["x"]}, [[(0, {"x": np.zeros(2)})]]))
    with pytest.raises(
        DataError, match=r"dataset d-b has the columns x: float32\[2\] .* expected .* n: int32"
    ):
        RunBatches([one, other], settings())
    with pytest.raises(
        ConfigError, match=r"Global draws random numbers from the global generator of random"
    ):
        next(batches([one], settings(transform=f"{HERE}:Global")))
    with pytest.raises(ConfigError, match=r"data.collate=nowhere:f does not import"):
        next(batches([one], settings(collate="nowhere:f")))
    with pytest.raises(DataError, match="dataset d-a: the test split has no rows"):
        RunBatches([one], settings(eval_transform=f"{HERE}:Twice")).held_out("test", batch=4)


TEXTS = {
    "tokens": Column(dtype="uint16", varies=True),
    "mask": Column(dtype="bool", varies=True),
    "size": Column(dtype="int64"),
}


def texts(folder: Path, lengths: Sequence[int] = (7, 2, 5, 9, 4)) -> DatasetPlace:
    """Build a dataset of tokens that count up from 1, of which the mask has the even ones."""
    rows, value = [], 1
    for length in (*lengths, 6):
        tokens = np.arange(value, value + length, dtype=np.uint16)
        rows.append({"tokens": tokens, "mask": tokens % 2 == 0, "size": length})
        value += length
    splits = [0] * len(lengths) + [1]
    return built(folder, Given(TEXTS, [list(zip(splits, rows, strict=True))]))


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_a_mask_goes_along_with_the_tokens_that_are_packed(tmp_path: Path, method: Any) -> None:
    pack = Pack(column="tokens", length=6, method=method, with_=["mask"])
    seen: list[int] = []
    for batch in batches([texts(tmp_path / "a")], settings(2, pack=pack), epochs=1):
        assert batch["mask"].dtype == torch.bool
        assert batch["mask"].shape == (2, 6)
        tokens = batch["tokens"].int()
        assert torch.equal(batch["mask"], (tokens % 2 == 0) & (tokens > 0))
        assert ("tokens.mean_count" in batch) == (method == "best_fit")
        seen += tokens[tokens > 0].tolist()
    assert len(set(seen)) == len(seen) >= 20


@pytest.mark.parametrize(
    ("column", "along", "message"),
    [
        ("token", [], "data.pack.column names 'token', which does not exist in dataset d-a.*did you mean \"tokens\""),
        ("tokens", ["masks"], "data.pack.with names 'masks', which does not exist .*(tokens, mask).*\"mask\""),
        ("tokens", ["size"], "data.pack.with names 'size', which is int64 .*first dimension varies"),
    ],
)  # fmt: skip
def test_a_column_that_cannot_be_packed_is_named_with_its_key(
    tmp_path: Path, column: str, along: list[str], message: str
) -> None:
    pack = Pack(column=column, length=6, with_=along)
    with pytest.raises(ConfigError, match=message):
        RunBatches([texts(tmp_path / "a")], settings(2, pack=pack)).train(world())


@pytest.mark.parametrize(
    ("method", "number", "waste", "sentence"),
    [
        ("concat", 4, 3 / 27, "data.pack makes samples of 6 tokens: 4 blocks from dataset d-a (11.11 % of the values "
         "are in no block)"),
        ("best_fit", 5, 3 / 30, "data.pack makes samples of 6 tokens: 5 packs from dataset d-a (10.00 % of their "
         "space is empty)"),
    ],
)  # fmt: skip
def test_what_packs_waste_is_printed_and_recorded_by_the_first_rank(
    tmp_path: Path, capsys: Any, method: Any, number: int, waste: float, sentence: str
) -> None:
    one = texts(tmp_path / "a")
    of = settings(2, pack=Pack(column="tokens", length=6, method=method))
    found = ShardDataModule(of, [one], world()).packs
    assert found
    assert (found.method, found.column, found.length) == (method, "tokens", 6)
    (packed,) = found.datasets
    assert (packed.id, packed.number, packed.waste) == (
        "d-a",
        number,
        pytest.approx(waste, abs=1e-6),
    )
    assert capsys.readouterr().out == sentence + "\n"
    assert RunBatches([place(tmp_path / "b", 12, 0)], settings()).packs() is None


def test_other_ranks_print_nothing_of_packs(tmp_path: Path, capsys: Any) -> None:
    one = texts(tmp_path / "a")
    of = settings(2, pack=Pack(column="tokens", length=1))
    assert ShardDataModule(of, [one], world(1, 2)).packs is None
    assert capsys.readouterr().out == ""
