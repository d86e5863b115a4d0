"""An orderly stop: once any rank is asked to, all of them save at the same step, and end."""

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Callback

from shardline.checkpoints.boundaries import after_hook, can_save
from shardline.checkpoints.saver import LastCheckpoint
from shardline.errors import Stopped
from shardline.launch import signals
from shardline.launch.pulse import REASONS, mine
from shardline.launch.world import World


class AgreedStop(Callback):
    """Ends a training that was asked to stop, where all ranks agree to save.

    At each step boundary every rank begins a small all-reduce of what it was asked, in a gloo group
    of its own, and reads the one that it began a step before. So no step waits for it, and all
    ranks act at the same step: the second boundary after the first of them was asked. Between two
    epochs they agree at once. A training that has done its steps comes to no boundary any more,
    and is sealed.

    Args:
        world: this rank's place.
        saver: saves the state; stands before this callback.
    """

    def __init__(self, world: World, saver: LastCheckpoint) -> None:
        self._is_alone, self._saver = world.world_size == 1, saver
        self._group: dist.ProcessGroup | None = None
        self._asked = torch.zeros(1, dtype=torch.int32)
        self._reduction: dist.Work | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Come behind the model's own hook, and keep Lightning from handling SIGTERM.

        Its handler starts a collective of all ranks wherever the signal strikes one of them.
        """
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
        after_hook(pl_module, "on_train_batch_end", lambda: self._end_batch(trainer))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """From now on there is something to save."""
        self._reduction = None
        if not self._is_alone:
            self._group = dist.new_group(backend="gloo")
        signals.can_save()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Act between two epochs, and before the first step."""
        if reason := self._agreed() or self._agree_now():
            self._stop(trainer, reason)

    def _end_batch(self, trainer: pl.Trainer) -> None:
        if not can_save(trainer):
            return
        if reason := self._agreed():
            self._stop(trainer, reason)
        self._begin()

    def _stop(self, trainer: pl.Trainer, reason: str) -> None:
        if trainer.global_step:
            self._saver.save(trainer, wait=True)
        raise Stopped(reason, self._saver.step_saved())

    def _agree_now(self) -> str | None:
        self._begin()
        return self._agreed()

    def _begin(self) -> None:
        if self._is_alone:
            return
        reason = mine().stop_reason()
        self._asked[0] = REASONS.index(reason) + 1 if reason else 0
        self._reduction = dist.all_reduce(
            self._asked, dist.ReduceOp.MAX, group=self._group, async_op=True
        )

    def _agreed(self) -> str | None:
        if self._is_alone:
            return mine().stop_reason()
        if self._reduction is None:
            return None
        self._reduction.wait()
        self._reduction = None
        code = int(self._asked)
        return REASONS[code - 1] if code else None
