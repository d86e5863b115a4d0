"""Two ranks that validate with averages: a kill in mid-validation changes nothing, and the averages are sealed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from shardline.checkpoints.folder import list_saved
from tests.support.processes import end_of_ranks

# Rank 0 dies in its second validation while the file `dies` is there.
MODEL = """
import os
import signal
from pathlib import Path

import torch
from pytorch_lightning.callbacks import EMAWeightAveraging, StochasticWeightAveraging

from shardline.training.models.linear import Linear


class Average(Linear):
    def __init__(self, feature_shape, num_classes):
        super().__init__(feature_shape, num_classes)
        self.norm = torch.nn.BatchNorm1d(feature_shape[0])

    def configure_callbacks(self):
        return [CALLBACK]

    def forward(self, features):
        return super().forward(self.norm(features))

    def validation_step(self, batch, batch_idx):
        if self.current_epoch == 1 and self.global_rank == 0 and Path("dies").exists():
            Path("dies").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        super().validation_step(batch, batch_idx)
"""


def records(ranks, name):
    lines = (ranks.root / name / "work/metrics.jsonl").read_text().splitlines()
    return [{**json.loads(line), "wall_s": 0} for line in lines]


@pytest.mark.parametrize(
    ("callback", "validations"),
    [
        ("EMAWeightAveraging(decay=0.8)", 3),
        ("StochasticWeightAveraging(0.05, swa_epoch_start=1)", 4),
    ],
    ids=["moving", "stochastic"],
)
def test_averages_are_validated_sealed_and_resumed(prepare, tmp_path, callback, validations):
    (tmp_path / "average.py").write_text(MODEL.replace("CALLBACK", callback))
    ranks = prepare(5, model="average:Average", devices=2, **{"trainer.max_epochs": 3})
    ranks.train("whole")
    Path("dies").touch()
    killed = ranks.start("killed")
    end_of_ranks(killed)
    assert killed.returncode != 0
    assert not Path("dies").exists()
    assert "resuming from step" in ranks.train("killed")
    assert ranks.model("killed") == ranks.model("whole")
    assert records(ranks, "killed") == records(ranks, "whole")
    assert sum("val_loss" in one for one in records(ranks, "whole")) == validations
    for name in ("killed", "whole"):
        check = ranks.provenance(name)["sealed_check"]
        assert check["is_repeated"], check
        assert check["differences"] == []
    (newest, *_) = list_saved(ranks.root / "whole/work/checkpoints")
    state = torch.load(newest.path / "state.pt", map_location="cpu", weights_only=True)
    sealed = load(ranks.model("whole"))
    trained = {key.removeprefix("module."): one for key, one in state["state_dict"].items()}
    assert sealed.keys() == trained.keys()
