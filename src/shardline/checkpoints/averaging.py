"""Support for Lightning's callbacks that average weights: checks, and state that Lightning does not save."""

from collections.abc import Iterable, Iterator
from typing import Any, TypedDict

import pytorch_lightning as pl
import torch
import torch.distributed as dist

from shardline.checkpoints.model_extras import hidden_buffers, own_buffers, set_buffers
from shardline.core.dtypes import is_narrow
from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import (
    State,
    average_of,
    batch_norms,
    begin_averaging,
    latest_update_epoch,
    set_latest_update_epoch,
    training_steps,
)
from shardline_io import heartbeat_memory


class AverageState(TypedDict):
    """State of an average that Lightning does not save: its last epoch and its non-persistent buffers."""

    epoch: int
    buffers: dict[str, torch.Tensor | None]


def check_averaging(
    callbacks: Iterable[Any], module: pl.LightningModule, *, is_sharded: bool
) -> None:
    """Check that averages of callbacks can be resumed, validated and sealed, and prepare the callbacks.

    Raises:
        ConfigError: A callback is not supported. The message names it and an alternative.
    """
    found = [one for one in callbacks if _is_a(one, "WeightAveraging") or _is_stochastic(one)]
    averaging = [type(one).__name__ for one in found]
    if averaging and is_sharded:
        raise ConfigError(
            f"the callback {averaging[0]} needs whole weights, and strategy=fsdp shards them; "
            "set strategy: ddp, or remove the callback"
        )
    if len(averaging) > 1:
        raise ConfigError(
            f"the callbacks {' and '.join(averaging)} would exchange each other's averages, "
            "expected at most one callback that averages weights; remove the others"
        )

    narrow = next((one.dtype for one in module.parameters() if is_narrow(one.dtype)), None)
    for callback in found:
        if narrow and not _is_stochastic(callback):
            raise ConfigError(
                f"the callback {type(callback).__name__} averages weights in {str(narrow).removeprefix('torch.')}, in "
                "which its small changes are rounded away, so that the average would stay at the first weights; set "
                "precision: bf16-mixed, whose weights have 32 bits, or remove the callback"
            )
    for callback in filter(_is_stochastic, found):
        if not module.automatic_optimization and batch_norms(module):
            raise ConfigError(
                f"the callback {type(callback).__name__} updates the statistics of BatchNorm, but this is impossible "
                "in a model with automatic_optimization = False; use EMAWeightAveraging, or a norm without running "
                "statistics, such as GroupNorm"
            )
        # the callback's epoch for BatchNorm statistics would count as a training epoch; see `refresh_statistics`
        callback.pl_module_contains_batch_norm = lambda _: False


def _is_stochastic(callback: Any) -> bool:
    return _is_a(callback, "StochasticWeightAveraging")


def _is_a(callback: Any, name: str) -> bool:
    # both package names of Lightning
    return any(
        cls.__name__ == name and cls.__module__.split(".")[0] in ("pytorch_lightning", "lightning")
        for cls in type(callback).__mro__
    )


def collect(trainer: pl.Trainer) -> list[AverageState]:
    """Return the state of each average that Lightning does not save."""
    return [
        {"epoch": latest_update_epoch(callback), "buffers": dict(hidden_buffers(average))}
        for callback, average in _averages(trainer)
    ]


def restore(trainer: pl.Trainer, states: list[AverageState]) -> list[str]:
    """Restore the state of the averages, and return a sentence for each part that could not be restored."""
    left = []
    for (callback, average), state in zip(_averages(trainer), states, strict=False):
        set_latest_update_epoch(callback, state["epoch"])
        left += set_buffers(average, state["buffers"])
    return left


def collect_own(trainer: pl.Trainer) -> list[dict[str, torch.Tensor]]:
    """Return the buffers of averages that differ between this rank and rank 0. Each rank calls this."""
    return [own_buffers(trainer, average) for _, average in _averages(trainer)]


def restore_own(trainer: pl.Trainer, buffers: list[dict[str, torch.Tensor]]) -> list[str]:
    """Restore the buffers from `collect_own` in the averages of this rank."""
    pairs = zip(_averages(trainer), buffers, strict=False)
    return [left for (_, average), mine in pairs for left in set_buffers(average, mine)]


def _averages(trainer: pl.Trainer) -> Iterator[tuple[Any, torch.nn.Module]]:
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # not declared there
        if _is_a(callback, "WeightAveraging") and (average := average_of(callback)) is not None:
            yield callback, average


# ---- averages that replace the weights at the end of the training


def resume_schedules(trainer: pl.Trainer, checkpoint: State) -> None:
    """Recreate the schedule of `StochasticWeightAveraging` before optimizer and schedule states are restored.

    Lightning would create it at the start of the next epoch: the rest of the present epoch would have no schedule,
    and creating it changes restored learning rates.
    """
    for callback in _stochastic(trainer):
        state = checkpoint["callbacks"].get(callback.state_key) or {}
        if state.get("scheduler_state"):
            begin_averaging(callback, trainer)


def has_stochastic(trainer: pl.Trainer) -> bool:
    """Return whether a callback replaces the weights by averages at the end of the training."""
    return bool(_stochastic(trainer))


def refresh_statistics(trainer: pl.Trainer) -> None:
    """Recompute the statistics of BatchNorm for the present weights, from the batches of the last epoch."""
    norms = batch_norms(trainer.lightning_module)
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over all batches
    memory = heartbeat_memory.mine()
    loader: Any = trainer.train_dataloader
    for _ in training_steps(trainer, loader.again()):
        memory.tick(trainer.global_step, "validation")
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        for buffer in norm.buffers() if trainer.world_size > 1 else ():
            dist.broadcast(buffer, 0)  # each rank has seen other samples


def _stochastic(trainer: pl.Trainer) -> list[Any]:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # not declared there
    return [one for one in callbacks if _is_stochastic(one)]
