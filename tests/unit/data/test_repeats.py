"""Chance in a transform, behind a condition that few samples meet: which of it is found, and when."""

import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from shardline.config.resolved import DatasetPlace
from shardline.data import run_batches as run_batches
from shardline.data.repeats import places_to_repeat
from shardline.data.run_batches import RunBatches, number_of
from shardline.data.sample_stream import SampleStream
from shardline.data.transforms.repeat_check import check_samples
from shardline.data.transforms.transform_steps import TransformSpec
from shardline.errors import ConfigError
from tests.support.rare_chance import KINDS
from tests.unit.data.test_run_batches import place, settings, world

RARE = "tests.support.rare_chance:Rare"
# what other global states, another object, or the clock show within one process
IN_PROCESS = [kind for kind in (*KINDS, "object") if kind not in ("import", "cache")]
ROWS = 1900


def rare(kind: str, **given: Any) -> dict[str, Any]:
    return {"type": RARE, "kind": kind, **given}


def train(places: list[DatasetPlace], transform: Any, **data: Any) -> SampleStream:
    stream, _ = RunBatches(places, settings(transform=transform, **data)).train(world())
    assert isinstance(stream, SampleStream)
    return stream


# --- before the training --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", IN_PROCESS)
@pytest.mark.parametrize("has_chance", [True, False])
def test_chance_of_one_sample_in_200_is_found(kind: str, has_chance: bool) -> None:
    spec = TransformSpec(
        written=["tests.support.transforms:Half", rare(kind, rows=[60])],
        what="data.transform",
        has_chance=has_chance,
    )
    samples = [((1, 0, 0, row), {"x": np.full(2, row, np.float32)}) for row in range(200)]
    with pytest.raises(ConfigError, match=r"^120: data.transform.1=\S+:Rare (draws|gives two res)"):
        check_samples(spec, samples, lambda key: str(key[3]))


@pytest.mark.parametrize("rows", [6, 40, 300])
def test_every_part_is_looked_at_and_the_dataset_is_named(tmp_path: Path, rows: int) -> None:
    places = [place(tmp_path / "a", 30, 0, "1/2"), place(tmp_path / "b", rows, 1000, "1/2")]
    drawn = list(range(1000, 1000 + rows))
    found = (
        r"^dataset d-b, train split: row id \d+: data.transform=\S+:Rare draws random .* of random,"
    )
    with pytest.raises(ConfigError, match=found):
        train(places, rare("random", rows=drawn), epoch_samples=60)


def test_few_rows_are_looked_at_under_many_generators(tmp_path: Path) -> None:
    one = place(tmp_path / "a", 12, 0)
    with pytest.raises(ConfigError, match="Rare draws random numbers from the global generator"):
        train([one], rare("random", share=0.03))


def test_a_held_out_split_is_looked_at(tmp_path: Path) -> None:
    one = place(tmp_path / "a", 24, 0, split=1)
    of = settings(eval_transform=rare("time", rows=[20]))
    with pytest.raises(
        ConfigError, match="d-a, validation split: row id .* do not use random numbers in"
    ):
        RunBatches([one], of).held_out("validation", batch=4)


def test_a_slow_transform_is_looked_at_for_a_while_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = place(tmp_path / "a", 24, 0)
    train([one], "tests.support.transforms:Half")
    assert "transformed twice" not in capsys.readouterr().out
    monkeypatch.setattr(run_batches, "_CHECK_S", 0.0)
    train([one], "tests.support.transforms:Half")
    assert "data.transform: 4 samples were transformed twice before" in capsys.readouterr().out


# --- while training -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> DatasetPlace:
    """A dataset of one window, of more rows than the check looks at."""
    return place(tmp_path_factory.mktemp("large") / "a", ROWS, 0)


@pytest.fixture(scope="module")
def repeated(large: DatasetPlace) -> list[float]:
    """Values of the samples of the first epoch that are transformed twice; the check looks at none of them."""
    dataset = RunBatches([large], settings()).datasets[0]
    ids = np.concatenate([1000 * shard + np.arange(ROWS // 2) for shard in range(2)])
    parts = np.full(ROWS, number_of(dataset.key), np.uint64)
    chosen = ids[places_to_repeat(1, parts, np.zeros(ROWS, int), ids, 0)]
    return [float(2 * (row % 1000) + row // 1000) for row in chosen]


@pytest.mark.parametrize(
    ("kind", "workers"), [("default_rng", "threads:2"), ("object", 0), ("import", "processes:1")]
)
def test_chance_of_a_repeated_sample_ends_the_training(
    large: DatasetPlace, repeated: list[float], kind: str, workers: Any
) -> None:
    steps = ["tests.support.transforms:Half", rare(kind, rows=[one / 2 for one in repeated])]
    stream = train([large], steps, workers=workers)
    with pytest.raises(
        ConfigError,
        match=r"^dataset d-a, train split: row id \d+: data.transform.*:Rare gives two results for one sample and "
        r"equal generators, the second in another process .* draw all random numbers from the generator",
    ):
        list(stream.batches())


def test_a_transform_without_other_chance_trains_the_same_bits_and_leaves_global_chance_alone(
    large: DatasetPlace,
) -> None:
    noise = ["tests.support.rare_chance:Noise", "tests.support.transforms:Half"]
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    before = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    stream = train([large], noise)
    twice = [batch["x"] for epoch in range(2) for batch in stream.batches(epoch)]
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == before
    stream = train([large], noise)
    stream._repeats = None
    once = [batch["x"] for epoch in range(2) for batch in stream.batches(epoch)]
    assert all(torch.equal(*pair) for pair in zip(twice, once, strict=True))


def test_a_training_outlives_the_process_that_transforms_twice(
    large: DatasetPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = train([large], "tests.support.transforms:Half")
    before = set(psutil.Process().children())
    number = len(list(stream.batches(0)))
    (process,) = set(psutil.Process().children()) - before
    assert "has ended" not in capsys.readouterr().out
    process.send_signal(signal.SIGKILL)
    assert len(list(stream.batches(1))) == number
    assert "has ended, which repeated data.transform for some samples" in capsys.readouterr().out


# --- which samples --------------------------------------------------------------------------------


def test_the_choice_is_one_in_1000_and_a_function_of_seed_dataset_and_place() -> None:
    ids, ones = np.arange(200_000) - 1000, np.ones(200_000, np.uint64)
    chosen = set(ids[places_to_repeat(1, 7 * ones, ones, ids, 2)].tolist())
    assert 140 <= len(chosen) <= 260
    order = np.random.default_rng(5).permutation(len(ids))
    shuffled = places_to_repeat(1, 7 * ones, ones, ids[order], 2)
    assert chosen == set(ids[order][shuffled].tolist())
    assert shuffled.tolist() == sorted(shuffled.tolist())
    for seed, part, turn, epoch in ((2, 7, 1, 2), (1, 8, 1, 2), (1, 7, 2, 2), (1, 7, 1, 3)):
        other = places_to_repeat(seed, part * ones, turn * ones, ids, epoch)
        assert len(chosen & set(ids[other].tolist())) < 10


@pytest.mark.parametrize(("size", "least"), [(0, 0), (1, 0), (99, 0), (100, 1), (250, 1)])
def test_each_window_of_100_samples_has_one(size: int, least: int) -> None:
    found = []
    for window in range(200):
        ids, zeros = np.arange(window * size, (window + 1) * size), np.zeros(size, np.uint64)
        found.append(len(places_to_repeat(3, zeros, zeros, ids, 0)))
    assert min(found) == least
    assert sum(found) <= 200 * least + 0.003 * 200 * size
