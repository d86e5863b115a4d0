"""Access to private parts of Lightning and torch; only `lightning_repeats` and `lightning_validations` have others.

Each part has a contract test in `tests/unit/core/test_lightning_compat.py`. The test names the version that it
was written for, and fails if another version has changed the part. Private methods that Shardline overrides, such
as `SteadyDDPStrategy._setup_model`, are tested there too.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import SimpleNamespace
from typing import Any, cast

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from lightning_fabric.utilities.seed import _collect_rng_states, _set_rng_states
from pytorch_lightning.trainer.connectors import callback_connector
from pytorch_lightning.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultMetric,
    _Sync,
)
from pytorch_lightning.utilities.signature_utils import is_param_in_hook_signature
from torch._dynamo import OptimizedModule
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torchmetrics import Metric

from shardline.core.lightning_repeats import spare_repeats

State = dict[str, Any]  # state that Lightning saves and restores, of a training or a part of it
LoggedMetric = _ResultMetric  # the values of one name that `self.log` collects within an epoch

_BROADCAST_BYTES = 250 << 20  # at a time, as DDP


# ---- the Trainer

FACTORIES = ("pytorch_lightning.callbacks_factory", "lightning.pytorch.callbacks_factory")


def new_trainer(**given: Any) -> pl.Trainer:
    """Create a Trainer that depends on nothing but its arguments.

    Lightning reads `PL_TRAINER_<ARGUMENT>` for each missing argument, and adds the callbacks that
    installed packages register as entry points. So all arguments are passed here, and such callbacks
    are ignored with a message.
    """
    spare_repeats()
    defaults = {name: one.default for name, one in inspect.signature(pl.Trainer).parameters.items()}
    _CONNECTOR._load_external_callbacks = _left_out_callbacks
    try:
        return _Trainer(**{**defaults, **given})
    finally:
        _CONNECTOR._load_external_callbacks = _LOAD


class _Trainer(pl.Trainer):
    """A Trainer that may know its number of steps, and records which code reads the training's length."""

    planned_steps: int | None = None

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Number of optimiser steps of the training."""
        self._note("estimated_stepping_batches")
        known = self.planned_steps
        return super().estimated_stepping_batches if known is None else known

    @property
    def max_epochs(self) -> int | None:
        """Number of epochs of the training."""
        self._note("max_epochs")
        return super().max_epochs

    @property
    def max_steps(self) -> int:
        """Number of steps of the training for Lightning."""
        self._note("max_steps")
        return super().max_steps

    @property
    def num_training_batches(self) -> int | float:
        """Number of batches of an epoch, fewer where the end of the training cuts the epoch."""
        self._note("num_training_batches", epoch_reads)
        return super().num_training_batches

    @property
    def train_dataloader(self) -> Any:
        """Loader of the batches, whose length is that of an epoch."""
        self._note("train_dataloader", epoch_reads)
        return super().train_dataloader

    @property
    def is_last_batch(self) -> bool:
        """Whether the batch is the last one of its epoch."""
        self._note("is_last_batch", epoch_reads)
        return super().is_last_batch

    @property
    def val_check_batch(self) -> int | float | None:
        """Batches between two validations, which Lightning derives from the number of an epoch's batches."""
        self._note("val_check_batch", epoch_reads)
        return cast("int | float | None", vars(self)["val_check_batch"])

    @val_check_batch.setter
    def val_check_batch(self, batches: int | float | None) -> None:
        vars(self)["val_check_batch"] = batches

    @property
    def fit_loop(self) -> Any:
        """Loops of the training, which know where it and each epoch end."""
        # Lightning reads this some sixty times in a step
        if sys._getframe(1).f_globals.get("__name__") not in _QUIET:
            self._note("fit_loop", is_of_callbacks=False)
        return self.__dict__["fit_loop"]

    @fit_loop.setter
    def fit_loop(self, loop: Any) -> None:
        vars(self)["fit_loop"] = loop

    @property
    def datamodule(self) -> Any:
        """Data of the training, which knows all of its samples."""
        self._note("datamodule", is_of_callbacks=False)
        return vars(self)["datamodule"]

    @datamodule.setter
    def datamodule(self, data: Any) -> None:
        vars(self)["datamodule"] = data

    def _note(
        self, name: str, noted: Callable[[pl.Trainer], dict[str, None]] | None = None, *,
        is_of_callbacks: bool = True,
    ) -> None:  # fmt: skip
        """Note who reads a property, if that is code of a model or a callback.

        Args:
            is_of_callbacks: Whether the callbacks of Lightning count, most of which read counts of the loops only.
        """
        caller = sys._getframe(2)
        module = str(caller.f_globals.get("__name__", ""))
        is_own = module in _QUIET or module.partition(".")[0] in _NO_READERS
        if is_own:
            _QUIET.add(module)
        if not is_own or (is_of_callbacks and ".callbacks." in module):
            reads = (noted or length_reads)(self)
            reads[f"{module}:{caller.f_code.co_qualname} reads trainer.{name}"] = None


_NO_READERS = ("pytorch_lightning", "lightning", "lightning_fabric", "shardline")
_QUIET = set[str]()  # modules of these packages, whose reads count only if they are callbacks


def length_reads(trainer: pl.Trainer) -> dict[str, None]:
    """Return a sentence for each function of a model or callback that has read the length of the training."""
    reads: dict[str, None] = vars(trainer).setdefault("_length_reads", {})
    return reads


def epoch_reads(trainer: pl.Trainer) -> dict[str, None]:
    """Return a sentence for each function of a model or callback that has read the length of an epoch."""
    reads: dict[str, None] = vars(trainer).setdefault("_epoch_reads", {})
    return reads


@cache
def callback_factories() -> tuple[EntryPoint, ...]:
    """Return the functions of installed packages that Lightning would ask for callbacks."""
    # this reads a file of each package, so once for all Trainers of a process
    return tuple(one for group in FACTORIES for one in entry_points(group=group))


_CONNECTOR: Any = callback_connector
_LOAD = _CONNECTOR._load_external_callbacks


def _left_out_callbacks(_: str) -> list[Any]:
    for one in callback_factories():
        package = one.dist.name if one.dist else one.value
        print(
            f"ignored: the callbacks that the installed package {package} adds to every Trainer ({one.group}: "
            f"{one.name}); return them from the model's configure_callbacks to train with them",
            flush=True,
        )
    return []


# ---- progress of a training


def is_accumulating(trainer: pl.Trainer) -> bool:
    """Return whether the current batch accumulates gradients, without an optimiser step after it."""
    return trainer.fit_loop._should_accumulate()


def dump_state(trainer: pl.Trainer) -> State:
    """Return the state of a training as Lightning saves it, without writing a file."""
    return dict(trainer._checkpoint_connector.dump_checkpoint(weights_only=False))


def set_place(trainer: pl.Trainer, *, epoch: int, step: int) -> None:
    """Set the epoch and number of optimiser steps that a Trainer reports without training."""
    loop: Any = trainer.fit_loop
    loop.epoch_progress.current.processed = loop.epoch_progress.current.completed = epoch
    loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
    loop.epoch_loop.manual_optimization.optim_step_progress.total.completed = step


def ignore_signals(trainer: pl.Trainer) -> None:
    """Keep Lightning from handling SIGTERM.

    Lightning's handler starts a collective of all ranks wherever the signal interrupts one of them,
    and its loop broadcasts from rank 0 at each step whether a signal came.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


def may_end_early(trainer: pl.Trainer) -> bool:
    """Return whether `min_epochs` and `min_steps` allow a training to end now."""
    return trainer.fit_loop._can_stop_early


def plan_steps(trainer: pl.Trainer, steps: int) -> None:
    """Set the number of steps that `estimated_stepping_batches` returns.

    `max_steps` of Lightning would count a model's several optimisers, and change how a training resumes.
    """
    assert isinstance(trainer, _Trainer)
    trainer.planned_steps = steps


# ---- values that `self.log` collects


def update_step_metrics(trainer: pl.Trainer) -> None:
    """Update the metrics of the current step now; Lightning does so after the step's hooks."""
    module = trainer.lightning_module
    # not a call of the hook, in which this may happen, see `is_in_hook`
    hook, module._current_fx_name = module._current_fx_name, None
    try:
        trainer._logger_connector.update_train_step_metrics()
    finally:
        module._current_fx_name = hook


def is_in_hook(trainer: pl.Trainer) -> bool:
    """Return whether a hook of the model or of a callback is being called; Lightning itself logs between hooks."""
    return getattr(trainer.lightning_module, "_current_fx_name", None) is not None


def current_step(trainer: pl.Trainer) -> int:
    """Return the step that Lightning would record with metrics now, from 1; the last step once an epoch has ended."""
    epochs: Any = trainer.fit_loop.epoch_progress.total
    return int(
        trainer.fit_loop.epoch_loop._batches_that_stepped + (epochs.started > epochs.processed)
    )


def end_without_steps(trainer: pl.Trainer) -> None:
    """Make a Trainer call the hooks of start and end also if a resumed training has no step left.

    Lightning would return at once, as if the hooks of the end had been called before the state was saved.
    """
    loop = trainer.fit_loop
    is_without_data = property(lambda self: self.trainer.limit_train_batches == 0)
    loop.__class__ = type(type(loop).__name__, (type(loop),), {"skip": is_without_data})


def end_epoch_without_steps(trainer: pl.Trainer, *, is_validated: bool) -> None:
    """Make the epoch in which a training resumes end behind the batch of its state, as if that were the last one.

    A longer training has saved the state, in whose epoch more batches follow. Lightning would begin to count anew.

    Args:
        is_validated: Whether the validation behind the batch is in the state.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    run = loop.run

    def end(fetcher: Any) -> None:
        loop.run = run
        loop.restarting = False
        loop.batch_progress.increment_completed()
        loop.batch_progress.is_last_batch = True
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        if is_validated:
            loop._batches_that_stepped += 1
        else:
            loop.on_advance_end(fetcher)

    loop.run = end


def batches_left(trainer: pl.Trainer) -> int | float:
    """Return the number of batches of the epoch that no step has had yet."""
    return trainer.fit_loop.max_batches - trainer.fit_loop.epoch_loop.batch_progress.current.ready


def logged_metrics(trainer: pl.Trainer) -> dict[str, LoggedMetric]:
    """Return the metrics that `self.log` has collected in this epoch, by key; changing them changes Lightning's."""
    return trainer.fit_loop.epoch_loop._results


def results_of(trainer: pl.Trainer) -> dict[str, LoggedMetric]:
    """Return the metrics that `self.log` has collected since the current loop began, by key."""
    return {key: one for key, one in (trainer._results or {}).items() if not one.has_reset}


def drop_step_values(trainer: pl.Trainer) -> None:
    """Discard the logged values of the current step."""
    for metric in logged_metrics(trainer).values():
        metric._forward_cache = None


def logging_place(trainer: pl.Trainer) -> State:
    """Return the hook of the last call of `self.log`, and whether the epoch is in its first batch."""
    connector = trainer._logger_connector
    return {"first_loop_iter": connector._first_loop_iter, "current_fx": connector._current_fx}


def set_logging_place(trainer: pl.Trainer, place: State) -> None:
    """Restore the place that `logging_place` returned."""
    connector = trainer._logger_connector
    connector._first_loop_iter = place["first_loop_iter"]
    connector._current_fx = place["current_fx"]


def shown_metrics(trainer: pl.Trainer, name: str) -> State:
    """Return the dict behind `callback_metrics`, `logged_metrics` or `progress_bar_metrics`."""
    shown: State = getattr(trainer._logger_connector, f"_{name}")
    return shown


def make_logged_metric(
    trainer: pl.Trainer, meta: State, reduction: Any, *, is_tensor: bool, syncs: bool,
    rank_zero_only: bool,
) -> LoggedMetric:  # fmt: skip
    """Create the metric that `self.log` would create for one name.

    Args:
        meta: fields of Lightning's metadata, except for reduction and synchronisation.
        reduction: function that reduces the values of an epoch.
        syncs: whether the value is reduced over ranks.
        rank_zero_only: whether only rank 0 logs the metric.
    """
    described = _Metadata(**meta, reduce_fx=reduction)
    described.sync = _Sync(fn=trainer.strategy.reduce, _should=syncs, rank_zero_only=rank_zero_only)
    return _ResultMetric(described, is_tensor)


# ---- torchmetrics


def updates_of(metric: Metric) -> int:
    """Return the number of updates of a metric."""
    return metric._update_count


def set_updates(metric: Metric, count: int) -> None:
    """Set the number of updates of a metric, and discard its computed value."""
    metric._update_count = count
    metric._computed = None


# ---- torch's modules


def buffers_of(module: torch.nn.Module) -> dict[str, tuple[torch.Tensor | None, bool]]:
    """Return a module's own buffers by name (None without a value), and whether `state_dict` contains each."""
    hidden = module._non_persistent_buffers_set
    return {name: (value, name not in hidden) for name, value in module._buffers.items()}


def batch_norms(module: torch.nn.Module) -> list[_BatchNorm]:
    """Return the batch norms of a module that keep running statistics."""
    found = (one for one in module.modules() if isinstance(one, _BatchNorm))
    return [one for one in found if one.track_running_stats]


def is_compiled_module(module: torch.nn.Module) -> bool:
    """Return whether `module.compile()` or `torch.compile(module)` has compiled a module."""
    return isinstance(module, OptimizedModule) or module._compiled_call_impl is not None


def num_hooks(module: torch.nn.Module) -> int:
    """Return the number of hooks around the forward and backward passes of a module."""
    kinds = ("forward_pre", "forward", "backward_pre", "backward")
    return sum(len(getattr(module, f"_{kind}_hooks")) for kind in kinds)


# ---- random generators


def random_states() -> State:
    """Return the states of the random generators of Python, NumPy and torch."""
    return _collect_rng_states()


def set_random_states(states: State) -> None:
    """Restore the states that `random_states` returned."""
    _set_rng_states(states)


# ---- ranks


def settle_buckets(model: DistributedDataParallel) -> None:
    """Make DDP arrange its buckets now, as it does after its first step."""
    model.reducer._push_all_rebuilt_params()
    model.reducer._rebuild_buckets()


def check_gradients_are_summed(model: DistributedDataParallel) -> None:
    """Raise DDP's RuntimeError for parameters without a gradient in the last step now, not in the next step."""
    model.reducer._rebuild_buckets()


def broadcast_buffers(group: dist.ProcessGroup, buffers: Sequence[torch.Tensor]) -> None:
    """Broadcast the buffers of rank 0 to all ranks, as DDP does."""
    dist._broadcast_coalesced(group, [*buffers], _BROADCAST_BYTES, 0)  # type: ignore[attr-defined]


def set_device_mesh(module: pl.LightningModule, mesh: Any) -> None:
    """Set the `device_mesh` that a model's `configure_model` reads."""
    module._device_mesh = mesh


# ---- averages of weights


def average_of(callback: Any) -> torch.nn.Module | None:
    """Return the averaged model of a `WeightAveraging` callback; None before a training."""
    average = callback._average_model
    return None if average is None else average.module


def latest_update_epoch(callback: Any) -> int:
    """Return the epoch of the last update of a `WeightAveraging` callback; its state does not contain it."""
    return int(callback._latest_update_epoch)


def set_latest_update_epoch(callback: Any, epoch: int) -> None:
    """Restore the epoch that `latest_update_epoch` returned."""
    callback._latest_update_epoch = epoch


def begin_averaging(callback: Any, trainer: pl.Trainer) -> None:
    """Make a `StochasticWeightAveraging` callback create its schedule as in the epoch in which it began."""
    began = SimpleNamespace(
        current_epoch=callback.swa_start, max_epochs=trainer.max_epochs, optimizers=trainer.optimizers,
        lr_scheduler_configs=trainer.lr_scheduler_configs,
    )  # fmt: skip
    callback.on_train_epoch_start(began, trainer.lightning_module)


# ---- ModelCheckpoint


def pending_saves(callback: Any) -> State:
    """Return the part of a `ModelCheckpoint` that decides on its next save and is not in its state."""
    return {
        "step": callback._last_global_step_saved,
        "deferred": callback._defer_save_until_validation,
    }


def set_pending_saves(callback: Any, pending: State) -> None:
    """Restore the part that `pending_saves` returned."""
    callback._last_global_step_saved = pending["step"]
    callback._defer_save_until_validation = pending["deferred"]


# ---- passes at the end of a training


def training_steps(trainer: pl.Trainer, batches: Iterable[Any]) -> Iterator[None]:
    """Run the training steps of batches without gradients, hooks and logging."""
    module, plugin = trainer.lightning_module, trainer.precision_plugin
    has_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
    module.train()
    module.log = module.log_dict = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    try:
        with torch.no_grad(), plugin.train_step_context():
            for number, batch in enumerate(batches):
                here = trainer.strategy.batch_to_device(plugin.convert_input(batch))
                module.training_step(here, *([number] if has_index else []))
                yield
    finally:
        del module.log, module.log_dict


def validate_again(trainer: pl.Trainer) -> None:
    """Run the validation of a training with its hooks, without effect on early stopping."""
    should_stop = trainer.should_stop
    stopping = [(one, one.state_dict()) for one in trainer.early_stopping_callbacks]
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True
    trainer.should_stop = should_stop
    for one, state in stopping:
        one.load_state_dict(state)
