"""Ranks load the Lightning that their model imports, in their own processes and in those that they start."""

from dataclasses import replace
from pathlib import Path

NETS = """
import importlib
import multiprocessing
import os
from pathlib import Path

import torch
from lightning import LightningModule


def record(kind):
    other = importlib.import_module("_".join(["pytorch", "lightning"]))  # as a library of the user may do, unseen
    Path(f"{kind}-{os.getpid()}").write_text(other.__name__)


class Mark:
    def __call__(self, sample, generator=None):
        record("worker")
        return sample


class Net(LightningModule):
    def __init__(self, feature_shape, num_classes):
        super().__init__()
        self.layer = torch.nn.Linear(feature_shape[0], num_classes)

    def on_train_start(self):
        record("rank")
        process = multiprocessing.get_context("spawn").Process(target=record, args=("spawned",))
        process.start()
        process.join()

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", self.training_step(batch, index))
"""


def test_each_process_of_a_training_has_the_copy_that_the_model_imports(tmp_path: Path, prepare):
    (tmp_path / "nets.py").write_text(NETS)
    row = {"data.transform": "nets:Mark", "data.workers": 1, "trainer.max_epochs": 1}
    ranks = prepare(devices=1, model="nets:Net", **row)
    assert ranks.lightning == ("lightning",)
    replace(ranks, is_by_torchrun=True).train("first")
    found = {
        kind: [one.read_text() for one in tmp_path.glob(f"{kind}-*")]
        for kind in ("rank", "spawned", "worker")
    }
    assert found["rank"] == found["spawned"] == ["lightning.pytorch"]
    assert set(found["worker"]) == {"lightning.pytorch"}
    assert ranks.provenance("first")["software"]["lightning"].startswith("2.")
