"""Lightning's callbacks that average weights: which of them can be resumed, and what their states leave out."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytorch_lightning as pl
import torch

from shardline.checkpoints.model_extras import hidden_buffers, own_buffers, set_buffers
from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import average_of, latest_update_epoch, set_latest_update_epoch

State = list[dict[str, Any]]


def check_averaging(callbacks: Iterable[Any], *, is_sharded: bool) -> None:
    """Refuse callbacks whose averages could not be resumed, validated or sealed.

    Raises:
        ConfigError: names the callback, and what to use in its place.
    """
    callbacks = [*callbacks]
    for callback in callbacks:
        if _is_a(callback, "StochasticWeightAveraging"):
            raise ConfigError(
                f"configure_callbacks gives a {type(callback).__name__}, whose averages are put in when the training "
                "ends, where no validation chooses them, and whose schedule is lost at a resume; expected averages "
                "that are validated: use EMAWeightAveraging, or WeightAveraging with a should_update that returns "
                "True at epochs' ends"
            )
    averaging = [type(one).__name__ for one in callbacks if _is_a(one, "WeightAveraging")]
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


def _is_a(callback: Any, name: str) -> bool:
    # of either copy of Lightning
    return any(
        cls.__name__ == name and cls.__module__.split(".")[0] in ("pytorch_lightning", "lightning")
        for cls in type(callback).__mro__
    )


def collect(trainer: pl.Trainer) -> State:
    """Return what each average's own state leaves out: its last epoch, and buffers that are not persistent."""
    return [
        {"epoch": latest_update_epoch(callback), "buffers": dict(hidden_buffers(average))}
        for callback, average in _averages(trainer)
    ]


def restore(trainer: pl.Trainer, states: State) -> list[str]:
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
