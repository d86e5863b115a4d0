"""Check that the callbacks of `runtime.callbacks` change no result: train a few steps with and without them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from blake3 import blake3
from pytorch_lightning.callbacks import Callback

from shardline.checkpoints.boundaries import after_hook
from shardline.checkpoints.ranks import random_numbers
from shardline.config.callbacks import RUNTIME_CALLBACKS, read_callbacks
from shardline.training.stop_agreement import StepsDone

_EPOCHS = 3  # of one step and one validation each

Trace = dict[str, dict[str, Any]]  # state by place in the training


def compare(
    train: Callable[[Sequence[Any], Callback], None], listed: Sequence[Any]
) -> tuple[list[str], list[str]]:
    """Compare trainings with and without callbacks.

    Args:
        train: Function that trains with callbacks of a setting and one more, from the beginning.
        listed: Value of `runtime.callbacks`.

    Returns:
        A sentence for each callback that changes a result, and a sentence if that is unknown.
    """

    def trace(callbacks: Sequence[Any]) -> Trace:
        watch = _Watch()
        train(callbacks, watch)
        return watch.found

    without = trace([])
    if not first_difference(without, trace(listed)):
        return [], []
    if found := first_difference(without, trace([])):
        return [], [
            f"{RUNTIME_CALLBACKS} was not compared: two trainings without them differ in {found}"
        ]
    problems = []
    for named, one in zip(read_callbacks(listed, RUNTIME_CALLBACKS, ""), listed, strict=True):
        if found := first_difference(without, trace([one])):
            problems.append(_sentence(named.shown, found))
    return problems or [_sentence(RUNTIME_CALLBACKS, "the training together")], []


def _sentence(shown: str, found: str) -> str:
    return (
        f"{shown} changes {found}, expected no change of a result; list it under `callbacks` of the run, where it "
        "counts in the identity"
    )


def first_difference(one: Trace, other: Trace) -> str:
    """Return the first part of two states that differs, and where; empty if none does."""
    for place in [*one, *other]:
        mine, its = one.get(place), other.get(place)
        if mine is None or its is None:
            return f"the number of steps ({place})"
        for part in [*mine, *its]:
            if mine.get(part) != its.get(part):
                return f"{part} {place}"
    return ""


class _Watch(Callback):
    """Records the state of a training behind each step, validation and epoch, and ends the training."""

    def __init__(self) -> None:
        self.found: Trace = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Record behind the hooks of all callbacks, which Lightning calls before the model's."""
        for hook, place in (
            ("on_train_batch_end", "behind step"),
            ("on_validation_end", "behind the validation at step"),
        ):
            after_hook(pl_module, hook, lambda place=place: self._record(trainer, place))  # type: ignore[misc]

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record behind an epoch, and raise StepsDone after the last."""
        self._record(trainer, "behind the epoch of step")
        if trainer.current_epoch >= _EPOCHS:
            raise StepsDone

    def _record(self, trainer: pl.Trainer, place: str) -> None:
        self.found[f"{place} {trainer.global_step}"] = dict(_state(trainer))


def _state(trainer: pl.Trainer) -> Iterator[tuple[str, Any]]:
    for name, value in trainer.lightning_module.state_dict().items():
        yield f"weight {name}", _digest(value)
    for name, parameter in trainer.lightning_module.named_parameters():
        yield f"requires_grad of {name}", parameter.requires_grad
    for number, optimizer in enumerate(trainer.optimizers):
        yield f"the state of optimiser {number}", _digest(optimizer.state_dict())
    for name, states in random_numbers().items():
        yield f"the random numbers of {name}", _digest(states)
    yield "trainer.should_stop", trainer.should_stop


def _digest(value: Any) -> Any:
    """Return a nested value with digests in place of tensors."""
    if isinstance(value, torch.Tensor):
        values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), blake3(values.numpy().tobytes()).hexdigest()
    if isinstance(value, Mapping):
        return {key: _digest(item) for key, item in value.items()}
    return [_digest(item) for item in value] if isinstance(value, list | tuple) else value
