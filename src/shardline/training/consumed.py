"""Count the batches that a training, validation or evaluation consumed, and compare with the data.

The hooks and callbacks of a model can make Lightning stop early. So batches are counted when they
end, and no count comes from a loader or a setting.
"""

from collections.abc import Iterator, Mapping
from functools import wraps
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback, EarlyStopping

from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import is_accumulating
from shardline.data.datamodule import ShardDataModule
from shardline.data.window_stream import WindowStream
from shardline.records.measured import ConsumedSteps
from shardline.training.evaluation_ranks import EvaluationRanks


class Scored(Callback):
    """Counts the samples of a held-out split that this rank has scored.

    Args:
        stream: Stream of the split's batches.
    """

    def __init__(self, stream: WindowStream[Any]) -> None:
        self._stream, self._samples = stream, 0

    def add(self) -> None:
        """Count the last batch of the stream."""
        self._samples += len(self._stream.batch_ids)

    def on_test_batch_end(self, *_: Any) -> None:
        """Count a batch of `trainer.test`."""
        self.add()

    def on_validation_batch_end(self, *_: Any) -> None:
        """Count a batch of `trainer.validate`."""
        self.add()

    def total(self, ranks: EvaluationRanks, num_rows: int, what: str) -> int:
        """Return the number of scored samples of all ranks; every rank must call this.

        Args:
            num_rows: Number of samples of the split.
            what: Beginning of the message.

        Raises:
            ConfigError: The number differs from `num_rows`.
        """
        ranks.join()
        total: int = sum(ranks.gather(self._samples))
        if total != num_rows:
            raise ConfigError(
                f"{what} scored {total} samples, expected all {num_rows} samples of the split; look in the model for a "
                "hook or callback that sets trainer.limit_test_batches or a similar attribute, and remove it"
            )
        return total


class Consumed(Callback):
    """Counts training steps, and rejects a training or validation that ends early without a reason.

    Valid reasons are early stopping, `trainer.should_stop` set by the model, and an
    `on_train_batch_start` that returns -1. They are recorded.

    Args:
        data: Data module of the run.
        max_epochs: The run's `trainer.max_epochs`.
        what: Beginning of messages.
    """

    def __init__(self, data: ShardDataModule, max_epochs: int, what: str) -> None:
        self._data, self._max_epochs, self._what = data, max_epochs, what
        self._steps = 0
        self._validated = 0
        self._skips, self._first_skip = 0, 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Wrap the model's `on_train_batch_start` to record epochs that it cuts short."""
        hook = pl_module.on_train_batch_start
        if getattr(hook, "__func__", None) is pl.LightningModule.on_train_batch_start:
            return

        @wraps(hook)
        def noted(*args: Any, **options: Any) -> Any:
            found = hook(*args, **options)
            if found == -1:
                self._first_skip = self._first_skip if self._skips else trainer.global_step
                self._skips += 1
            return found

        pl_module.on_train_batch_start = noted  # type: ignore[method-assign]

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reject an epoch with fewer batches than the data has.

        Raises:
            ConfigError: The message names both numbers.
        """
        expected, found = len(self._data.loader), trainer.num_training_batches
        if found != expected:
            raise ConfigError(
                f"{self._what}: Lightning would train on {found:g} of the {expected} batches of epoch "
                f"{trainer.current_epoch + 1}, expected all; look in the model for a hook or callback that sets "
                "trainer.limit_train_batches or a similar attribute, and set data.epoch_samples instead"
            )

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Count the steps."""
        self._steps += not is_accumulating(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reset the count of validation batches."""
        self._validated = 0

    def on_validation_batch_end(self, *_: Any) -> None:
        """Count a batch of the validation."""
        self._validated += 1

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reject a validation of only a part of the split, since its metric chooses the weights.

        Raises:
            ConfigError: The message names both numbers.
        """
        expected = len(self._data.val_dataloader())
        if self._validated != expected:
            raise ConfigError(
                f"{self._what}: a validation read {self._validated} of its {expected} batches, expected all, since its "
                "metric chooses the weights; look in the model for a hook or callback that sets "
                "trainer.limit_val_batches or a similar attribute, and set a smaller share in `splits` instead"
            )

    def state_dict(self) -> dict[str, int]:
        """Return the counts, in steps: another number of ranks has other batches per step."""
        return {"steps": self._steps, "skips": self._skips, "first_skip": self._first_skip}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Continue from saved counts."""
        self._steps = state_dict["steps"]
        self._skips, self._first_skip = state_dict["skips"], state_dict["first_skip"]

    def result(self, trainer: pl.Trainer) -> ConsumedSteps:
        """Return the steps of an ended training, the planned steps, and why there are fewer.

        Raises:
            ConfigError: There are fewer steps than planned, and no reason is known.
        """
        planned, reasons = self._data.total_steps, [*self._reasons(trainer)]
        steps = self._steps
        if steps < planned and not reasons:
            raise ConfigError(
                f"{self._what}: the training ended after {steps} of {planned} steps ({self._max_epochs} epochs), and "
                "neither early stopping nor trainer.should_stop is the reason; look in the model for a hook or "
                "callback that changes max_steps or max_epochs of Lightning's loops, and set trainer.max_epochs or "
                "data.epoch_samples instead"
            )
        return ConsumedSteps(steps=steps, planned=planned, reasons=reasons)

    def _reasons(self, trainer: pl.Trainer) -> Iterator[str]:
        if self._skips:
            first = self._first_skip
            yield f"on_train_batch_start returned -1 in {self._skips} epochs, first after step {first}"
        stopped = [one for one in trainer.early_stopping_callbacks if one.stopped_epoch]
        if stopped:
            names = ", ".join(str(one.monitor) for one in stopped if isinstance(one, EarlyStopping))
            yield f"early stopping by {names}"
        elif trainer.should_stop:
            yield "the model or one of its callbacks set trainer.should_stop"
