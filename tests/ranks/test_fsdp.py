"""Real ranks under strategy=fsdp: the same bits after being killed, also of a damaged shard."""

import json
from dataclasses import replace

import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file

from shardline.checkpoints.folder import list_saved
from shardline.config.resolved import InitWeights
from shardline.ledger import read_ledger
from shardline.training.rank_task import read_task, write_task
from tests.support.forked import Launch
from tests.support.processes import end_of_ranks
from tests.support.rotation import rotating

OWN = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from shardline.training.models.classifier_base import Classifier


class Own(Classifier):
    # running statistics, tied weights, its own units, a step that does not call forward
    def __init__(self, feature_shape, num_classes):
        super().__init__()
        width = feature_shape[0]
        self.first = nn.Linear(width, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.second = nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.head = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, num_classes))

    def configure_model(self):
        fully_shard(self.head, mesh=self.device_mesh["data_parallel"])

    def forward(self, features):
        return self.head(self.second(self.norm(self.first(features))).relu())

    def training_step(self, batch, batch_idx):
        features, labels = batch
        logits = self.head(self.second(self.norm(self.first(features))).relu())
        loss = nn.functional.cross_entropy(logits, labels)
        self.log("train_loss", loss)
        return loss
"""
ALL = {
    "precision": "bf16-mixed", "trainer.accumulate": 2, "trainer.gradient_clip": 0.05,
    "schedule.name": "cosine", "schedule.warmup_steps": 5,
}  # fmt: skip
# an optimiser by import path, groups of parameters, a layer of which only the bias is trained
GROUPED = {
    "optim.name": "torch.optim:RAdam", "optim.args.betas": "[[0.8, 0.99]]", "freeze": "[[net.2.0.weight]]",
    "optim.groups": '[[{match: "net.1.*", lr: 0.01}, {match: "*.bias", weight_decay: 0.1}]]',
}  # fmt: skip
PLATEAU = {
    "schedule.name": "torch.optim.lr_scheduler:ReduceLROnPlateau", "schedule.interval": "epoch",
    "schedule.monitor": "val_loss", "schedule.args.patience": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        {"devices": 2, **ALL, **GROUPED},
        {"devices": 2, "model": "own:Own"},
        *rotating(
            {"devices": 1},
            {"devices": 4, "optim.name": "sgd"},
            {"devices": 2, **GROUPED, **PLATEAU},
            {"devices": 2, "strategy": "ddp", **GROUPED, **PLATEAU},
        ),
    ],
    ids=["mixed", "own", "one", "four", "plateau", "plateau ddp"],
)
def test_a_killed_training_ends_with_the_bits_of_one_that_was_not(prepare, tmp_path, row):
    (tmp_path / "own.py").write_text(OWN)
    ranks = prepare(7, **{"strategy": "fsdp", "trainer.max_epochs": 3, **row})
    ranks.train("whole")
    folder = ranks.root / "killed/work/checkpoints"
    step = ranks.kill_after("killed", 8)
    names = sorted(path.name for path in list_saved(folder)[0].path.glob("shard-*"))
    if "strategy" not in row:
        assert len(names) == row["devices"], "each rank writes a shard"
    output = ranks.train("killed")
    assert f"resuming from step {step}" in output
    assert ranks.model("killed") == ranks.model("whole")
    sealed = load_file(ranks.results("whole") / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in sealed.values())
    assert not any(name.startswith("module.") for name in sealed)


def test_a_damaged_shard_falls_back_to_the_training_checkpoint_before_it(prepare):
    ranks = prepare(7, devices=2, strategy="fsdp")
    ranks.train("whole")
    folder = ranks.root / "damaged/work/checkpoints"
    ranks.kill_when("damaged", lambda: len(list_saved(folder)) == 2, hold=18)
    newest, before = list_saved(folder)
    shard = newest.path / "shard-00002-of-00002.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    output = ranks.train("damaged")
    assert f"{shard.name} has BLAKE3 digest" in output
    assert f"resuming from step {before.step} instead" in output
    assert ranks.model("damaged") == ranks.model("whole")


def val_losses(ranks, name):
    lines = (ranks.root / name / "work/metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["val_loss"] for line in lines if "val_loss" in line]


@pytest.mark.parametrize(("before", "after"), [(2, 1), *rotating((1, 2), (2, 4))])
def test_a_training_goes_on_at_another_world_size_with_the_same_batches(prepare, before, after):
    """As `elastic` does it: the identity stays, the number of ranks is another."""
    ranks = prepare(7, devices=before, strategy="fsdp", **{"model_args.dropout": 0.0})
    ranks.train("whole")
    step = ranks.kill_after("killed", 8)
    spec = json.loads(ranks.run_json.read_text())
    spec["settings"]["devices"] = after
    other = replace(ranks, run_json=ranks.root / "other.json", devices=after)
    other.run_json.write_text(json.dumps(spec))
    assert f"resuming from step {step}" in other.train("killed")
    ledgers = [read_ledger(ranks.root / name / "work/ledger") for name in ("killed", "whole")]
    assert ledgers[0] == ledgers[1]
    assert val_losses(ranks, "killed") == pytest.approx(val_losses(ranks, "whole"), abs=1e-5)


def test_fsdp_and_ddp_differ_by_rounding_alone(prepare):
    losses = []
    for strategy in ("ddp", "fsdp"):
        ranks = prepare(strategy=strategy, **{"model_args.dropout": 0.0})
        ranks.train(strategy)
        losses.append(val_losses(ranks, strategy))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.parametrize("model", ["own:Own", *rotating("mlp")])
def test_sharded_ranks_begin_with_the_whole_weights_of_a_sharded_training_checkpoint(
    prepare, tmp_path, model
):
    (tmp_path / "own.py").write_text(OWN)
    ranks = prepare(100, model=model, devices=2, strategy="fsdp", **{"trainer.max_epochs": 1})
    ranks.train("base")
    task = read_task(ranks.spec_file("begun"))
    state = list_saved(ranks.root / "base/work/checkpoints")[0].path
    run = structs.replace(
        task.run,
        init=InitWeights(source="run", name="run:base@last", state="last", file=state),
        # so small that no weight changes
        settings=structs.replace(
            task.run.settings, optim=structs.replace(task.run.settings.optim, lr=1e-30), seed=9
        ),
    )
    spec = ranks.root / "begun/rank.json"
    write_task(spec, structs.replace(task, run=run))
    launch = Launch(2, spec, cwd=ranks.root, output=ranks.root / "begun.output")
    output = end_of_ranks(launch)
    assert launch.returncode == 0, output
    begun, base = (
        load_file(ranks.results(name) / "model.safetensors") for name in ("begun", "base")
    )
    assert ranks.provenance("begun")["training"]["init"]["loaded"] == len(base)
    for name, value in base.items():
        assert "norm" in name or torch.equal(begun[name], value), name
