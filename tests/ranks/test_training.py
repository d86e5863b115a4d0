"""Real ranks over gloo: the same bits twice, and what a training leaves behind."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from shardline.checkpoints.folder import list_saved
from shardline.supervision.failure_records import read_failures
from tests.support.processes import end_of_ranks

SKIPPING = """
import torch
from shardline.training.models.linear import Linear

class Skipping(Linear):
    def __init__(self, feature_shape, num_classes):
        super().__init__(feature_shape, num_classes)
        self.late = torch.nn.Linear(num_classes, num_classes)

    def forward(self, features):
        scores = super().forward(features)
        return scores if self.training and self.global_step == 3 else self.late(scores)
"""


def test_two_trainings_of_one_identity_give_the_same_bits(prepare):
    ranks = prepare()
    ranks.train("first")
    replace(ranks, is_by_torchrun=True).train("second")
    assert ranks.model("first") == ranks.model("second")
    assert len(load_file(ranks.results("first") / "model.safetensors")) == 6


@pytest.mark.parametrize(
    "row", [{}, {"early_stopping.patience": 1, "optim.lr": 0.3}], ids=["whole", "stopped"]
)
def test_a_finished_training_whose_results_were_lost_is_sealed_again_without_a_step(prepare, row):
    ranks = prepare(1, devices=1, **{"trainer.max_epochs": 6, **row})
    ranks.train("run")
    before, steps = ranks.model("run"), ranks.steps("run")
    assert ranks.provenance("run")["training"]["stopped_early"] == bool(row)
    shutil.rmtree(ranks.results("run"))
    ranks.train("run")
    assert ranks.model("run") == before
    assert ranks.steps("run") == steps, "no step is taken again"
    assert len(list((ranks.root / "run/work/checkpoints").glob("best-*"))) == 1


def test_the_state_on_disk_always_names_best_weights_that_are_there(prepare):
    """However seldom the state is saved, it is saved with each new best, and only then are older ones removed."""
    ranks = prepare(10_000, devices=1, **{"trainer.max_epochs": 6})
    folder = ranks.root / "run/work/checkpoints"
    ranks.kill_when("run", (folder / "latest.json").exists, hold=30)
    for saved in list_saved(folder):
        state = torch.load(saved.path / "state.pt", map_location="cpu", weights_only=True)
        (best,) = [
            value["best_model_path"]
            for key, value in state["callbacks"].items()
            if "BestCheckpoint" in key
        ]
        assert list(saved.best) == [best]
        assert (folder / best).exists()


def test_a_store_that_is_mounted_elsewhere(prepare):
    ranks = prepare(1, devices=1, **{"trainer.max_epochs": 6})
    ranks.train("run")
    shutil.rmtree(ranks.results("run"))
    (ranks.root / "run").rename(ranks.root / "elsewhere")
    ranks.train("elsewhere")
    ranks.train("other")
    assert ranks.model("elsewhere") == ranks.model("other")


def test_mixed_precision_clipping_lr_scaling_and_a_threshold_that_stops(prepare):
    ranks = prepare(
        precision="bf16-mixed",
        **{
            "trainer.gradient_clip": 0.5, "trainer.max_epochs": 50, "optim.scale_lr": "true",
            "early_stopping.patience": 50, "early_stopping.stopping_threshold": 0.69,
        },
    )  # fmt: skip
    ranks.train("stopped")
    training = ranks.provenance("stopped")["training"]
    assert training["stopped_early"]
    assert training["epochs"] < 50


def test_world_size_changes_the_loss_by_rounding_alone(prepare):
    losses = []
    for devices in (1, 2):
        ranks = prepare(devices=devices, **{"model_args.dropout": 0.0})
        ranks.train(f"of{devices}")
        lines = (ranks.results(f"of{devices}") / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["val_loss"] for line in lines if "val_loss" in line])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.parametrize("may_lack", [False, True])
def test_a_parameter_without_a_gradient_at_one_step_is_named_with_a_setting_that_works(
    tmp_path, prepare, may_lack
):
    (tmp_path / "nets.py").write_text(SKIPPING)
    ranks = prepare(
        model="nets:Skipping", **{"trainer.max_steps": 6, "ddp.find_unused_parameters": may_lack}
    )
    process = ranks.start("run")
    output = end_of_ranks(process)
    assert (process.returncode == 0) == may_lack, output
    if not may_lack:
        said = {one.sentence for one in read_failures(ranks.root / "run/work")}
        assert any("late.weight, late.bias got no gradient" in one for one in said)
        assert any("set ddp.find_unused_parameters to true" in one for one in said)
