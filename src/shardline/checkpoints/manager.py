"""The callback that saves training checkpoints and chooses the checkpoint to resume from."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback, GradientAccumulationScheduler

from shardline.checkpoints import averaging, model_extras, ranks
from shardline.checkpoints.arrangement import Arrangement
from shardline.checkpoints.best import BestCheckpoint
from shardline.checkpoints.boundaries import (
    NO_MILESTONES,
    Cadence,
    Milestones,
    after_batch,
    after_hook,
    can_save,
    is_behind_validation,
    is_in_epoch,
    settle,
    steps_recorded,
)
from shardline.checkpoints.folder import mark_milestone, newest_good, remove_scratch, scratch_folder
from shardline.checkpoints.manifest import Bound, CheckpointPolicy, Digests, TrainingCheckpoint
from shardline.checkpoints.sharded import ShardReader, StateShards, Writers, take_shards
from shardline.checkpoints.writer import STATE, Background, Snapshot, StateWriter
from shardline.core.errors import DataError, Diverged
from shardline.core.lightning_compat import (
    State,
    batches_left,
    dump_state,
    end_epoch_without_steps,
    end_without_steps,
    update_step_metrics,
)
from shardline.core.lightning_validations import Validations

_HYPER_PARAMETERS = "hyper_parameters"  # not saved: the model is made from `run.json`
_RANKS = "ranks"
_EXTRAS = "model_extras"
_AVERAGES = "averages"


class Records(Protocol):
    """Records of a training that its logger appends to a file."""

    num_records: int

    def rewind(self, step: int, num_records: int | None = None) -> None:
        """Keep the first records, or those up to a step where their number is unknown; step 0: a new training."""

    def continue_training(self) -> None:
        """Record again, once the state is restored."""


class CheckpointManager(Callback):
    """Callback that saves training checkpoints: at intervals, with each new best, and at the end.

    A state is saved only between complete operations: after all hooks of a batch that completed an
    optimizer step, between two epochs (after validation and metrics), or after all hooks of the
    training's end. The state is copied there. A thread digests, writes and prunes. Only one state
    is written at a time, and the next save waits for it.

    Args:
        folder: `checkpoints/` in the run's folder of the store.
        identity: Identity of the run (64 hex digits).
        policy: When to save, and how many checkpoints to keep.
        best: Callback that chooses the best weights, which each checkpoint lists.
        may_save: Called by all ranks before a state is saved. Returns False to skip the save, and raises if the
            training has to roll back.
        records: Records of the training, of which a resumed training keeps those before its state; None for none.
        bound: Called for each saved state. Returns how far it depends on the training's length; None if unknown.
        milestones: When to save a state that stays.
        is_last_to_continue: Called behind each step. Returns whether a longer training has no later state of this one,
            so that the present state is saved.

    Attributes:
        seconds: Total time for which trainings waited for saves, in seconds.
    """

    def __init__(
        self, folder: Path, identity: str, policy: CheckpointPolicy, best: BestCheckpoint, *,
        may_save: Callable[[pl.Trainer], bool] = lambda trainer: True,
        records: Records | None = None, milestones: Milestones = NO_MILESTONES,
        bound: Callable[[pl.Trainer], Bound | None] = lambda trainer: None,
        is_last_to_continue: Callable[[pl.Trainer], bool] = lambda trainer: False,
    ) -> None:  # fmt: skip
        self.seconds = 0.0
        self._folder, self._identity = folder, identity
        self._policy, self._best = policy, best
        self._may_save, self._records, self._milestones = may_save, records, milestones
        self._bound, self._is_last_to_continue = bound, is_last_to_continue
        self._cadence = Cadence(policy.every_steps, 60 * policy.every_min)
        self._writer = StateWriter(folder, identity, policy.keep)
        self._background, self._snapshot = Background(), Snapshot()
        self._arrangement = Arrangement()
        self._writers: Writers | None = None
        self._has_warned_of_slow_store = self._has_warned_of_unsaved = False
        self._step, self._is_mid_epoch = 0, False
        self._resumed_folder: Path | None = None
        self._resumed: State = {}
        self._has_averages = self._has_ended = False

    @property
    def state_key(self) -> str:
        """Key of this callback's state in training checkpoints, independent of the class name."""
        return "LastCheckpoint"

    def step_saved(self) -> int:
        """Return the optimizer step of the last saved or resumed state; 0 for none."""
        return self._step

    # ---- resuming

    def look_before_loading(self, module: pl.LightningModule) -> None:
        """Describe a new model before weights of another run are loaded; see `Arrangement`."""
        self._arrangement.look_before_loading(module)

    def resume_from(self, trainer: pl.Trainer) -> Path | None:
        """Return the path of the state to resume from, or None for a new training. Each rank calls this once.

        Raises:
            DataError: All training checkpoints are damaged, or one belongs to another run.
        """
        check = partial(self._arrangement.check, prints=trainer.is_global_zero)
        trainer.strategy.checkpoint_io = ShardReader(trainer.strategy, check)
        trainer.strategy.setup_environment()  # rank 0 chooses for all ranks
        chosen = self._choose() if trainer.is_global_zero else (None, "")
        saved, error = trainer.strategy.broadcast(chosen)
        if error:
            raise DataError(error)
        if saved is None:
            self._rewind(0, 0)
            return None
        self._step, self._resumed_folder = saved.step, saved.path
        self._writer.known, self._writer.continued = dict(saved.best), saved.continued
        if saved.bound is None:  # nobody has looked at the training up to this state
            self._bound = lambda trainer: None
        return saved.path / STATE

    def _choose(self) -> tuple[TrainingCheckpoint | None, str]:
        """Return the state to resume from, and an error for all ranks to raise (empty for none)."""
        remove_scratch(self._folder)
        try:
            saved, passed = newest_good(self._folder, self._identity)
        except DataError as error:
            return None, str(error)
        if saved is None:
            left = f"no intact training checkpoint is left in {self._folder}; delete it to train from the start"
            return None, "; ".join([*passed, left]) if passed else ""
        for sentence in passed:
            print(f"warning: {sentence}; resuming from step {saved.step} instead", flush=True)
        return saved, ""

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: State
    ) -> None:
        """Keep the state to restore later on each rank. Lightning loads its loops after this hook."""
        own = checkpoint["callbacks"][self.state_key]
        self._arrangement.check_callbacks(trainer, self._resumed_folder)
        self._resumed, self._is_mid_epoch = checkpoint, own["is_mid_epoch"]
        # Lightning does not save that a training was stopped early
        trainer.should_stop = trainer.should_stop or own["stopped"]
        # a state that a longer training saved may be the last of this one
        if not self._is_mid_epoch and not own.get("has_ended", True):
            end_without_steps(trainer)
        settle(checkpoint, is_mid_epoch=self._is_mid_epoch)
        recorded = steps_recorded(checkpoint, is_mid_epoch=self._is_mid_epoch)
        # the validation of averages is recorded one step after the last
        self._rewind(recorded + own.get("has_averages", False), own.get("num_records"))

    def _rewind(self, step: int, num_records: int | None = None) -> None:
        if self._records:
            self._records.rewind(step, num_records)

    def _restore(self, trainer: pl.Trainer) -> None:
        left = model_extras.restore(trainer.lightning_module, self._resumed[_EXTRAS])
        left += averaging.restore(trainer, self._resumed.get(_AVERAGES, []))
        for sentence in (*left, *ranks.restore(trainer, self._resumed[_RANKS])):
            print(f"warning: {sentence}", flush=True)
        for one in trainer.callbacks if self._is_mid_epoch else ():  # type: ignore[attr-defined]
            if isinstance(one, GradientAccumulationScheduler):
                # Lightning calls no hook of an epoch's start if a training resumes within the epoch
                one.on_train_epoch_start(trainer)
        self._resumed = {}
        if trainer.is_global_zero and self._milestones.is_due(trainer, self._step - 1):
            assert self._resumed_folder is not None
            mark_milestone(self._resumed_folder)
        if self._records:
            self._records.continue_training()

    # ---- hooks

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Wrap the hooks of the model, since Lightning calls them after the hooks of all callbacks."""
        self._arrangement.watch(trainer, pl_module)
        after_hook(pl_module, "on_train_start", lambda: self._begin(trainer))
        after_batch(trainer, pl_module, lambda: self._end_batch(trainer))
        after_hook(pl_module, "on_train_end", lambda: self._end(trainer))

    def _begin(self, trainer: pl.Trainer) -> None:
        self._cadence.begin(trainer.global_step)
        self._arrangement.begin(trainer)
        is_over = trainer.current_epoch >= (trainer.max_epochs or 0)
        if self._resumed and self._is_mid_epoch and batches_left(trainer) <= 0:
            # a state that a longer training saved within an epoch is the last of this one
            own = self._resumed["callbacks"].get("LengthBound", {})
            is_validated = own.get("validated") == trainer.global_step
            end_epoch_without_steps(trainer, is_validated=is_validated)
        if self._resumed and (self._is_mid_epoch or is_over):
            self._restore(trainer)
            if is_over:
                self._step = -1  # the end may change the state of this step
                loader: Any = trainer.train_dataloader
                loader.pass_epoch()

    def _end_batch(self, trainer: pl.Trainer) -> None:
        self._background.check()
        if not can_save(trainer):
            return
        has_best = self._best.has_new and bool(Validations.of(trainer))
        is_due = self._milestones.is_due(trainer, self._step) or self._cadence.is_due(trainer)
        if has_best or is_due or self._is_last_to_continue(trainer):
            self.save(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save or resume between two epochs. Lightning calls this callback first."""
        self._background.check()
        assert can_save(trainer)
        if self._resumed:
            self._restore(trainer)
        elif (
            self._best.has_new
            or self._milestones.is_due(trainer, self._step)
            or self._cadence.is_due(trainer)
        ):
            self.save(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reset Lightning's restart flag: with it, Lightning would skip a plateau schedule in a resumed epoch."""
        trainer.fit_loop.restarting = False

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the state of a training that was resumed at its end."""
        if self._resumed:
            self._restore(trainer)

    def _end(self, trainer: pl.Trainer) -> None:
        """Save the last state, and wait until it is on disk.

        Raises:
            DataError, Diverged: The state cannot be saved, so sealed results could belong to another state.
        """
        self._has_averages, self._has_ended = self._best.end_training(trainer), True
        if self.save(trainer, wait=True):
            return
        step = trainer.global_step
        if can_save(trainer):
            raise Diverged(
                f"the training ended at step {step} with weights that are NaN or infinite; lower optim.lr, set "
                "trainer.gradient_clip, or check the model's hooks at the end of an epoch"
            )
        raise DataError(
            f"the training ended within an epoch, after step {step}, so its last state is not saved and nothing "
            "is sealed; end a training in the model and its callbacks only by trainer.should_stop = True, then "
            "start it again"
        )

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Wait for the current write, and stop the thread."""
        self._background.close()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Stop the thread."""
        self._background.close()

    # ---- saving

    def save(self, trainer: pl.Trainer, *, wait: bool = False) -> bool:
        """Save the present state. Every rank calls this at the same point.

        Args:
            wait: Whether to wait until the state is on disk.

        Returns:
            False if the state cannot be saved here: after an epoch's last batch, before its
            validation; within an accumulation; or if weights are not finite.

        Raises:
            DataError: This state or the previous one could not be written.
        """
        if not can_save(trainer) or not self._may_save(trainer):
            return False
        started = time.monotonic()
        with trainer.profiler.profile("save_checkpoint"):  # type: ignore[attr-defined]
            if not wait:
                self._warn_if_slow(trainer)
            self._background.wait()
            if (trainer.global_step, is_in_epoch(trainer)) != (self._step, self._is_mid_epoch):
                self._take(trainer)
            if wait or not self._policy.asynchronous:
                self._background.wait()
                trainer.strategy.barrier("training checkpoint")
        self.seconds += time.monotonic() - started
        return True

    def _warn_if_slow(self, trainer: pl.Trainer) -> None:
        if self._background.is_busy and not self._has_warned_of_slow_store:
            self._has_warned_of_slow_store = True
            print(
                f"warning: the store is slow: the training checkpoint of step {self._step} is still being written, and "
                f"step {trainer.global_step} waits for it; raise runtime.checkpoint.every_steps or every_min",
                flush=True,
            )

    def _warn_of_unsaved(self, trainer: pl.Trainer) -> None:
        if self._has_warned_of_unsaved or not trainer.is_global_zero:
            return
        self._has_warned_of_unsaved = True
        if names := model_extras.unsaved_tensors(trainer.lightning_module):
            print(
                f"warning: training checkpoints do not contain the model's {', '.join(names)}, which are plain tensor "
                "attributes; a resumed training starts with their initial values; use register_buffer (with "
                "persistent=False to keep a tensor out of the sealed model)",
                flush=True,
            )

    def _take(self, trainer: pl.Trainer) -> None:
        is_mid_epoch = self._is_mid_epoch = is_in_epoch(trainer)
        if is_mid_epoch and not is_behind_validation(trainer):
            # Lightning writes the metrics of the step later; a kill in between would lose them
            update_step_metrics(trainer)
        state = dump_state(trainer)
        state.pop(_HYPER_PARAMETERS, None)
        own: State = {
            "is_mid_epoch": is_mid_epoch,
            "stopped": trainer.should_stop,
            "has_ended": self._has_ended,
        }
        if self._has_averages:
            own["has_averages"] = True
        if self._records:
            own["num_records"] = self._records.num_records
        state["callbacks"][self.state_key] = own
        state[_EXTRAS] = model_extras.collect(trainer.lightning_module)
        state[_AVERAGES] = averaging.collect(trainer)
        state |= self._arrangement.collect(trainer, state)
        self._warn_of_unsaved(trainer)
        state[_RANKS] = ranks.gather(ranks.collect(trainer, is_mid_epoch=is_mid_epoch), trainer)
        new_best = self._best.take_new()
        milestone = self._milestones.is_due(trainer, self._step)
        self._step = trainer.global_step
        self._cadence.begin(self._step)
        scratch = scratch_folder(self._folder, self._step)
        rest, shards = take_shards(state, trainer.global_rank, trainer.world_size)
        if shards.parts and not self._writers:
            self._writers = Writers()
        if trainer.is_global_zero:
            rest, parts = self._snapshot.take((rest, shards.parts))
            write = partial(
                self._writer.write,
                rest,
                world_size=trainer.world_size,
                new_best=new_best,
                best=self._best.names,
                bound=self._bound(trainer),
                milestone=milestone,
            )
            self._background.start(lambda: self._write(write, replace(shards, parts=parts)))
        elif shards.parts:
            parts = self._snapshot.take(shards.parts)
            self._background.start(
                lambda: self._write_shards(replace(shards, parts=parts), scratch)
            )

    def _write(self, write: Callable[..., None], shards: StateShards) -> None:
        self._snapshot.wait()
        write(beside=partial(self._write_shards, shards) if shards.parts else None)

    def _write_shards(self, shards: StateShards, scratch: Path) -> Digests:
        """Write the shards of this rank into the folder made by rank 0."""
        assert self._writers is not None
        self._snapshot.wait()
        return self._writers.write(shards, scratch)
