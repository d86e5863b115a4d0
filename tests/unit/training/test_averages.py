"""Averages of sealed runs: weights, recomputed statistics, choice, and what is recorded."""

import json
import time

import pytest
import pytorch_lightning as pl
import torch
from msgspec import structs
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from shardline.config.resolved import Member, RunSpec
from shardline.config.settings.run_settings import Average, Data, Evaluation, RunSettings, Trainer
from shardline.core.digests import file_sha256
from shardline.core.lightning_compat import batch_norms
from shardline.data.datamodule import ShardDataModule
from shardline.errors import ConfigError, Diverged
from shardline.supervision.attempt_log import begin_attempt
from shardline.training import sealed_training
from shardline.training.averages import average, seal_combined
from shardline.training.goodput import Timeline
from tests.support.evaluated_model import Rows, sealed_model
from tests.support.rank_tasks import ALONE, rank_task


class Normed(pl.LightningModule):
    """A classifier with batch norm, dropout and a buffer of its own."""

    def __init__(self, feature_shape, num_classes, is_manual=False):
        super().__init__()
        self.automatic_optimization = not is_manual
        self.body = torch.nn.Sequential(
            torch.nn.Linear(*feature_shape, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU()
        )
        self.head = torch.nn.Linear(5, num_classes)
        self.register_buffer("seen", torch.tensor(3))

    def forward(self, features):
        return self.head(self.body(features))

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("val_loss", loss)


class Plain(Normed):
    """The same without batch norm."""

    def __init__(self, feature_shape, num_classes):
        super().__init__(feature_shape, num_classes)
        self.body[1] = torch.nn.Identity()


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    """Return the spec and datasets of a sealed run."""
    folder = tmp_path_factory.mktemp("rows")
    given, _ = sealed_model(folder, Rows(num_shards=2, shape=(4,), dtype="float32"), 0, Normed)
    return folder, given


def task_of(sealed, tmp_path, models, *, model=Normed, greedy=None, **changes):
    """Return the task of an average of models."""
    folder, given = sealed
    members = []
    for number, one in enumerate(models):
        file = tmp_path / f"{number}.safetensors"
        save_file(one.state_dict(), file)
        members.append(Member(run=f"{number:012x}", file=file, title=f"run {number}"))
    settings = RunSettings(
        global_batch=12,
        devices=2,
        accelerator="cpu",
        data=Data(window_bytes=4000),
        evaluation=Evaluation(batch=16),
        trainer=Trainer(accumulate=2),
        average=Average(of=[one.title for one in members], greedy=greedy),
    )
    spec = RunSpec(
        run="a" * 12,
        name="mean",
        model_class=f"{model.__module__}:{model.__name__}",
        settings=structs.replace(settings, **changes),
        members=tuple(members),
    )
    task = rank_task(
        tmp_path, run=spec, run_json=folder, manifest=folder / "manifest.json", shards=folder
    )
    return structs.replace(task, datasets=tuple(given["datasets"]))


def models_of(number, model=Normed):
    """Return models of different weights and statistics."""
    found = []
    for seed in range(number):
        torch.manual_seed(seed)
        one = model((4,), 3)
        for norm in batch_norms(one):
            norm.running_mean.normal_()
        found.append(one)
    return found


def renewed(task, weights):
    """Return weights with the statistics that torch's `update_bn` gives them."""
    settings = task.run.settings
    alone = structs.replace(
        settings, devices=1, trainer=structs.replace(settings.trainer, accumulate=4)
    )
    data = ShardDataModule(alone, task.datasets, ALONE)
    model = Normed((4,), 3)
    model.load_state_dict(weights)
    batches = [data.on_after_batch_transfer(one, 0)[0] for one in data.train_dataloader().again()]
    torch.optim.swa_utils.update_bn(batches, model)
    return model.state_dict(), len(batches)


def test_uniform_average_has_statistics_of_the_training_data(sealed, tmp_path):
    models = models_of(3)
    task = task_of(sealed, tmp_path, models)
    found = average(task, ALONE)
    states = [one.state_dict() for one in models]
    mean = {
        name: value
        if not value.is_floating_point()
        else torch.stack([one[name].double() for one in states]).mean(0).to(value.dtype)
        for name, value in states[0].items()
    }
    expected, num_batches = renewed(task, mean)
    assert found.weights.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found.weights[name], value, msg=name)
    assert found.weights["seen"] == 3
    assert (found.record.batch_norms, found.record.batches) == (1, num_batches)
    assert num_batches > 10  # micro-batches of three rows, as two ranks in two parts have
    assert [one.is_chosen for one in found.record.members] == [True] * 3
    assert found.score == found.metrics["val_loss"]
    assert found.parameters == {name for name, _ in models[0].named_parameters()}
    again = average(task, ALONE)
    assert all(torch.equal(again.weights[name], found.weights[name]) for name in expected)


def test_greedy_average_keeps_what_helps(sealed, tmp_path):
    good, twin, bad = models_of(3, Plain)
    twin.load_state_dict(good.state_dict())
    with torch.no_grad():
        bad.head.bias.copy_(torch.tensor([0.0, 40.0, -40.0]))
    task = task_of(sealed, tmp_path, [bad, good, twin], model=Plain, greedy="validation")
    found = average(task, ALONE)
    assert [one.is_chosen for one in found.record.members] == [False, True, True]
    scores = [one.score for one in found.record.members]
    assert scores[1] == scores[2] == found.score < scores[0]
    assert found.record.members[0].tried > found.score
    assert (found.record.batch_norms, found.record.batches) == (0, 0)
    for name, value in good.state_dict().items():
        assert torch.equal(found.weights[name], value)


def test_average_of_one_member_is_this_member(sealed, tmp_path):
    (model,) = models_of(1)
    found = average(task_of(sealed, tmp_path, [model]), ALONE)
    for name, value in model.state_dict().items():
        assert torch.equal(found.weights[name], value)


def test_statistics_count_for_the_choice(sealed, tmp_path):
    # an average with the members' averaged statistics would be validated as another model
    task = task_of(sealed, tmp_path, models_of(2), greedy="validation")
    found = average(task, ALONE)
    uniform = average(task_of(sealed, tmp_path, models_of(2)), ALONE)
    worse = max(found.record.members, key=lambda one: one.score)
    assert worse.tried == uniform.score


def test_errors_name_what_to_do(sealed, tmp_path):
    first, second = models_of(2)
    second.head = torch.nn.Linear(5, 4)
    with pytest.raises(
        ConfigError, match=r'run "mean": average: head.bias is F32\[4\] in run 1, and'
    ):
        average(task_of(sealed, tmp_path, [first, second]), ALONE)
    manual = {"model_args": {"is_manual": True}}
    with pytest.raises(
        ConfigError, match="Normed has batch norms and automatic_optimization = False"
    ):
        average(task_of(sealed, tmp_path, models_of(2), **manual), ALONE)
    with pytest.raises(ConfigError, match="do not fit the model of the average: .*give this row"):
        average(task_of(sealed, tmp_path, models_of(2), model=Plain), ALONE)
    with torch.no_grad():
        first.head.bias.fill_(torch.nan)
    with pytest.raises(Diverged, match="val_loss of the average is nan"):
        average(task_of(sealed, tmp_path, [first]), ALONE)


def test_a_member_is_read_as_it_is_sealed(sealed, tmp_path):
    task = task_of(sealed, tmp_path, models_of(2))
    before = [load_file(one.file) for one in task.run.members]
    average(task, ALONE)
    for one, weights in zip(task.run.members, before, strict=True):
        assert all(torch.equal(value, weights[name]) for name, value in load_file(one.file).items())


def test_average_is_sealed_as_a_training_is(sealed, tmp_path):
    task = task_of(sealed, tmp_path, models_of(2), greedy="validation")
    task = structs.replace(
        task, action=structs.replace(task.action, attempt=begin_attempt(task.work))
    )
    training, measured = sealed_training._combine(task, task.action, ALONE, Timeline(time.time()))
    results = task.action.results
    with safe_open(results / "model.safetensors", "pt") as file:
        assert file.metadata() == {"identity": task.run.identity}
        assert {*file.keys()} == {*models_of(1)[0].state_dict()}
    (line,) = (results / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 0, "epoch": 0, "val_loss": training.best_score}
    assert training.combined.kind == "average"
    assert training.combined.members[1].sha256 == file_sha256(task.run.members[1].file)
    found = measured()
    assert found["weights"].largest > 0
    assert found["goodput"].parts["validation"] > 0


def test_ensemble_is_sealed_without_weights(sealed, tmp_path):
    task = task_of(sealed, tmp_path, models_of(2))
    settings = structs.replace(task.run.settings, average=None, ensemble=["run:a", "run:b"])
    task = structs.replace(task, run=structs.replace(task.run, settings=settings))
    training, parameters = seal_combined(task, task.action.results, ALONE)
    with safe_open(task.action.results / "model.safetensors", "pt") as file:
        assert not [*file.keys()]
    assert (task.action.results / "metrics.jsonl").read_bytes() == b""
    assert (training.best_score, parameters) == (None, frozenset())
    assert training.combined.how == "probabilities"


def test_statistics_are_those_of_a_whole_pass(sealed, tmp_path):
    task = task_of(sealed, tmp_path, models_of(2))
    whole = average(task, ALONE).record.batches
    settings = task.run.settings
    parts = structs.replace(
        settings,
        data=structs.replace(settings.data, epoch="partition", partition_shards=1),
        trainer=structs.replace(settings.trainer, max_epochs=-1, max_steps=1),
    )
    task = structs.replace(task, run=structs.replace(task.run, settings=parts))
    assert average(task, ALONE).record.batches == whole
