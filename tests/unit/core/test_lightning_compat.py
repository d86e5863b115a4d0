"""What Lightning and torch keep private and Shardline rests on: one contract for each part.

Written against pytorch-lightning and lightning 2.6.6, torchmetrics 1.9.0 and torch 2.13.0. Where another version
fails here, `lightning_compat.py` and `lightning_repeats.py` in `shardline/core` are the places to change.
`test_one_lightning.py` runs this file with `lightning`, and `frameworks/test_newest_lightning.py` with the newest
version of both packages.
"""

import random
import re
import signal
from functools import partial
from importlib.metadata import version
from inspect import getsource

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import (
    EarlyStopping,
    LambdaCallback,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy
from pytorch_lightning.utilities import signature_utils
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from shardline.core import lightning_compat as compat
from shardline.core import lightning_repeats as repeats
from shardline.core.one_lightning import loaded
from shardline.errors import ConfigError
from shardline.training.strategies import _SteadyBuckets
from tests.support.lightning_packages import in_this_process
from tests.support.workspace import REPOSITORY

WRITTEN_AGAINST = {
    "pytorch-lightning": "2.6", "lightning": "2.6", "torchmetrics": "1.9", "torch": "2.13",
}  # fmt: skip


class Model(pl.LightningModule):
    def __init__(self, at_batch_end=lambda trainer: None):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.at_batch_end = at_batch_end

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def on_train_batch_end(self, *_):
        self.at_batch_end(self.trainer)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(at_batch_end, *, before=lambda trainer: None, accumulate=1):
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=DummyLogger(), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=accumulate, log_every_n_steps=1,
    )  # fmt: skip
    before(trainer)
    trainer.fit(Model(at_batch_end), DataLoader(TensorDataset(torch.ones(4, 4)), batch_size=1))
    return trainer


def test_the_package_that_this_process_was_started_for_is_loaded():
    package, *_ = in_this_process() or ["pytorch_lightning"]
    assert loaded() == package
    assert pl.Trainer.__module__.startswith(f"{package}.")
    print(package, pl.__version__)


@pytest.mark.parametrize(("package", "known"), WRITTEN_AGAINST.items())
def test_the_lock_has_the_versions_that_this_was_written_against(package, known):
    assert version(package).startswith(f"{known}."), (
        "look at each contract, then change WRITTEN_AGAINST"
    )


def test_batches_of_an_accumulation_are_told_from_its_last():
    seen = []
    fit(lambda trainer: seen.append(compat.is_accumulating(trainer)), accumulate=2)
    assert seen == [True, False, True, False]


def test_a_state_is_dumped_in_mid_epoch():
    states = []
    fit(lambda trainer: states.append(compat.dump_state(trainer)))
    counts = states[1]["loops"]["fit_loop"]
    assert {"state_dict", "optimizer_states", "lr_schedulers", "callbacks"} <= states[1].keys()
    assert states[1]["global_step"] == 2
    assert counts["epoch_loop.batch_progress"]["current"]["ready"] == 2
    assert counts["epoch_loop.state_dict"]["_batches_that_stepped"] == 1
    assert counts["epoch_progress"]["total"] == {
        "ready": 1, "started": 1, "processed": 0, "completed": 0,
    }  # fmt: skip


def test_lightning_handles_no_signals():
    seen = []
    handler = signal.getsignal(signal.SIGTERM)
    fit(lambda _: seen.append(signal.getsignal(signal.SIGTERM)), before=compat.ignore_signals)
    assert set(seen) == {handler}
    fit(lambda _: seen.append(signal.getsignal(signal.SIGTERM)))
    assert seen[-1] != handler, "Lightning handles none by itself any more: ignore_signals can go"


def test_a_compiled_model_logs():
    model, logged = Model(), []
    model.at_batch_end = lambda trainer: logged.append([*compat.logged_metrics(trainer)])
    model.compile(backend="eager")
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(torch.ones(2, 4)), batch_size=1))
    assert logged == [["training_step.loss"]] * 2


def test_what_is_logged_is_found_and_restored():
    places, sums, steps = [], [], []

    def look(trainer):
        compat.update_step_metrics(trainer)
        steps.append(float(compat.shown_metrics(trainer, "logged_metrics")["loss_step"]))
        (metric,) = compat.logged_metrics(trainer).values()
        sums.append(float(metric.value))
        places.append(compat.logging_place(trainer))

    fit(look)
    assert sums == pytest.approx(list(np.cumsum(steps)))
    assert [place["current_fx"] for place in places] == ["training_step"] * 4
    assert [place["first_loop_iter"] for place in places] == [True, False, False, False]

    def restore(trainer):
        place = {"first_loop_iter": True, "current_fx": "training_step"}
        compat.set_logging_place(trainer, place)
        assert compat.logging_place(trainer) == place

    fit(restore)


def test_a_logged_metric_is_made_as_lightning_makes_it():
    def make(trainer):
        ((key, metric),) = compat.logged_metrics(trainer).items()
        meta = metric.meta
        fields = {name: getattr(meta, name) for name in ("fx", "name", "on_step", "on_epoch")}
        made = compat.make_logged_metric(
            trainer, fields, meta.reduce_fx, is_tensor=True, syncs=False, rank_zero_only=False
        )
        assert key == "training_step.loss"
        assert made.meta.is_mean_reduction
        made.update(torch.tensor(3.0), 1)
        assert float(made.compute()) == 3.0
        assert vars(made).keys() == vars(metric).keys()

    fit(make)


def test_nothing_is_logged_of_a_step_that_is_dropped():
    seen = []

    def look(trainer, *, drops):
        if drops:
            compat.drop_step_values(trainer)
        compat.update_step_metrics(trainer)
        seen.append("loss_step" in compat.shown_metrics(trainer, "logged_metrics"))

    fit(partial(look, drops=True))
    fit(partial(look, drops=False))
    assert seen == [False] * 4 + [True] * 4


def test_a_metric_that_is_on_its_device_is_not_moved(monkeypatch):
    moves = []
    monkeypatch.setattr(repeats, "_MOVE", lambda metric, device: moves.append(device) or metric)
    monkeypatch.setattr(compat.LoggedMetric, "to", compat.LoggedMetric.to)
    repeats.spare_repeats()
    fit(lambda trainer: None)
    assert len(moves) <= 1, "after the first step it is there"


@pytest.mark.parametrize(
    "hook", [Model().training_step, Model.training_step, partial(print), Model()]
)
def test_the_signature_of_a_hook_is_inspected_once(hook):
    def has(**kinds):
        return signature_utils.is_param_in_hook_signature(hook, "batch_idx", **kinds)

    inspected = [has(), has(explicit=True), has(min_args=2)]
    repeats.spare_repeats()
    for _ in range(2):
        assert [has(), has(explicit=True), has(min_args=2)] == inspected
    source = getsource(signature_utils)
    assert set(re.findall(r"inspect\.(\w+)", source)) == {"getfullargspec"}


def test_the_name_of_a_hook_is_set_without_a_look_at_the_modules_parameters():
    class Doubling(torch.nn.Module):
        def __setattr__(self, name, value):
            super().__setattr__(name, 2 * value if name == "count" else value)

    class Mixed(Model, Doubling):
        pass

    assert "def __setattr__" not in getsource(pl.LightningModule)
    repeats.spare_repeats()
    module = Mixed()
    module.count, module.head, module.scale = (
        2,
        torch.nn.Linear(1, 1),
        torch.nn.Parameter(torch.ones(1)),
    )
    assert (module.count, "head" in module._modules, "scale" in module._parameters) == (
        4,
        True,
        True,
    )
    names = []
    module.at_batch_end = lambda trainer: names.append(
        vars(trainer.lightning_module)["_current_fx_name"]
    )
    trainer = compat.new_trainer(
        max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False
    )
    trainer.fit(module, DataLoader(TensorDataset(torch.ones(4, 4))))
    assert names == ["on_train_batch_end"] * 2
    assert module._current_fx_name is None


def test_updates_of_a_metric():
    metric = MeanMetric()
    metric.update(1.0)
    metric.update(3.0)
    assert (compat.updates_of(metric), float(metric.compute())) == (2, 2.0)
    metric.mean_value, metric.weight = torch.tensor(12.0), torch.tensor(3.0)
    compat.set_updates(metric, 3)
    assert (compat.updates_of(metric), float(metric.compute())) == (3, 4.0), "no old value is kept"


def test_buffers_of_a_module():
    module = torch.nn.BatchNorm1d(2)
    module.register_buffer("hidden", torch.ones(1), persistent=False)
    module.register_buffer("empty", None)
    known = {name: persistent for name, (_, persistent) in compat.buffers_of(module).items()}
    assert known == {
        "running_mean": True, "running_var": True, "num_batches_tracked": True,
        "hidden": False, "empty": True,
    }  # fmt: skip
    assert compat.buffers_of(module)["empty"][0] is None
    assert compat.buffers_of(module)["hidden"][0] is module.hidden


def test_hooks_of_a_module_are_counted():
    layer = torch.nn.Linear(1, 1)
    assert compat.num_hooks(layer) == 0
    layer.register_forward_pre_hook(lambda *_: None)
    layer.register_forward_hook(lambda *_: None)
    layer.register_full_backward_pre_hook(lambda *_: None)
    layer.register_full_backward_hook(lambda *_: None)
    assert compat.num_hooks(layer) == 4


class Validated(Model):
    """Ends its training by what a test gives, where Lightning has no loop for it."""

    def __init__(self, at_end=lambda trainer: None):
        super().__init__()
        self.at_end, self.validations = at_end, 0

    def on_validation_epoch_end(self):
        self.validations += 1

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(batch[0]).square().mean())

    def on_train_end(self):
        self.at_end(self.trainer)


def fit_validated(at_end, *callbacks, epochs=1):
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=DummyLogger(), log_every_n_steps=1,
        enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in callbacks),
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, callbacks=[*callbacks],
    )  # fmt: skip
    rows = DataLoader(TensorDataset(torch.ones(4, 4)), batch_size=1)
    trainer.fit(Validated(at_end), rows, rows)
    return trainer


def test_a_trainer_that_trains_nothing_stands_where_it_is_told():
    seen = {}

    class Look(pl.Callback):
        def on_validation_batch_end(self, trainer, *_):
            seen.update(
                place=(trainer.current_epoch, trainer.global_step),
                found=[*compat.results_of(trainer)],
            )

    trainer = compat.new_trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[Look()],
    )
    compat.set_place(trainer, epoch=3, step=7)
    trainer.validate(Validated(), DataLoader(TensorDataset(torch.ones(1, 4))), verbose=False)
    assert seen == {"place": (3, 7), "found": ["validation_step.val_loss"]}


def test_a_training_s_end_validates_again_and_stays_as_it_was():
    stopping = EarlyStopping("val_loss", patience=1, min_delta=100.0)
    seen = []

    def end(trainer):
        before = (
            trainer.global_step,
            trainer.current_epoch,
            trainer.should_stop,
            stopping.state_dict(),
        )
        compat.validate_again(trainer)
        seen.append(before)
        assert (
            trainer.global_step,
            trainer.current_epoch,
            trainer.should_stop,
            stopping.state_dict(),
        ) == before
        assert trainer.training
        assert trainer.lightning_module.validations == 2

    fit_validated(end, stopping)
    assert len(seen) == 1


@pytest.mark.parametrize("is_validated", [False, True])
def test_an_epoch_ends_behind_a_batch_with_its_validation_once(is_validated):
    """See `tests/unit/training/test_milestones.py` for whole trainings."""
    seen = []

    def begin(trainer, _):
        loop = trainer.fit_loop.epoch_loop
        loop.batch_progress.current.ready = loop.batch_progress.current.completed = 4
        assert compat.batches_left(trainer) == 0
        compat.end_epoch_without_steps(trainer, is_validated=is_validated)
        loop.val_loop.run = lambda: seen.append("validated")
        loop.advance = lambda fetcher: seen.append("step")

    ends = LambdaCallback(on_train_start=begin, on_train_epoch_end=lambda *_: seen.append("epoch"))
    trainer = fit_validated(lambda _: None, ends)
    assert seen == ["validated", "epoch"][is_validated:]
    assert trainer.fit_loop.epoch_loop._batches_that_stepped == 1


def test_training_steps_of_an_end_change_no_weight_and_log_nothing():
    seen = []

    def end(trainer):
        module = trainer.lightning_module
        before = module.layer.weight.clone()
        for _ in compat.training_steps(trainer, trainer.train_dataloader):
            seen.append(module.training)
        assert module.layer.weight.equal(before)
        assert "log" not in vars(module), "the model logs again"

    fit_validated(end)
    assert seen == [True] * 4


def test_a_stochastic_average_begins_where_it_once_began():
    average = StochasticWeightAveraging(0.5, swa_epoch_start=1)
    kept = {}
    fit_validated(lambda _: kept.update(average.state_dict()), average, epochs=2)
    assert kept["scheduler_state"]
    resumed = StochasticWeightAveraging(0.5, swa_epoch_start=1)
    resumed.setup(fit_validated(lambda _: None), Validated(), "fit")
    resumed.load_state_dict(kept)

    def begin(trainer):
        resumed.on_fit_start(trainer, trainer.lightning_module)
        compat.begin_averaging(resumed, trainer)
        (config,) = trainer.lr_scheduler_configs
        assert config.scheduler.state_dict() == kept["scheduler_state"]
        kept["seen"] = int(resumed.n_averaged)

    fit_validated(begin, epochs=2)
    assert kept["seen"] == kept["n_averaged"], "nothing was averaged a second time"


def test_an_average_and_its_last_epoch_are_found():
    average = WeightAveraging()
    assert compat.average_of(average) is None
    fit_validated(lambda _: None, average)
    assert [name for name, _ in compat.average_of(average).named_parameters()] == [
        "layer.weight",
        "layer.bias",
    ]
    compat.set_latest_update_epoch(average, 5)
    assert compat.latest_update_epoch(average) == 5


def test_what_a_model_checkpoint_has_yet_to_save_is_found(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_loss", every_n_train_steps=1)
    assert compat.pending_saves(checkpoint) == {"step": 0, "deferred": False}
    seen = []
    fit_validated(lambda _: seen.append(compat.pending_saves(checkpoint)), checkpoint)
    assert seen[-1]["deferred"], "the metric is logged by the validation behind the step"
    compat.set_pending_saves(checkpoint, {"step": 5, "deferred": False})
    assert compat.pending_saves(checkpoint) == {"step": 5, "deferred": False}


def test_random_generators():
    states = compat.random_states()
    kind, keys, *_ = states["numpy"]
    assert (kind, len(keys)) == ("MT19937", 624)
    assert len(states["python"][1]) == 625
    drawn = random.random(), np.random.random(), float(torch.rand(()))
    compat.set_random_states(states)
    assert (random.random(), np.random.random(), float(torch.rand(()))) == drawn


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_ddp_lays_its_buckets_out_once(alone):
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    compat.settle_buckets(model)
    assert not model.reducer._rebuild_buckets(), "they are laid out, and stay so"
    model(torch.ones(2, 4)).sum().backward()
    compat.broadcast_buffers(alone, [torch.ones(3)])


def test_a_model_finds_its_mesh():
    model = Model()
    mesh = object()
    compat.set_device_mesh(model, mesh)
    assert model.device_mesh is mesh


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (DistributedDataParallel, "_build_params_for_reducer"),
        (DDPStrategy, "_setup_model"),
        (ModelParallelStrategy, "_setup_distributed"),
        (ModelCheckpoint, "_save_checkpoint"),
        (ModelCheckpoint, "_remove_checkpoint"),
    ],
)
def test_what_is_overridden_or_called_of_a_class_is_there(owner, name):
    assert callable(getattr(owner, name))


def test_what_subclasses_read_of_their_classes_is_there():
    assert {"_last_global_step_saved", "_last_checkpoint_saved"} <= vars(ModelCheckpoint()).keys()
    assert "_ddp_kwargs" in vars(DDPStrategy())
    assert {"_device_mesh", "_process_group_backend"} <= vars(ModelParallelStrategy()).keys()


def test_the_store_that_is_narrowed_is_torchs_own():
    assert dist.TCPStore.__init__.__doc__ is not None
    assert "master_listen_fd" in dist.TCPStore.__init__.__doc__


def test_no_other_module_reaches_for_private_parts_of_torch():
    private = re.compile(  # a text that names what user code may call uses nothing
        r"(?<!\")torch(\.\w+)*\._[a-z]|_non_persistent_buffers_set|\b(module|owner|inner)\._(buffers|parameters)"
    )
    others = (
        path
        for path in (REPOSITORY / "src").rglob("*.py")
        if not path.name.startswith("lightning_")
    )
    assert [str(path) for path in others if private.search(path.read_text())] == []


@pytest.fixture
def group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_parameters_that_some_steps_leave_out_are_named_by_the_step_behind(group_of_one):
    class Skipping(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, features, skips):
            return self.first(features) if skips else self.last(self.first(features))

    skipped, features = [False, False, True, False], torch.ones(1, 2)
    module = _SteadyBuckets(Skipping())
    for skips in skipped[:3]:
        module(features, skips).sum().backward()
    with pytest.raises(ConfigError, match=r"^last.weight, last.bias got no gradient in a training"):
        module(features, skips=False)
    module = _SteadyBuckets(Skipping(), find_unused_parameters=True)
    for skips in skipped:
        module(features, skips).sum().backward()
    with pytest.raises(RuntimeError, match="mat1"):
        module(torch.ones(1, 3), skips=False)


def test_calls_in_hooks_are_told_from_lightnings_own_and_know_their_step():
    seen = []

    class Steps(DummyLogger):
        def log_metrics(self, metrics, step):
            seen.append((compat.is_in_hook(trainer), compat.current_step(trainer), step + 1))

    class Hooks(Model):
        def training_step(self, batch, batch_idx):
            assert compat.is_in_hook(trainer)
            assert compat.current_step(trainer) == batch_idx + 1
            return super().training_step(batch, batch_idx)

        def on_train_batch_end(self, *_):
            compat.update_step_metrics(trainer)
            assert compat.is_in_hook(trainer)

        def on_train_epoch_end(self):
            assert compat.current_step(trainer) == 4

    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=Steps(), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(Hooks(), DataLoader(TensorDataset(torch.ones(4, 4)), batch_size=1))
    in_hook = {one for one, _, _ in seen}
    assert in_hook == {False}
    assert [at for _, _, at in seen] == [1, 1, 2, 2, 3, 3, 4, 4, 4]
    assert all(at == current for _, current, at in seen[:-1])  # the last is of the epoch
