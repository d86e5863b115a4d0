"""Validations within an epoch, and at the end of a training that ends within one."""

from typing import Any

import pytorch_lightning as pl

from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import may_end_early, plan_steps
from shardline.core.lightning_validations import Validations
from shardline.data.datamodule import ShardDataModule
from shardline_io.order.lengths import part_of


def plan_validations(
    trainer: pl.Trainer, settings: RunSettings, data: ShardDataModule, run: str
) -> "Places | None":
    """Make a Trainer validate where `trainer.val_check_interval` and `trainer.max_steps` say.

    Args:
        run: Title of the run.

    Returns:
        The places; None for those of Lightning.

    Raises:
        ConfigError: An epoch has fewer steps than the interval, or a training fewer than `trainer.max_steps`.
    """
    given = settings.trainer
    every, last = given.val_check_interval, given.max_steps
    has_interval = isinstance(every, int) or every < 1
    if last > 0:
        _check_reached(data, last, run)
        plan_steps(trainer, last)
    if has_interval and isinstance(every, int) and every > (steps := data.order.epoch_steps(0)):
        raise ConfigError(
            f'run "{run}": trainer.val_check_interval={every} is more than the {steps} steps of an epoch; use at most '
            f"{steps}, or set trainer.validate_every_epochs"
        )
    if not has_interval and last < 0:
        return None
    places = Places(trainer, settings, data, has_interval=has_interval)
    Validations(trainer, places.is_due)
    return places


def _check_reached(data: ShardDataModule, last: int, run: str) -> None:
    if data.total_steps < last:
        raise ConfigError(
            f'run "{run}": trainer.max_steps={last} is not reached in trainer.max_epochs={data.num_epochs} epochs, '
            f"which have {data.total_steps} steps; set trainer.max_epochs=-1 for as many epochs as it takes, or "
            f"trainer.max_steps to at most {data.total_steps}"
        )


class Places:
    """The places of the validations of a training.

    Attributes:
        is_only_at_end: Whether the last validation follows the training's last batch for no other reason.
    """

    def __init__(
        self, trainer: pl.Trainer, settings: RunSettings, data: ShardDataModule, *, has_interval: bool
    ) -> None:  # fmt: skip
        self._trainer, self._data, self._has_interval = trainer, data, has_interval
        self._every = settings.trainer.val_check_interval
        self._every_epochs = settings.trainer.validate_every_epochs
        self._accumulate = settings.trainer.accumulate
        self.is_only_at_end = False

    def is_due(self, is_due_for_lightning: bool) -> bool:
        """Return whether a validation follows the current batch."""
        trainer = self._trainer
        epoch, progress = trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress
        if trainer.should_stop and may_end_early(trainer):
            return is_due_for_lightning
        is_last = progress.is_last_batch and epoch + 1 == self._data.num_epochs
        is_due = self._is_due(epoch, is_due_for_lightning)
        self.is_only_at_end = is_last and not is_due
        return is_last or is_due

    def _is_due(self, epoch: int, is_due_for_lightning: bool) -> bool:
        """Return whether a validation follows the current batch in a training of any length."""
        progress = self._trainer.fit_loop.epoch_loop.batch_progress
        if not self._has_interval:
            return is_due_for_lightning
        current: Any = progress.current
        step, rest = divmod(current.ready, self._accumulate)
        every = part_of(self._data.order.epoch_steps(epoch), self._every)
        return not rest and step % every == 0 and (epoch + 1) % self._every_epochs == 0
