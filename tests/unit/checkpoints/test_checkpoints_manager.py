"""Saving beside a training that goes on: a small one, in this process, on a real disk."""

import resource
import threading
import time
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset

from shardline.checkpoints.best import BestCheckpoint, ValidatedWeights
from shardline.checkpoints.boundaries import Cadence
from shardline.checkpoints.folder import last_step, list_saved, newest_good
from shardline.checkpoints.manager import CheckpointManager
from shardline.checkpoints.manifest import CheckpointPolicy
from shardline.checkpoints.writer import Snapshot
from shardline.errors import DataError

IDENTITY = "a" * 64


class Model(pl.LightningModule):
    """One layer; `at_step` is called when a batch begins."""

    def __init__(self, at_step=lambda step: None):
        super().__init__()
        self.layer, self.at_step = torch.nn.Linear(4, 1), at_step

    def training_step(self, batch, batch_idx):
        self.at_step(self.global_step)
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.1)


def fit(folder, model=None, *, epochs=2, kind=CheckpointManager, **policy):
    """Train epochs of 10 steps, from the newest state; return the manager."""
    torch.manual_seed(0)
    model = model or Model()
    best = BestCheckpoint(folder, ValidatedWeights(), monitor="val_loss", mode="min", top_k=1)
    manager = kind(folder, IDENTITY, CheckpointPolicy(**policy), best)
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[manager, best], logger=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    rows = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=4)
    trainer.fit(model, rows, rows, ckpt_path=manager.resume_from(trainer), weights_only=True)
    return manager


def test_steps_go_on_while_a_state_is_written(tmp_path):
    is_let_go, steps_before = threading.Event(), []

    class Held(CheckpointManager):
        def _write(self, state, shards):
            assert is_let_go.wait(60)
            super()._write(state, shards)

    def at_step(step):
        if last_step(tmp_path) == 0:
            steps_before.append(step)
        if step == 5:
            is_let_go.set()

    fit(tmp_path, Model(at_step), epochs=1, kind=Held, every_steps=3)
    assert {3, 4, 5} <= {*steps_before}, "steps were taken before the first state was on disk"
    assert last_step(tmp_path) == 10, "at the end all is on disk"


def test_a_save_waits_for_the_one_before_and_says_so_once(tmp_path, capsys):
    is_waited_for = threading.Event()

    class Slow(CheckpointManager):
        def _warn_if_slow(self, trainer):
            super()._warn_if_slow(trainer)
            if trainer.global_step > 1:
                is_waited_for.set()

        def _write(self, state, shards):
            assert is_waited_for.wait(60)  # the next save has come, and finds this one at work
            time.sleep(0.05)
            super()._write(state, shards)

    manager = fit(tmp_path, epochs=1, kind=Slow, every_steps=1, keep=99)
    assert (
        capsys.readouterr().out.count("the store is slow: the training checkpoint of step 1") == 1
    )
    assert [saved.step for saved in list_saved(tmp_path)] == [*range(10, 0, -1)]
    assert manager.seconds > 0.05, "the waiting counts"


def test_what_is_written_is_the_state_of_its_step(tmp_path):
    seen = {}

    class Watched(Model):
        def on_train_batch_end(self, *_):
            seen[self.global_step] = self.layer.weight.detach().clone()

    fit(tmp_path, Watched(), every_steps=3, keep=99)
    for saved in list_saved(tmp_path):
        state = torch.load(saved.path / "state.pt", weights_only=True)
        assert torch.equal(state["state_dict"]["layer.weight"], seen[saved.step])
    assert [saved.step for saved in list_saved(tmp_path)] == [20, 18, 15, 12, 10, 9, 6, 3]


def test_a_disk_that_takes_no_more_ends_the_training_in_one_sentence_and_keeps_what_there_is(
    tmp_path,
):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def at_step(step):
        if step == 12:
            while last_step(tmp_path) < 10:
                time.sleep(0.001)  # the write before this one is over
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))

    try:
        with pytest.raises(DataError, match="step-00000015.* could not be written: .*larger than"):
            fit(tmp_path, Model(at_step), every_steps=5, keep=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.glob(".*"))
    saved, passed = newest_good(tmp_path, IDENTITY)
    assert (saved.step, passed) == (10, [])
    assert fit(tmp_path).step_saved() == 20


def test_a_damaged_newest_state_is_said_and_the_one_before_it_finds_its_best_weights(
    tmp_path, capsys
):
    fit(tmp_path, epochs=2, keep=3)
    (tmp_path / "step-00000020/state.pt").write_bytes(b"torn")
    fit(tmp_path, epochs=3, keep=3)
    said = capsys.readouterr().out
    assert "step-00000020 is damaged: state.pt has 4 bytes" in said
    assert "resuming from step 10 instead" in said
    for saved in list_saved(tmp_path):
        for name in saved.best:
            assert load_file(tmp_path / name)["layer.weight"].shape == (1, 4)


def test_where_none_is_good_nothing_is_trained_anew_in_silence(tmp_path):
    fit(tmp_path)
    for saved in list_saved(tmp_path):
        (saved.path / "state.pt").unlink()
    with pytest.raises(DataError, match="no intact training checkpoint is left in .*delete it to"):
        fit(tmp_path)


def test_a_save_by_time_comes_when_the_clock_says_so_whatever_the_steps(monkeypatch):
    now = 0.0
    monkeypatch.setattr("shardline.checkpoints.boundaries.time.monotonic", lambda: now)
    trainer = SimpleNamespace(global_step=0, is_global_zero=True, world_size=1)
    cadence, due, asked = Cadence(0, 60.0), [], 0
    for _ in range(1000):
        trainer.global_step, now = trainer.global_step + 1, now + 0.1
        asked += trainer.global_step >= cadence._ask_at
        if cadence.is_due(trainer):
            due.append(trainer.global_step)
            cadence.begin(trainer.global_step)
    assert due == [600]
    assert asked < 40, "a rank is not asked at each step"


def test_a_snapshot_uses_its_memory_again_and_keeps_one_tensor_of_two_names_one():
    weights = torch.arange(4.0)
    snapshot = Snapshot()
    first = snapshot.take({"a": weights, "tied": [weights], "step": 1})
    weights += 1
    assert first["a"].tolist() == [0, 1, 2, 3]
    assert first["tied"][0] is first["a"]
    second = snapshot.take({"a": weights, "tied": [weights], "step": 2})
    assert second["a"].data_ptr() == first["a"].data_ptr()
    assert second["a"].tolist() == [1, 2, 3, 4]
