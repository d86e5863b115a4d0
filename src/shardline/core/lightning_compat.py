"""The private parts of Lightning and torch that Shardline needs, each used here and nowhere else.

Every one has a contract test in `tests/unit/core/test_lightning_compat.py`, which names the version that it was
written against and fails where another version has changed it. What Shardline overrides of their classes
(`SteadyDDPStrategy._setup_model` and the like) is tested there too.
"""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

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
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torchmetrics import Metric

State = dict[str, Any]  # what Lightning saves and restores, of a training or of a part of it
LoggedMetric = _ResultMetric  # what `self.log` keeps of one name within an epoch

_BROADCAST_BYTES = 250 << 20  # at a time, as DDP


# ---- the Trainer

FACTORIES = ("pytorch_lightning.callbacks_factory", "lightning.pytorch.callbacks_factory")


def new_trainer(**given: Any) -> pl.Trainer:
    """Make a Trainer that nothing but its arguments decides.

    Lightning reads `PL_TRAINER_<ARGUMENT>` for each argument that is not passed, and adds the callbacks
    that installed packages register as entry points. So all arguments are passed here, and the
    entry points are named and left out.
    """
    defaults = {name: one.default for name, one in inspect.signature(pl.Trainer).parameters.items()}
    _CONNECTOR._load_external_callbacks = _left_out_callbacks
    try:
        return pl.Trainer(**{**defaults, **given})
    finally:
        _CONNECTOR._load_external_callbacks = _LOAD


_CONNECTOR: Any = callback_connector
_LOAD = _CONNECTOR._load_external_callbacks


def _left_out_callbacks(_: str) -> list[Any]:
    for one in (one for group in FACTORIES for one in entry_points(group=group)):
        package = one.dist.name if one.dist else one.value
        print(
            f"ignored: the callbacks that the installed package {package} adds to every Trainer ({one.group}: "
            f"{one.name}); return them from the model's configure_callbacks to train with them",
            flush=True,
        )
    return []


# ---- where a training stands


def is_accumulating(trainer: pl.Trainer) -> bool:
    """Return whether the present batch ends no optimiser step."""
    return trainer.fit_loop._should_accumulate()


def dump_state(trainer: pl.Trainer) -> State:
    """Return the training's state as Lightning saves it, not written."""
    return dict(trainer._checkpoint_connector.dump_checkpoint(weights_only=False))


def set_place(trainer: pl.Trainer, *, epoch: int, step: int) -> None:
    """Have a trainer that trains nothing show an epoch and a number of optimiser steps."""
    loop: Any = trainer.fit_loop
    loop.epoch_progress.current.processed = loop.epoch_progress.current.completed = epoch
    loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
    loop.epoch_loop.manual_optimization.optim_step_progress.total.completed = step


def ignore_signals(trainer: pl.Trainer) -> None:
    """Keep Lightning from handling SIGTERM.

    Its handler starts a collective of all ranks wherever the signal interrupts one of them, and its
    loop asks rank 0 at each step whether there was one.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


# ---- what `self.log` keeps


def update_step_metrics(trainer: pl.Trainer) -> None:
    """Bring the metrics of the present step up to date, which Lightning does after the step's hooks."""
    trainer._logger_connector.update_train_step_metrics()


def logged_metrics(trainer: pl.Trainer) -> dict[str, LoggedMetric]:
    """Return what `self.log` has summed up in this epoch, by key; changes to it are changes there."""
    return trainer.fit_loop.epoch_loop._results


def results_of(trainer: pl.Trainer) -> dict[str, LoggedMetric]:
    """Return what `self.log` has summed up since the loop that is going on began, by key."""
    return {key: one for key, one in (trainer._results or {}).items() if not one.has_reset}


def drop_step_values(trainer: pl.Trainer) -> None:
    """Have nothing logged of the present step."""
    for metric in logged_metrics(trainer).values():
        metric._forward_cache = None


def logging_place(trainer: pl.Trainer) -> State:
    """Return the hook that `self.log` was called in last, and whether the epoch's first batch is going on."""
    connector = trainer._logger_connector
    return {"first_loop_iter": connector._first_loop_iter, "current_fx": connector._current_fx}


def set_logging_place(trainer: pl.Trainer, place: State) -> None:
    """Restore what `logging_place` has returned."""
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
    """Make what `self.log` would make of one name.

    Args:
        meta: fields of Lightning's description of it, but for its reduction and synchronisation.
        reduction: function that sums it up.
        syncs: whether ranks are averaged.
        rank_zero_only: whether rank 0 alone logs it.
    """
    described = _Metadata(**meta, reduce_fx=reduction)
    described.sync = _Sync(fn=trainer.strategy.reduce, _should=syncs, rank_zero_only=rank_zero_only)
    return _ResultMetric(described, is_tensor)


def spare_moves() -> None:
    """Have `self.log` move only what is not on its device yet.

    Lightning looks for tensors in all that it keeps of a metric at each call, which takes as long
    as the rest of `self.log`.
    """
    _ResultMetric.to = _stay  # type: ignore[method-assign,assignment]


def _stay(metric: LoggedMetric, device: torch.device) -> LoggedMetric:
    value = vars(metric).get("value")
    if metric.is_tensor and isinstance(value, torch.Tensor) and value.device == device:
        return metric
    return _MOVE(metric, device)


_MOVE = _ResultMetric.to


# ---- torchmetrics


def updates_of(metric: Metric) -> int:
    """Return how often a metric was updated."""
    return metric._update_count


def set_updates(metric: Metric, count: int) -> None:
    """Set how often a metric was updated, and drop the value that it has computed before."""
    metric._update_count = count
    metric._computed = None


# ---- torch's modules


def buffers_of(module: torch.nn.Module) -> dict[str, tuple[torch.Tensor | None, bool]]:
    """Return a module's own buffers by name, None where one has no value, and whether `state_dict` holds it."""
    hidden = module._non_persistent_buffers_set
    return {name: (value, name not in hidden) for name, value in module._buffers.items()}


def batch_norms(module: torch.nn.Module) -> list[_BatchNorm]:
    """Return the norms within a module that keep running statistics of batches."""
    found = (one for one in module.modules() if isinstance(one, _BatchNorm))
    return [one for one in found if one.track_running_stats]


def num_hooks(module: torch.nn.Module) -> int:
    """Return how many hooks run around a module's forward and backward passes."""
    kinds = ("forward_pre", "forward", "backward_pre", "backward")
    return sum(len(getattr(module, f"_{kind}_hooks")) for kind in kinds)


# ---- random generators


def random_states() -> State:
    """Return the states of Python's, NumPy's and torch's generators."""
    return _collect_rng_states()


def set_random_states(states: State) -> None:
    """Restore what `random_states` has returned."""
    _set_rng_states(states)


# ---- ranks


def settle_buckets(model: DistributedDataParallel) -> None:
    """Have DDP lay its buckets out now, as it does after its first step."""
    model.reducer._push_all_rebuilt_params()
    model.reducer._rebuild_buckets()


def check_gradients_are_summed(model: DistributedDataParallel) -> None:
    """Raise DDP's RuntimeError now where the last step gave some parameters no gradient; else the next step does."""
    model.reducer._rebuild_buckets()


def broadcast_buffers(group: dist.ProcessGroup, buffers: Sequence[torch.Tensor]) -> None:
    """Give all ranks the buffers of rank 0, as DDP does."""
    dist._broadcast_coalesced(group, [*buffers], _BROADCAST_BYTES, 0)  # type: ignore[attr-defined]


def set_device_mesh(module: pl.LightningModule, mesh: Any) -> None:
    """Set the mesh that a model's `configure_model` finds as `self.device_mesh`."""
    module._device_mesh = mesh


# ---- averages of weights


def average_of(callback: Any) -> torch.nn.Module | None:
    """Return the model that a `WeightAveraging` holds, None before a training."""
    average = callback._average_model
    return None if average is None else average.module


def latest_update_epoch(callback: Any) -> int:
    """Return the epoch after which a `WeightAveraging` was last updated; no state has it."""
    return int(callback._latest_update_epoch)


def set_latest_update_epoch(callback: Any, epoch: int) -> None:
    """Restore what `latest_update_epoch` has returned."""
    callback._latest_update_epoch = epoch


def begin_averaging(callback: Any, trainer: pl.Trainer) -> None:
    """Have a `StochasticWeightAveraging` make its schedule as in the epoch in which it began."""
    began = SimpleNamespace(
        current_epoch=callback.swa_start, max_epochs=trainer.max_epochs, optimizers=trainer.optimizers,
        lr_scheduler_configs=trainer.lr_scheduler_configs,
    )  # fmt: skip
    callback.on_train_epoch_start(began, trainer.lightning_module)


# ---- passes within a training's end


def training_steps(trainer: pl.Trainer, batches: Iterable[Any]) -> Iterator[None]:
    """Compute the training steps of batches without gradients and hooks, and log nothing."""
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
    """Run the training's validation, with all its hooks; nothing that it finds stops the training."""
    should_stop = trainer.should_stop
    stopping = [(one, one.state_dict()) for one in trainer.early_stopping_callbacks]
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True
    trainer.should_stop = should_stop
    for one, state in stopping:
        one.load_state_dict(state)
