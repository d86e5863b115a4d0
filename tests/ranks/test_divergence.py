"""Trainings of real ranks that go wrong: stopped, or helped on, with the same bits whatever is killed."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from shardline.checkpoints.folder import last_step
from shardline.ledger import read_ledger
from shardline.training.interventions import FILE
from tests.support.processes import end_of_ranks
from tests.support.rotation import rotating

# The loss, or a gradient under a good loss, is NaN at marked steps of the last rank: since a step's
# samples are the same at every attempt, so is what they do.
POISONED = """
import torch

from shardline.training.models.mlp import MLP


class Poisoned(MLP):
    def __init__(self, feature_shape, num_classes, *, marks="", gradient=False):
        super().__init__(feature_shape, num_classes, hidden=8, layers=1)
        self.marks, self.gradient = [int(mark) for mark in str(marks).split()], gradient
        self.seen = torch.nn.BatchNorm1d(num_classes)

    def forward(self, features):
        return self.seen(super().forward(features))

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        is_last = self.global_rank == self.trainer.world_size - 1
        if is_last and self.trainer.global_step + 1 in self.marks:
            rising = loss - loss.detach()
            return loss + torch.sqrt(rising.abs()) if self.gradient else loss * float("nan")
        return loss
"""
# 20 steps an epoch
ROW = {"model": "poisoned:Poisoned", "trainer.max_epochs": 2, "divergence.policy": "skip"}


@pytest.fixture
def poisoned(prepare, tmp_path):
    (tmp_path / "poisoned.py").write_text(POISONED)
    return lambda every_steps=7, **row: prepare(every_steps, **{**ROW, **row})


def interventions(ranks, name):
    return ranks.provenance(name)["training"]["interventions"]


def is_finite(ranks, name):
    weights = load_file(ranks.results(name) / "model.safetensors")
    return all(torch.isfinite(value).all() for value in weights.values())


def error_of(ranks, name):
    process = ranks.start(name)
    output = end_of_ranks(process)
    assert process.returncode == 6, output
    assert not (ranks.results(name) / "model.safetensors").exists()
    return output + "".join(
        path.read_text() for path in (ranks.root / name / "logs").glob("rank-*.log")
    )


@pytest.mark.parametrize("devices", [2, *rotating(1)])
def test_a_loss_that_is_nan_ends_the_training_by_name(poisoned, devices):
    ranks = poisoned(3, devices=devices, **{"divergence.policy": "stop", "model_args.marks": "24"})
    for _ in range(2):  # started again it goes on before the bad step, and ends there again
        output = error_of(ranks, "run")
        assert (
            f'run "run": the training loss is NaN at step 24 (epoch 1, rank {devices - 1}, lr 0.01); '
            "the last good training checkpoint is from step 21; check the samples of the bad step, lower optim.lr"
        ) in output
    assert f"resuming from step {last_step(ranks.root / 'run/work/checkpoints')}" in output


def test_a_loss_that_is_nan_from_the_start_is_not_sealed(poisoned):
    ranks = poisoned(1, devices=1, **{"divergence.policy": "stop", "model_args.marks": "1"})
    assert (
        "at step 1 (epoch 0, rank 0, lr 0.01); there is no earlier training checkpoint"
        in error_of(ranks, "run")
    )


@pytest.mark.parametrize(
    ("row", "steps"),
    [
        ({"devices": 2, "model_args.marks": "9 26"}, [(9, 9), (26, 26)]),
        # a gradient shows in the next loss, or in the weights where an epoch ends
        ({"devices": 2, "model_args.marks": "9", "model_args.gradient": "true"}, [(10, 10), (9, 11)]),
        *rotating(
            ({"devices": 2, "model_args.marks": "20", "model_args.gradient": "true"}, [(20, 20)]),
            ({"devices": 1, "model_args.marks": "1"}, [(1, 1)]),  # back to the beginning
            ({"devices": 2, "model_args.marks": "9", "trainer.accumulate": 2}, [(9, 9)]),
            ({"devices": 2, "model_args.marks": "9", "divergence.window_steps": 4}, [(6, 9)]),
        ),
    ],
)  # fmt: skip
def test_steps_that_are_bad_are_left_out_whatever_is_killed_and_however_often_it_is_saved(
    poisoned, row, steps
):
    ranks = poisoned(**row)
    output = ranks.train("whole")
    made = interventions(ranks, "whole")
    assert [(done["first"], done["step"]) for done in made] == steps
    assert all(str(done["action"]) == "skip" for done in made)
    assert f"(1 of 3 interventions); going back to step {(steps[0][0] - 1) // 7 * 7}" in output
    assert is_finite(ranks, "whole")

    often = replace(ranks, every_steps=1)
    work = ranks.root / "killed/work"
    often.kill_when("killed", (work / FILE).exists, hold=25)
    often.kill_after("killed", 30)
    often.train("killed")
    assert ranks.model("killed") == ranks.model("whole")
    assert interventions(ranks, "killed") == made
    left_out = {step for first, last in steps for step in range(first, last + 1)}
    total = list(read_ledger(ranks.root / "whole/work/ledger"))
    assert ranks.steps("whole") == [step for step in total if step not in left_out]
    assert len(ranks.steps("killed")) == len(set(ranks.steps("killed")))
    assert read_ledger(ranks.root / "killed/work/ledger") == read_ledger(
        ranks.root / "whole/work/ledger"
    ), "what is left out is consumed all the same"


def test_a_learning_rate_that_explodes_is_lowered(poisoned):
    row = {
        "optim.name": "sgd", "optim.lr": 1e25, "divergence.policy": "lower", "divergence.factor": 1e-27,
        "divergence.window_steps": 2, "divergence.max_loss": 50, "schedule.name": "cosine",
    }  # fmt: skip
    ranks = poisoned(5, model="mlp", devices=2, **row)
    ranks.train("run")
    (made,) = interventions(ranks, "run")
    assert (made["first"], made["step"], made["factor"]) == (1, 2, 1e-27)
    assert is_finite(ranks, "run")
    often = replace(ranks, every_steps=1)
    often.kill_when("killed", (ranks.root / "killed/work" / FILE).exists, hold=25)
    often.train("killed")
    assert ranks.model("killed") == ranks.model("run")


def test_a_loss_above_the_largest_is_named_with_both(poisoned):
    ranks = poisoned(devices=2, **{"divergence.policy": "stop", "divergence.max_loss": 0.1})
    assert "above divergence.max_loss=0.1 at step 1 (epoch 0, rank" in error_of(ranks, "run")


def test_a_hopeless_training_ends_after_so_many_interventions(poisoned):
    ranks = poisoned(devices=2, **{"model_args.marks": "5 10 15", "divergence.limit": 2})
    output = error_of(ranks, "run")
    assert (
        "NaN at step 15 (epoch 0, rank 1, lr 0.01), after 2 interventions (divergence.lim" in output
    )
    document = json.loads((ranks.root / "run/work" / FILE).read_text())
    assert [done["step"] for done in document["interventions"]] == [5, 10]


def test_what_was_done_in_vain_counts_as_lost(poisoned):
    ranks = poisoned(100, devices=1, **{"model_args.marks": "35"})  # back to an epoch's end at most
    ranks.train("run")
    goodput = ranks.provenance("run")["goodput"]
    assert goodput["parts"]["lost"] > 0
    told = sum(seconds for seconds in goodput["parts"].values() if seconds is not None)
    assert told == pytest.approx(goodput["elapsed_s"], rel=0.02)
