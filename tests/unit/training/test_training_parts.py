"""The parts of training that need no ranks: optimiser, schedule, model, metrics, sealing."""

import json
import math
import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torchmetrics
from msgspec import structs
from msgspec.structs import replace
from pytorch_lightning import LightningModule
from pytorch_lightning.loggers.logger import DummyLogger
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset

from shardline.checkpoints.folder import list_saved, newest_good
from shardline.checkpoints.writer import StateWriter
from shardline.config.resolved import RunSpec
from shardline.config.settings.run_settings import Divergence, Optim, RunSettings, Schedule, Trainer
from shardline.core.files import read_json_lines
from shardline.errors import ConfigError, Diverged, LaunchError
from shardline.sources import Schema
from shardline.training.divergence import LossWatch, RollbackRequired, check_policy
from shardline.training.fit import Trained, seal_model
from shardline.training.metrics_file import JsonLinesLogger
from shardline.training.model import make_model
from shardline.training.models.linear import Linear
from shardline.training.optim import (
    attach_optimizer,
    has_own_optimizer,
    lr_factor,
    make_optimizer,
)
from shardline.training.step_all_reduce import StepAllReduce
from shardline.training.trainer import make_trainer, resolve_accelerator
from tests.support.simulated_kills import ALONE

SCHEMA = Schema(feature_shape=(8, 8), classes=tuple("0123456789")).record()
OPTIM = Optim(name="sgd", lr=0.1)


def spec(model_class="shardline.training.models.linear:Linear", **model_args):
    schedule = Schedule(name="linear", warmup_steps=2)
    settings = RunSettings(model_args=model_args, optim=OPTIM, schedule=schedule)
    return RunSpec(
        run="r", model="m", model_class=model_class, identity="f" * 64, settings=settings
    )


class OwnOptimizer(LightningModule):
    """A model that brings its optimiser."""

    def configure_optimizers(self):
        return None


def test_shipped_models_take_the_datasets_shape():
    for name, shape in (("linear:Linear", (10,)), ("mlp:MLP", (10,)), ("cnn:CNN", (10,))):
        model = make_model(spec(f"shardline.training.models.{name}"), SCHEMA)
        assert model(torch.zeros(3, 8, 8)).shape == (3, *shape)


@pytest.mark.parametrize("loop", ["fit", "validate"])
def test_metrics_compute_in_64_bits_from_their_first_batch_on_where_the_model_does(
    loop, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # Lightning saves a checkpoint in the present folder

    class Counts(Linear):
        def __init__(self):
            super().__init__((8,), 3)
            self.counts, self.seen = torchmetrics.ConfusionMatrix("multiclass", num_classes=3), []

        def training_step(self, batch, batch_idx):
            self.seen += [self.val_loss.dtype, self.counts.dtype]
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.seen += [self.val_loss.dtype, self.counts.dtype]
            super().validation_step(batch, batch_idx)

    rows = TensorDataset(torch.ones(2, 8, dtype=torch.float64), torch.tensor([0, 2]))
    settings = RunSettings(precision="64-true", trainer=Trainer(max_epochs=1))
    trainer = make_trainer(settings, ALONE, [], DummyLogger(), 1, timeout_s=60.0)
    model = Counts()
    attach_optimizer(model, spec(), total_steps=lambda: 2, set_by_row=())
    getattr(trainer, loop)(model, *[DataLoader(rows)] * (2 if loop == "fit" else 1))
    assert {*model.seen} == {torch.float64}
    assert (model.layer.weight.dtype, model.counts.confmat.dtype) == (torch.float64, torch.int64)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("given", "schema", "message"),
    [
        (
            spec("shardline.training.models.cnn:CNN"),
            structs.replace(SCHEMA, feature_shape=[5]),
            r"images.*shape \(5,\)",
        ),
        (spec("shardline.errors:Net"), SCHEMA, "does not import: AttributeError"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused_by_name(given, schema, message):
    with pytest.raises(ConfigError, match=message):
        make_model(given, schema)


def test_the_users_own_lines_are_named_whatever_the_projects_folder_is_called(
    tmp_path, monkeypatch
):
    project = tmp_path / "site-packages/importlib"
    project.mkdir(parents=True)
    (project / "of_a_user.py").write_text("class Net:\n    size = 1 / 0\n")
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    with pytest.raises(
        ConfigError, match=r"ZeroDivisionError(?s:.*)\n  of_a_user\.py, line 2, in Net"
    ):
        make_model(spec("of_a_user:Net"), SCHEMA)


def test_a_models_own_optimiser_rules_and_a_column_that_it_would_ignore_is_refused():
    model = OwnOptimizer()
    attach_optimizer(model, spec(), total_steps=lambda: 10)
    assert model.configure_optimizers() is None
    plain = Linear((4,), 2)
    attach_optimizer(plain, spec(), total_steps=lambda: 10)
    assert (has_own_optimizer(model), has_own_optimizer(plain)) == (True, False)
    with pytest.raises(ConfigError, match="sets optim.lr, but m has its own configure_optimizers"):
        attach_optimizer(model, spec(), total_steps=lambda: 10, set_by_row=["optim.lr", "seed"])


@pytest.mark.parametrize(
    ("parameters", "columns", "remedy"),
    [
        ("lr", ["optim.lr"], "rename the column to model_args.lr"),
        ("**more", ["optim.lr"], "rename the column to model_args.lr"),
        ("", ["optim.lr"], "give the constructor an argument lr and name the column model_args.lr"),
        (
            "lr",
            ["optim.lr", "optim.momentum"],
            "give the constructor an argument momentum and name the columns model_args.lr, model_args.momentum",
        ),
    ],
)
def test_a_column_that_a_models_own_optimiser_ignores_becomes_an_argument(
    parameters, columns, remedy
):
    class Net(OwnOptimizer):
        exec(f"def __init__(self, {parameters}): super(OwnOptimizer, self).__init__()")

    model = Net(lr=1) if parameters else Net()
    with pytest.raises(ConfigError, match=f"; {remedy}, or remove the method$"):
        attach_optimizer(model, spec(), total_steps=lambda: 10, set_by_row=columns)


def test_the_schedule_is_applied_to_the_optimiser():
    model = Linear((4,), 2)
    attach_optimizer(model, spec(), total_steps=lambda: 12)
    configured = model.configure_optimizers()
    optimizer, scheduler = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    rates = []
    for _ in range(13):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[:3] == pytest.approx([0.05, 0.1, 0.1])
    assert rates[7] == pytest.approx(0.05)
    assert rates[12] == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("name", "step", "factor"),
    [
        ("constant", 99, 1),
        ("linear", 55, 0.5),
        ("cosine", 55, 0.5),
        ("cosine", 100, 0),
        ("cosine", 4, 0.5),
    ],
)
def test_schedules(name, step, factor):
    assert lr_factor(step, name=name, warmup_steps=10, total_steps=100) == pytest.approx(
        factor, abs=1e-9
    )


def test_the_learning_rate_scales_with_the_world_size_on_request():
    for scale, lr in ((False, 0.1), (True, 0.4)):
        optimizer = make_optimizer(Linear((4,), 2), replace(OPTIM, scale_lr=scale), world_size=4)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(lr)


def test_metrics_are_lines_without_nan_and_rewind_to_a_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    logger = JsonLinesLogger(path)
    logger.rewind(0)
    for step in range(4):
        logger.log_metrics({"train_loss": math.nan if step == 1 else 0.5, "epoch": 2.0}, step=step)
    records = read_json_lines(path)
    assert [r["step"] for r in records] == [1, 2, 3, 4]
    assert records[0] == {"step": 1, "epoch": 2, "wall_s": records[0]["wall_s"], "train_loss": 0.5}
    assert records[1]["train_loss"] is None
    path.write_text(path.read_text() + '{"step": 5, "tor')
    logger.rewind(2)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_model_with_nan_weights_is_never_sealed(tmp_path):
    weights = {"layer.weight": torch.tensor([1.0, float("nan")])}
    save_file(weights, tmp_path / "best.safetensors")
    trained = Trained(
        best=tmp_path / "best.safetensors", best_score=None, steps=1, epochs=1, stopped_early=False,
        resumed_step=0, checkpoint_s=0.0,
    )  # fmt: skip
    with pytest.raises(Diverged, match="weight layer.weight is NaN or infinite; lower optim.lr"):
        seal_model(trained, spec(), tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


def test_training_state_is_proven_to_be_readable(tmp_path):
    writer = StateWriter(tmp_path, "f" * 64, keep=2)
    state = {"global_step": 3, "epoch": 0, "callbacks": {}}
    writer.write(state, world_size=1, new_best={}, best=set())
    assert newest_good(tmp_path, "f" * 64)[0].step == 3
    odd = {**state, "global_step": 4, "callbacks": {"mine": torch.nn.ReLU}}
    with pytest.raises(ConfigError, match="cannot be resumed .*ReLU.*, expected only tensors"):
        StateWriter(tmp_path, "f" * 64, keep=2).write(odd, world_size=1, new_best={}, best=set())
    assert [saved.step for saved in list_saved(tmp_path)] == [3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_what_needs_gpus_is_refused_without_them():
    with pytest.raises(LaunchError, match="devices=2, but torch finds 0 GPUs on this machine"):
        resolve_accelerator("gpu", devices=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"divergence": Divergence(policy="skip")}, "divergence.policy=skip, but .* use divergence.policy=stop"),
        ({"elastic": True}, "elastic=true, but OwnOptimizer uses manual .* use elastic=false"),
    ],
)  # fmt: skip
def test_a_model_that_takes_its_steps_itself_can_neither_be_helped_on_nor_shrink(changes, message):
    model = OwnOptimizer()
    settings = RunSettings(**changes)
    check_policy(settings, model, "r")
    model.automatic_optimization = False
    with pytest.raises(ConfigError, match=f'run "r": {message}'):
        check_policy(settings, model, "r")


@pytest.mark.parametrize(
    ("parts", "max_loss", "said"),
    [
        ([0.5, 1e30], None, ""),
        ([math.inf, math.nan, 0.5], None, "NaN at step 3 (epoch 1, rank 0)"),
        ([0.5, -math.inf], None, "infinite at step 3"),
        ([0.5, 7.25], 7.0, "7.25, above divergence.max_loss=7 at step 3"),
        ([7.0], 7.0, ""),
    ],
)
def test_what_is_said_of_a_steps_losses(parts, max_loss, said):
    agreement = StepAllReduce()
    agreement.start(torch.device("cpu"))
    watch = LossWatch(max_loss, agreement)
    trainer = SimpleNamespace(
        accumulate_grad_batches=len(parts), world_size=1, global_step=3, current_epoch=1
    )
    for place, loss in enumerate(parts, 1):
        trainer.fit_loop = SimpleNamespace(_should_accumulate=[place < len(parts)].pop)
        watch.on_train_batch_end(trainer, None, {"loss": torch.tensor(loss / len(parts))})
    with (
        pytest.raises(RollbackRequired, match=re.escape(f"the training loss is {said}"))
        if said
        else nullcontext()
    ):
        watch.look()
