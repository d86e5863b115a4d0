"""What a step does not pay for: idle hooks, lazy seeding, and memory that grows."""

from types import SimpleNamespace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_lightning.callbacks import Callback, LambdaCallback
from torch.utils.data import DataLoader, TensorDataset

from shardline.training import stopwatch
from shardline.training.goodput import Timeline
from shardline.training.optimizer_steps import StepSeeds
from shardline.training.step_all_reduce import StepAllReduce
from shardline.training.stopwatch import Stopwatch
from shardline.training.trainer import LeanSteps
from shardline_io import heartbeat_memory

CPU = torch.device("cpu")


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).sum()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(*callbacks: Callback) -> pl.Trainer:
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, callbacks=[*callbacks, LeanSteps()], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2))
    return trainer


def test_hooks_that_do_something_are_called_and_idle_ones_are_not(monkeypatch):
    called = []

    class Own(Callback):
        def on_after_backward(self, trainer, pl_module):
            called.append("own")

    given_later = LambdaCallback(on_before_zero_grad=lambda *_: called.append("lambda"))
    idle = Callback()
    for name in ("on_train_batch_start", "on_train_batch_end", "on_before_optimizer_step"):
        monkeypatch.setattr(Callback, name, lambda *_: called.append("idle"))
    fit(Own(), given_later, idle)
    assert sorted(called) == ["lambda"] * 3 + ["own"] * 3


@given(seed=st.integers(0, 2**31), batch=st.integers(0, 99), rank=st.integers(0, 7))
def test_a_step_is_seeded_as_by_torchs_own_function(seed, batch, rank):
    seeds = StepSeeds(seed, rank, 3)
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=CPU), current_epoch=2)
    seeds.on_train_start(trainer, None)
    seeds.on_train_batch_start(trainer, None, None, batch)
    value = int(np.random.get_state()[1][0])  # what NumPy was seeded with
    drawn = torch.rand(5)
    torch.manual_seed(value)
    assert torch.equal(drawn, torch.rand(5))


def test_readings_are_kept_in_fixed_memory_the_newest_of_them_in_order(monkeypatch):
    monkeypatch.setattr(stopwatch, "_READINGS_KEPT", 4)
    timeline = Timeline(0.0)
    clock = iter(range(100))
    monkeypatch.setattr(timeline, "stepping_s", lambda: float(sum(range(next(clock)))))
    watch = Stopwatch(timeline, 1, lambda *_: None)
    trainer = SimpleNamespace(global_step=0)
    watch.on_train_start(trainer, None)
    size = len(watch._readings)
    for step in range(1, 8):
        trainer.global_step = step
        watch.on_train_batch_end(trainer)
        assert watch.readings == list(range(max(0, step - 4), step))
    assert len(watch._readings) == size


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(heartbeat_memory, "_mine", heartbeat_memory.HeartbeatMemory())
    return heartbeat_memory.mine()


def test_a_step_is_read_one_later_and_a_reason_to_stop_comes_with_it(asked):
    agreement = StepAllReduce()
    agreement.start(CPU)
    for step in range(1, 5):
        reading = agreement.read()
        assert (reading and reading.step) == (step - 1 or None)
        assert agreement.stop_reason is None
        agreement.begin(float(step), step=step, epoch=0, lr=0.1)
    asked.request_stop("preempted")
    agreement.begin(float("nan"), step=5, epoch=0, lr=0.1)
    last = agreement.read_all()[-1]
    assert (last.step, last.largest, agreement.stop_reason) == (5, float("inf"), "preempted")
    agreement.start(CPU)
    assert agreement.stop_reason is None
    assert agreement.read_all() == []
