"""Where in a training nothing is half done, and hooks that are called there."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytorch_lightning as pl

from shardline.core.lightning_compat import is_accumulating


def can_save(trainer: pl.Trainer) -> bool:
    """Return whether nothing is half done here: no accumulation, epoch's end or validation."""
    loop = trainer.fit_loop.epoch_loop
    if not is_in_epoch(trainer):
        epochs: Any = trainer.fit_loop.epoch_progress.total
        return bool(epochs.started == epochs.completed)
    batch: Any = loop.batch_progress.current
    is_in_batch_end = batch.processed > batch.completed
    is_last = trainer.is_last_batch or trainer.should_stop
    return is_in_batch_end and not is_last and not is_accumulating(trainer)


def is_in_epoch(trainer: pl.Trainer) -> bool:
    """Return whether an epoch has begun whose last batch is not over."""
    epochs: Any = trainer.fit_loop.epoch_progress.total
    return bool(epochs.started > epochs.processed)


def after_hook(module: pl.LightningModule, name: str, call: Callable[[], None]) -> None:
    """Have something called when a hook of the model is over."""
    hook = getattr(module, name)

    @wraps(hook)
    def hook_and_call(*args: Any, **kwargs: Any) -> Any:
        found = hook(*args, **kwargs)
        call()
        return found

    setattr(module, name, hook_and_call)
