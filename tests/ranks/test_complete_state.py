"""A model that keeps all it can between steps, killed where it hurts: it ends as if nothing had been."""

import json
from pathlib import Path

import pytest
import torch

from shardline.checkpoints.folder import last_step, list_saved
from shardline.ledger import read_ledger
from tests.support.processes import end_of_ranks
from tests.support.rotation import rotating
from tests.support.simulated_kills import flat

# It dies once at each line of the file `plan`: a moment, and how often it had come by then.
MODEL = """
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassRecall

from shardline.checkpoints.folder import last_step
from shardline.training.models.linear import Linear


def draw():
    return torch.rand(()) + random.random() + np.random.rand()


class Odd(Linear):
    def __init__(self, feature_shape, num_classes):
        super().__init__(feature_shape, num_classes)
        self.train_scores = MetricCollection(
            {"acc": MulticlassAccuracy(num_classes), "recall": MulticlassRecall(num_classes)}
        )
        self.noise = MeanMetric()
        self.register_buffer("trail", torch.zeros(()))
        self.register_buffer("epochs", torch.zeros(()))
        self.register_buffer("hidden", torch.zeros(()), persistent=False)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 0.01)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "drawn"}}

    def on_before_batch_transfer(self, batch, dataloader_idx):  # before the step's seeds are set
        features, *rest = batch
        return (features + 0.01 * draw(), *rest) if self.trainer.training else batch

    def on_train_epoch_start(self):
        self.epochs += 1

    def training_step(self, batch, batch_idx):
        own = self.epochs + self.trail + self.hidden  # of which each rank has its own
        loss = super().training_step(batch, batch_idx) * (1 + 0.1 * own)
        self.train_scores.update(self(batch[0]), batch[1])
        self.log("mean", loss, on_epoch=True, on_step=False, sync_dist=True)
        self.log("own_sum", loss, on_epoch=True, on_step=True, reduce_fx="sum")
        self.log("least", loss, on_epoch=True, on_step=False, reduce_fx="min")
        self.log_dict(self.train_scores, on_epoch=True, on_step=False)
        if batch_idx == 0:
            self.log("first", loss, on_epoch=True, on_step=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):  # after those of all callbacks
        self.trail = 0.9 * self.trail + 0.1 * outputs["loss"].detach()
        self.hidden = 0.5 * self.hidden + 0.1 * outputs["loss"].detach()
        self.die("batch", self.trainer.fit_loop.epoch_loop.total_batch_idx)

    def on_train_epoch_end(self):
        self.log("trail", self.trail)
        self.die("epoch", self.current_epoch)

    def on_validation_batch_start(self, *_):
        self.die("validation", self.current_epoch)

    def validation_step(self, batch, batch_idx):
        super().validation_step((batch[0] + 0.1 * draw(), batch[1]), batch_idx)
        self.noise.update(draw())
        self.log("noise", self.noise)
        self.log("drawn", draw(), sync_dist=True)

    def die(self, moment, count):
        plan = Path("plan")
        if self.global_rank or not plan.exists():
            return
        (now, *later) = plan.read_text().splitlines() or [""]
        name, number, _, saved = now.split() if now else ("", 0, "", 0)
        if name == moment and count == int(number):
            while last_step(Path("killed/work/checkpoints")) < int(saved):
                time.sleep(0.01)  # a save that is being written
            plan.write_text("\\n".join(later))
            os.kill(os.getpid(), signal.SIGKILL)
"""

# an epoch has 42 batches, two to a step: 8 and 18 are within an accumulation, 42 and 84 behind an epoch's end
PLAN = [
    "batch 8 after 3",
    "batch 18 after 9",
    "validation 0 after 18",
    "batch 42 after 21",
    "epoch 1 after 39",
    "batch 84 after 42",
    "batch 91 after 45",
    "batch 101 after 48",
]


def records(ranks, name):
    """Return the records of a training without their times."""
    lines = (ranks.root / name / "work/metrics.jsonl").read_text().splitlines()
    return [{**json.loads(line), "wall_s": 0} for line in lines]


def end_state(ranks, name):
    """Return weights, optimiser and schedule of the last state, all that the next step depends on."""
    (newest, *_) = list_saved(ranks.root / name / "work/checkpoints")
    state = torch.load(newest.path / "state.pt", map_location="cpu", weights_only=True)
    kept = (
        "state_dict",
        "optimizer_states",
        "lr_schedulers",
        "loops",
        "epoch",
        "global_step",
        "ranks",
    )
    return flat({key: state[key] for key in kept})


@pytest.mark.parametrize("devices", [3, *rotating(1, 2)])
def test_whatever_a_model_keeps_between_steps_survives_kills_where_it_hurts(
    prepare, tmp_path, devices
):
    (tmp_path / "odd.py").write_text(MODEL)
    batch = {"global_batch": 30} if devices == 3 else {}  # three ranks, two parts each, share it
    ranks = prepare(
        3,
        model="odd:Odd",
        devices=devices,
        **{"trainer.max_epochs": 3, "trainer.accumulate": 2, **batch},
    )
    ranks.train("whole")
    Path("plan").write_text("\n".join(PLAN))
    resumed = []
    for _ in PLAN:
        process = ranks.start("killed")
        output = end_of_ranks(process)
        assert process.returncode != 0, output
        resumed.append(last_step(ranks.root / "killed/work/checkpoints"))
    assert Path("plan").read_text() == "", "each moment came"
    output = ranks.train("killed")
    assert f"resuming from step {resumed[-1]}" in output
    assert resumed == sorted(resumed)
    assert ranks.model("killed") == ranks.model("whole")
    assert records(ranks, "killed") == records(ranks, "whole")
    assert end_state(ranks, "killed") == end_state(ranks, "whole")
    ledgers = [read_ledger(ranks.root / name / "work/ledger") for name in ("killed", "whole")]
    assert ledgers[0] == ledgers[1]
