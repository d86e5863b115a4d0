"""Lightning's callbacks that average weights: which of them can be resumed, and what their states leave out."""

from collections.abc import Iterable, Iterator
from typing import Any, TypedDict

import pytorch_lightning as pl
import torch
import torch.distributed as dist

from shardline.checkpoints.model_extras import hidden_buffers, own_buffers, set_buffers
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
    """What an average's own state leaves out: its last epoch, and buffers that are not persistent."""

    epoch: int
    buffers: dict[str, torch.Tensor | None]


def check_averaging(
    callbacks: Iterable[Any], module: pl.LightningModule, *, is_sharded: bool
) -> None:
    """Refuse callbacks whose averages could not be resumed, validated or sealed, and prepare the others.

    Raises:
        ConfigError: names the callback, and what to use in its place.
    """
    found = [one for one in callbacks if _is_a(one, "WeightAveraging") or _is_stochastic(one)]
    averaging = [type(one).__name__ for one in found]
    if averaging and is_sharded:
        raise ConfigError(
            f"configure_callbacks gives {averaging[0]}, which holds the weights as a whole, and strategy=fsdp has "
            "them in shards; set strategy: ddp, or leave the callback out"
        )
    if len(averaging) > 1:
        raise ConfigError(
            f"configure_callbacks gives {' and '.join(averaging)}, which would exchange each other's averages; "
            "expected one callback that averages weights"
        )

    for callback in filter(_is_stochastic, found):
        if not module.automatic_optimization and batch_norms(module):
            raise ConfigError(
                f"configure_callbacks gives a {type(callback).__name__}, whose averages need statistics of BatchNorm, "
                "and the model, with automatic_optimization = False, takes optimizer steps in training_step; use "
                "EMAWeightAveraging, or a norm without running statistics, such as GroupNorm"
            )
        # its epoch for the statistics of BatchNorm would count as one of the training's; see `refresh_statistics`
        callback.pl_module_contains_batch_norm = lambda _: False


def _is_stochastic(callback: Any) -> bool:
    return _is_a(callback, "StochasticWeightAveraging")


def _is_a(callback: Any, name: str) -> bool:
    # of either copy of Lightning
    return any(
        cls.__name__ == name and cls.__module__.split(".")[0] in ("pytorch_lightning", "lightning")
        for cls in type(callback).__mro__
    )


def collect(trainer: pl.Trainer) -> list[AverageState]:
    """Return what each average's own state leaves out."""
    return [
        {"epoch": latest_update_epoch(callback), "buffers": dict(hidden_buffers(average))}
        for callback, average in _averages(trainer)
    ]


def restore(trainer: pl.Trainer, states: list[AverageState]) -> list[str]:
    """Give the averages what they had; returns a sentence for what could not be put back."""
    left = []
    for (callback, average), state in zip(_averages(trainer), states, strict=False):
        set_latest_update_epoch(callback, state["epoch"])
        left += set_buffers(average, state["buffers"])
    return left


def collect_own(trainer: pl.Trainer) -> list[dict[str, torch.Tensor]]:
    """Return the buffers of averages in which this rank differs from rank 0; each rank calls this."""
    return [own_buffers(trainer, average) for _, average in _averages(trainer)]


def restore_own(trainer: pl.Trainer, buffers: list[dict[str, torch.Tensor]]) -> list[str]:
    """Give this rank's averages the buffers that `collect_own` has returned."""
    pairs = zip(_averages(trainer), buffers, strict=False)
    return [left for (_, average), mine in pairs for left in set_buffers(average, mine)]


def _averages(trainer: pl.Trainer) -> Iterator[tuple[Any, torch.nn.Module]]:
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # not declared there
        if _is_a(callback, "WeightAveraging") and (average := average_of(callback)) is not None:
            yield callback, average


# ---- averages that are put in when the training ends


def resume_schedules(trainer: pl.Trainer, checkpoint: State) -> None:
    """Make the schedule of a `StochasticWeightAveraging` again, before states of optimisers and schedules are restored.

    Lightning takes the model's own away, and makes this one at the next epoch's start: what is left of the present
    epoch would have none, and making it changes the learning rates that were restored.
    """
    for callback in _stochastic(trainer):
        state = checkpoint["callbacks"].get(callback.state_key) or {}
        if state.get("scheduler_state"):
            begin_averaging(callback, trainer)


def has_stochastic(trainer: pl.Trainer) -> bool:
    """Return whether a callback puts averages in when the training ends."""
    return bool(_stochastic(trainer))


def refresh_statistics(trainer: pl.Trainer) -> None:
    """Take the statistics of BatchNorm for the weights of now, by the last epoch's batches."""
    norms = batch_norms(trainer.lightning_module)
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # all batches count alike
    memory = heartbeat_memory.mine()
    loader: Any = trainer.train_dataloader
    for _ in training_steps(trainer, loader.again()):
        memory.tick(trainer.global_step, "validation")
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        for buffer in norm.buffers() if trainer.world_size > 1 else ():
            dist.broadcast(buffer, 0)  # each rank had other samples


def _stochastic(trainer: pl.Trainer) -> list[Any]:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # not declared there
    return [one for one in callbacks if _is_stochastic(one)]
