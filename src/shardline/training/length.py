"""What in a training depends on its length, so that a longer training does not pass through its states."""

import shutil
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from msgspec import structs
from pytorch_lightning import callbacks as lightning
from pytorch_lightning.callbacks import Callback

from shardline.checkpoints.boundaries import after_hook, is_in_epoch
from shardline.checkpoints.folder import list_saved
from shardline.checkpoints.kept import discard_from
from shardline.checkpoints.manifest import Bound
from shardline.config.resolved import as_type
from shardline.config.schedules import same_until
from shardline.config.settings.optim_settings import Schedule
from shardline.config.settings.run_settings import RunSettings, Trainer
from shardline.core.lightning_compat import batches_left, epoch_reads, length_reads
from shardline.data.datamodule import ShardDataModule
from shardline.training.outside_state import OutsideState
from shardline.training.validation_places import Places

_HARMLESS = (lightning.Timer, lightning.ModelCheckpoint)  # but see `_ends`
_LIBRARIES = ("shardline", "pytorch_lightning", "lightning")


class LengthBound(Callback):
    """Callback that knows why a longer training does not pass through the present state.

    Attributes:
        data: Data module of the run.
        places: Places of validations, if they are not where Lightning has them.
        lost: Values that had changed before the state from which the training resumed, and that began again.
    """

    def __init__(self) -> None:
        self.data: ShardDataModule | None = None
        self.places: Places | None = None
        self.lost: list[str] = []
        self._before: list[str] = []  # of earlier attempts
        self._before_of_epoch: list[str] | None = []
        self._reads: dict[str, None] = {}
        self._reads_of_epoch: dict[str, None] = {}
        self._validated = -1
        self._outside: OutsideState | None = None
        self._changed: list[str] = []
        self._has_warned = False

    @property
    def state_key(self) -> str:
        """Key of this callback's state in training checkpoints."""
        return "LengthBound"

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Find the record of the Trainer, and look at the values of the user's code once the training has begun."""
        self._reads, self._reads_of_epoch = length_reads(trainer), epoch_reads(trainer)
        after_hook(pl_module, "on_train_start", lambda: self._begin(trainer))

    def _begin(self, trainer: pl.Trainer) -> None:
        self._outside = OutsideState(trainer) if trainer.is_global_zero else None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the step of a validation."""
        self._validated = trainer.global_step

    def state_dict(self) -> dict[str, Any]:
        """Return the code that has read the training's length, and values of the user's code that no state contains.

        A resumed training may neither read the length again nor have the values.
        """
        if self._outside:
            self._changed = sorted({*self.lost, *self._outside.changed()})
            self._warn_of_unsaved(self._outside.plain_tensors())
        return self._known()

    def _warn_of_unsaved(self, tensors: Container[str]) -> None:
        """Warn once of values without which a resumed training has other bits; `CheckpointManager` warns of tensors."""
        names = [name for name in self._changed if name not in tensors]
        if names and not self._has_warned:
            self._has_warned = True
            print(
                f"warning: training checkpoints do not contain {_shortened(names)}, which changes while it trains; a "
                "resumed training starts with its initial value; keep it in a buffer, or save it in the model's "
                "on_save_checkpoint or the callback's state_dict",
                flush=True,
            )

    def _known(self) -> dict[str, Any]:
        of_epoch = self._before_of_epoch
        return {
            "reads": [*dict.fromkeys((*self._before, *self._reads))],
            "epoch": None if of_epoch is None else [*dict.fromkeys((*of_epoch, *self._reads_of_epoch))],
            "validated": self._validated,
            "outside": self._changed,
        }  # fmt: skip

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what earlier attempts have found."""
        self._before = [*state_dict["reads"]]
        self._before_of_epoch = state_dict.get("epoch")  # unknown to an earlier Shardline
        self._validated = state_dict.get("validated", -1)
        self.lost = [*state_dict.get("outside", [])]

    def is_before_cut(self, trainer: pl.Trainer) -> bool:
        """Return whether one step is left of a training that ends within an epoch: no longer one has its last state."""
        assert self.data is not None
        order, epoch = self.data.order, trainer.current_epoch
        if batches_left(trainer) > order.accumulate * self.data.batches_per_step(epoch):
            return False
        return order.steps(epoch) != order.epoch_steps(epoch)

    def of_state(self, trainer: pl.Trainer) -> Bound:
        """Return how far the present state, which `state_dict` has described, depends on the length."""
        assert self.data is not None
        known = self._known()
        found = [f"{reader}, which a longer training changes" for reader in known["reads"]]
        if names := known["outside"]:
            found.append(
                f"{_shortened(names)} changes while it trains, and no training checkpoint contains it"
            )
        if trainer.should_stop:
            found.append("its training was stopped early")
        is_within, order = is_in_epoch(trainer), self.data.order
        is_end = not is_within and trainer.current_epoch >= self.data.num_epochs
        epoch = trainer.current_epoch - is_end
        if is_end and order.steps(epoch) != order.epoch_steps(epoch):
            found.append("trainer.max_steps ends its training within an epoch")
        if is_end:
            found += _ends(trainer)
            if self.places and self.places.is_only_at_end:
                found.append("its last validation is one that only the end of a training has")
        epoch_end = self.data.steps_of(trainer.current_epoch + is_within)
        of_epoch = known["epoch"]
        if of_epoch is not None:
            of_epoch = [f"{one}, which an end within an epoch changes" for one in of_epoch]
        return Bound(
            reasons=found, is_within=is_within, epoch_end=epoch_end, planned=self.data.total_steps,
            is_validated=self._validated == trainer.global_step, of_cut=of_epoch,
        )  # fmt: skip


def check_continued(
    work: Path, settings: RunSettings, data: ShardDataModule, *, has_schedule: bool
) -> None:
    """Remove the state of a shorter training if its learning rates were others, as the exact steps of the data show.

    The job that took the state over did not read the data. Only rank 0 calls this, before the training resumes.

    Args:
        has_schedule: Whether the model uses the schedule of the settings.
    """
    newest = next(iter(list_saved(work / "checkpoints")), None)
    one = newest and newest.continued
    if not one or not one.settings or not has_schedule:
        return
    shorter = structs.replace(
        settings,
        trainer=as_type(one.settings["trainer"], Trainer),
        schedule=as_type(one.settings["schedule"], Schedule),
    )
    until = same_until(shorter, settings, data.steps_of)
    if one.step > until:
        print(
            f"warning: the run {one.run} is not continued from step {one.step:,}, since the learning rates differ from "
            f"step {until:,} on; training from step 0",
            flush=True,
        )
        discard_from(work / "checkpoints", 0)
        shutil.rmtree(work / "ledger", ignore_errors=True)


def _shortened(names: Sequence[str]) -> str:
    return names[0] + f" ({len(names) - 1} more)" * (len(names) > 1)


def _ends(trainer: pl.Trainer) -> Iterator[str]:
    """Yield a clause for each callback, and for the model, that acts at the end of a training."""
    owners: list[Any] = [*trainer.callbacks, trainer.lightning_module]  # type: ignore[attr-defined]
    for one in owners:
        hook = getattr(type(one), "on_train_end", None)
        if isinstance(one, Callback):  # `LambdaCallback` has the user's function itself
            hook = vars(one).get("on_train_end", hook)
        of = str(getattr(hook, "__module__", "")).split(".")
        is_plain = of[0] in _LIBRARIES and (of[0] == "shardline" or "callbacks" not in of)
        if is_plain or of[-2:] == ["callbacks", "callback"]:
            continue
        if isinstance(one, _HARMLESS) and of[0] in _LIBRARIES and not getattr(one, "save_last", 0):
            continue
        yield f"{type(one).__name__}.on_train_end changes the state at the end of a training"
