"""What Shardline's own streams do with samples, a program gets by `shardline_io`: the same bits from any step on."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

import shardline_io as io
from shardline.config.resolved import DatasetPlace
from shardline.config.settings.run_settings import Data, Pack, RunSettings, Trainer
from shardline.core.files import write_json
from shardline.data.run_batches import RunBatches
from shardline.ledger import read_samples
from shardline.records.base import encode
from shardline_io.errors import ConfigError, DataError
from tests.support.columns import Given, manifest_of
from tests.support.script_rank import as_rank, world_of, write_run

HERE = __name__
COLUMNS = {"tokens": "uint16[*]", "x": "float32[2]", "name": "text", "labels": "int64"}


class Noise:
    """Adds chance to x, in training."""

    def __call__(self, sample: dict[str, Any], generator: Any = None) -> dict[str, Any]:
        chance = generator.normal() if generator else 1.0
        return {**sample, "x": sample["x"] + np.float32(chance)}


def as_pair(samples: Sequence[Mapping[str, Any]], longest: Mapping[str, int]) -> Any:
    return torch.tensor([float(one["x"].sum()) for one in samples]), dict(longest)


def as_dict(samples: Sequence[Mapping[str, Any]], longest: Mapping[str, int]) -> Any:
    return {"sum": torch.tensor([float(one["x"].sum()) for one in samples]), "longest": longest}


DATA = {
    "transform": {"transform": f"{HERE}:Noise", "workers": 0},
    "in threads": {"transform": f"{HERE}:Noise", "workers": "threads:2"},
    "eval": {"eval_transform": f"{HERE}:Noise"},
    "lengths": {"collate": {"type": "pad", "lengths": {"tokens": 8}, "multiple": 4}},
    "nested": {"collate": "nested"},
    "pair": {"collate": f"{HERE}:as_pair"},
    "dict": {"collate": f"{HERE}:as_dict"},
    "blocks": {"pack": Pack(column="tokens", length=5)},
    "packs": {"pack": Pack(column="tokens", length=8, method="best_fit")},
    "classes": {"class_weights": {"a": 1.0, "b": 3.0}, "epoch_samples": 24},
    "mix": {"epoch_samples": 36},
    "mix in parts": {"transform": f"{HERE}:Noise", "workers": 0},
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[DatasetPlace]:
    """Return two datasets of the same columns."""
    found = []
    for number, rows in enumerate((40, 26)):
        folder = tmp_path_factory.mktemp("datasets") / f"d{number}"
        folder.mkdir()
        chance = np.random.default_rng(number)
        written = [
            (int(place % 4 == 3), {"tokens": np.arange(chance.integers(0, 8), dtype=np.uint16).tolist(),
             "x": chance.normal(size=2).astype(np.float32).tolist(), "name": f"row {place}", "labels": place % 2})
            for place in range(rows)
        ]  # fmt: skip
        source = Given(COLUMNS, [written[::2], written[1::2]], classes=("a", "b"))
        manifest = structs.replace(manifest_of(source, folder), dataset=f"d-{number:012d}")
        write_json(folder / "manifest.json", encode(manifest))
        weight = ("2/3", "1/3")[number]
        found.append(DatasetPlace(manifest=folder / "manifest.json", shards=folder, weight=weight))
    return found


def reads_of(places: Sequence[DatasetPlace], **others: Any) -> str:
    datasets = [
        {"manifest": str(one.manifest), "shards": str(one.shards), "weight": one.weight}
        for one in places
    ]
    return json.dumps({"datasets": datasets, "verify": "off", **others})


def rank_of(
    folder: Path, places: Sequence[DatasetPlace], wanted: RunSettings, rank: int, ranks: int
) -> Any:
    write_run(folder, wanted)
    first = {"MANIFEST": str(places[0].manifest), "SHARDS": str(places[0].shards)}
    rows = (
        RunBatches(places, wanted, verify="off").datasets[0].window_rows(wanted.data.window_bytes)
    )
    variables = {**first, "WINDOW_ROWS": str(rows), "READS": reads_of(places)}
    return as_rank(folder, rank, ranks, **variables)


def same(found: Any, other: Any) -> bool:
    if isinstance(other, torch.Tensor):
        if other.is_nested:
            return all(map(torch.equal, found.unbind(), other.unbind()))
        return np.array_equal(found, other.numpy()) and found.dtype == other.numpy().dtype
    return bool(found == other)


def assert_same(batch: io.Batch, other: Any, *, is_users: bool) -> None:
    if isinstance(other, tuple) and is_users:
        assert (batch, batch.collated[1]) == ({}, other[1])
        assert torch.equal(batch.collated[0], other[0])
        return
    assert batch.keys() == other.keys()
    assert all(same(batch[name], values) for name, values in other.items())


@settings(max_examples=30, deadline=None, print_blob=True)
@given(
    kind=st.sampled_from(sorted(DATA)),
    ranks=st.sampled_from([1, 2, 3]),
    accumulate=st.sampled_from([1, 2]),
    window_bytes=st.integers(1, 4000),
    share=st.floats(0, 1),
)
def test_batches_are_those_of_shardlines_stream_from_any_step_on(
    places: list[DatasetPlace], tmp_path_factory: pytest.TempPathFactory,
    kind: str, ranks: int, accumulate: int, window_bytes: int, share: float,
) -> None:  # fmt: skip
    used = places if kind.startswith("mix") else places[:1]
    data: dict[str, Any] = DATA[kind]
    wanted = RunSettings(
        global_batch=6 if accumulate == 1 else 12,
        seed=5,
        data=Data(window_bytes=window_bytes, **data),
        trainer=Trainer(accumulate=accumulate, max_epochs=2),
    )
    folder = tmp_path_factory.mktemp("run")
    is_users = kind in ("pair", "dict")
    for rank in range(ranks):
        run_batches = RunBatches(used, wanted, verify="off")
        stream, order = run_batches.train(world_of(rank, ranks))
        total = order.steps(0) + order.steps(1)
        done = round(share * total)
        expected = [
            (stream.batch_ids.tolist(), batch) for e in (0, 1) for batch in stream.batches(e)
        ]
        held, _ = run_batches.held_out("validation", batch=6, rank=rank, world_size=ranks)
        expected_held = [(held.batch_ids.tolist(), batch) for batch in held.batches()]
        with rank_of(folder, used, wanted, rank, ranks):
            assert io.num_steps() == total
            found = list(io.train(done))
            again = [list(io.held_out("validation", batch=6)) for _ in range(2)][1]
        assert len(found) == len(expected) - done * accumulate
        for place, (batch, (ids, other)) in enumerate(
            zip(found, expected[done * accumulate :], strict=True)
        ):
            assert (batch.step, batch.ids.tolist()) == (done + place // accumulate + 1, ids)
            assert_same(batch, other, is_users=is_users)
        for batch, (ids, other) in zip(again, expected_held, strict=True):
            assert batch.ids.tolist() == ids
            assert_same(batch, other, is_users=is_users)


def test_the_ledger_tells_part_and_pass_of_a_mix(
    places: list[DatasetPlace], tmp_path: Path
) -> None:
    wanted = RunSettings(global_batch=6, data=Data(epoch_samples=12), trainer=Trainer(max_epochs=1))
    with rank_of(tmp_path, places, wanted, 0, 1) as patch:
        patch.setenv("SHARDLINE_LEDGER", str(tmp_path / "ledger"))
        found = [
            list(zip(batch.parts.tolist(), batch.passes.tolist(), batch.ids.tolist(), strict=True))
            for batch in io.train()
            if batch.parts is not None and batch.passes is not None
        ]
    assert [*read_samples(tmp_path / "ledger").values()] == found
    assert {part for batch in found for part, _, _ in batch} == {0, 1}


def test_code_that_has_moved_since_the_run_was_resolved_is_found(
    places: list[DatasetPlace], tmp_path: Path
) -> None:
    wanted = RunSettings(global_batch=6, data=Data(transform="gone:Noise"))
    now = msgspec.to_builtins(Data(transform=f"{HERE}:Noise", workers=0))
    with rank_of(tmp_path, places[:1], wanted, 0, 1) as patch:
        patch.setenv("SHARDLINE_READS", reads_of(places[:1], data=now))
        assert len(next(io.train()).ids) == 6


@pytest.fixture
def without_shardline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shardline.data.run_batches", None)


@pytest.mark.usefixtures("without_shardline")
@pytest.mark.parametrize(
    ("kind", "setting"),
    [("transform", "data.transform"), ("blocks", "data.pack"), ("mix", "a mix")],
)
def test_a_python_without_shardline_is_told_what_needs_it(
    places: list[DatasetPlace], tmp_path: Path, kind: str, setting: str
) -> None:
    data: dict[str, Any] = DATA[kind]
    wanted = RunSettings(global_batch=6, data=Data(**data))
    used = places if kind == "mix" else places[:1]
    message = f"the run has {setting}.*cannot import shardline .*; install shardline in that"
    with rank_of(tmp_path, used, wanted, 0, 1):
        with pytest.raises(ConfigError, match=message):
            next(io.train())
        with pytest.raises(ConfigError, match=message):
            next(io.validation())


def test_a_mix_names_a_split_that_it_lacks(places: list[DatasetPlace], tmp_path: Path) -> None:
    with rank_of(tmp_path, places, RunSettings(global_batch=6), 0, 1):
        with pytest.raises(DataError, match="no rows in the split 'tset'"):
            next(io.held_out("tset"))
        with pytest.raises(DataError, match="the test split of d-.* has no rows"):
            next(io.test())
