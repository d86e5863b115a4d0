"""Which run a longer training continues, and why it does not continue another."""

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shardline.checkpoints.continuing import states_to_continue, why_cut
from shardline.checkpoints.folder import last_step
from shardline.checkpoints.manifest import Continued, TrainingCheckpoint
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.resolved import as_plain
from shardline.config.schedules import same_until
from shardline.config.scripts import is_script
from shardline.config.settings.run_settings import RunSettings, Trainer
from shardline.core.errors import DataError
from shardline.core.files import read_json_lines
from shardline.identity.length_reads import length_reads
from shardline.results.alike import Alike, Trainings
from shardline.results.running import fresh_heartbeat
from shardline.supervision.attempt_log import own_attempts, read_attempts


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a run continues.

    Attributes:
        alike: The training whose state is taken; None if the run begins at step 0 or with its own state.
        saved: The state.
        is_end: Whether the run ends with the state, which a longer training has saved.
        refused: Sentence for each training with more steps that is not continued, or not at the run's end.
    """

    alike: Alike | None = None
    saved: TrainingCheckpoint | None = None
    is_end: bool = False
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return a sentence, empty if there is nothing to say."""
        if self.alike is None or self.saved is None:
            return "; ".join(self.refused)
        found = self.continued()
        begin = f"continues {self.alike.title} from its step {found.step:,}"
        if self.is_end:
            begin = f"ends with the state of {self.alike.title} after step {found.step:,}"
        seconds = f"{found.seconds:,.{found.seconds < 10:d}f}"
        saves = (
            f"{begin}: {found.step:,} steps, {seconds} s and {found.device_hours:.3g} device hours are not "
            "trained again"
        )
        return "; ".join((saves, *(one for one in self.refused if self.alike.title in one)))

    def continued(self, milestone: TrainingCheckpoint | None = None) -> Continued:
        """Return the record of the training that is continued, up to the state or an earlier milestone."""
        saved = milestone or self.saved
        assert self.alike is not None
        assert saved is not None
        before = saved.continued
        return Continued(
            run=self.alike.id,
            identity=saved.identity,
            step=saved.step,
            seconds=_seconds(self.alike.work, saved.step) or (before.seconds if before else 0.0),
            ranks=saved.world_size,
            settings={
                "trainer": as_plain(self.alike.trainer),
                "schedule": as_plain(self.alike.schedule),
            },
        )


def choose(
    project: Project, run: RunPlan, *, own_step: int = 0, known: Trainings | None = None,
    damaged: Collection[Path] = (),
) -> Choice:  # fmt: skip
    """Return which state a run continues: the one with the most steps.

    Args:
        own_step: Step of the run's own newest state. Only a later state is better.
        known: All trainings; None to look for them.
        damaged: Folders of states that cannot be taken.
    """
    if is_script(run.model_class):
        return Choice(refused=_of_script(project, run, own_step, known))
    refused: list[str] = []
    best: tuple[Alike, TrainingCheckpoint] | None = None
    own = None
    for alike in (known or Trainings(project.layout)).like(run):
        if own is None:
            own = reads_of(project, run)
        step = best[1].step if best else own_step
        saved, reason = _state_of(project, alike, run, own, step, damaged)
        if saved:
            best = alike, saved
        if reason:
            verb = "end with a state of" if saved else "continue"
            refused.append(f"does not {verb} {alike.title}, since {reason}")
    if best:
        alike, saved = best
        is_end = is_end_of(saved, run.settings)
        return Choice(alike=alike, saved=saved, is_end=is_end, refused=tuple(refused))
    return Choice(refused=tuple(refused))


def states_to_keep(project: Project) -> dict[str, str]:
    """Return the trainings whose states a run of the config may continue: the title of this run by their id."""
    known, found = Trainings(project.layout), dict[str, str]()
    for run in project.runs.values():
        if run.has_model:
            continue
        own_step = last_step(project.layout.work(run.id) / "checkpoints")
        if alike := choose(project, run, own_step=own_step, known=known).alike:
            found[alike.id] = run.name
    return found


def reads_of(project: Project, run: RunPlan) -> str:
    """Return a clause about the run's own code that reads the length of the training; empty without any."""
    found = length_reads(project.code, run.code_paths.values())
    more = f", and {len(found) - 1} more" * (len(found) > 1)
    return f"{found[0]}{more}, which a longer training changes" if found else ""


def _of_script(
    project: Project, run: RunPlan, own_step: int, known: Trainings | None
) -> tuple[str, ...]:
    """Return a sentence for each shorter training of a script, none of which is continued."""
    if own_step:
        return ()
    return tuple(
        f"does not continue {alike.title}, since a training script reads its settings itself, so nothing shows what "
        "else the length changes"
        for alike in (known or Trainings(project.layout)).like(run)
        if is_shorter(alike.trainer, run.settings.trainer)
    )


def _state_of(
    project: Project, alike: Alike, run: RunPlan, own: str, step: int, damaged: Collection[Path]
) -> tuple[TrainingCheckpoint | None, str]:
    """Return the newest state of a training that a run can continue after a step, or why it cannot."""
    settings = run.settings
    ranks = settings.nodes * settings.devices
    states = [*states_to_continue(alike.work / "checkpoints", world_size=ranks)]
    fitting = [
        (saved, why)
        for saved, why in states
        if saved.step > step
        and saved.path not in damaged
        and (_is_before(saved, settings) or is_end_of(saved, settings))
    ]
    if not states:
        is_missed = step == 0 and is_shorter(alike.trainer, settings.trainer)
        return None, _why_no_state(alike, run) if is_missed else ""
    at_end = (
        saved
        for saved, why in states
        if saved.step > step and _is_at_end(saved, settings) and not why
    )
    no_end = next((why for one in at_end if (why := _why_no_end(one, settings))), "")
    if not fitting:
        return None, no_end
    if own:
        return None, own
    if fresh_heartbeat(alike.work, time.time()):
        return None, "it is being trained now"
    if other := _other_ranks(alike.work, ranks):
        return None, f"{other} ranks trained a part of it, not {ranks}"
    if (alike.work / "divergence.json").exists():
        return None, "its training diverged, and steps were changed"
    reason = ""
    for saved, why in fitting:
        why = why or why_cut(saved, settings.trainer.max_steps)
        why = why or schedule_differs(project, alike, run, saved)
        if not why:
            return saved, no_end
        reason = reason or why
    return None, reason


def _why_no_state(alike: Alike, run: RunPlan) -> str:
    if run.layout.model(alike.id).exists():
        return "its training checkpoints are deleted"
    return "it has saved no training checkpoint" if own_attempts(alike.work) else ""


def _other_ranks(work: Path, ranks: int) -> int:
    """Return another number of ranks that has trained a part of a run, as `elastic` does; 0 for none."""
    with suppress(DataError):
        return (
            next((one.world for one in read_attempts(work) if one.world not in (None, ranks)), 0)
            or 0
        )
    return 0


def _is_before(saved: TrainingCheckpoint, settings: RunSettings) -> bool:
    """Return whether a run trains on behind a state."""
    epochs, steps = settings.trainer.max_epochs, settings.trainer.max_steps
    return (epochs < 0 or saved.epoch < epochs) and (steps < 0 or saved.step < steps)


def is_end_of(saved: TrainingCheckpoint, settings: RunSettings) -> bool:
    """Return whether a run ends with a state that a longer training has saved."""
    return _is_at_end(saved, settings) and not _why_no_end(saved, settings)


def _is_at_end(saved: TrainingCheckpoint, settings: RunSettings) -> bool:
    """Return whether a longer training has saved a state where a run ends."""
    trainer, bound = settings.trainer, saved.bound
    if bound is None or saved.step >= bound.planned:
        return False
    if trainer.max_steps > 0:
        return saved.step == trainer.max_steps
    return saved.epoch == trainer.max_epochs and not bound.is_within


def _why_no_end(saved: TrainingCheckpoint, settings: RunSettings) -> str:
    """Return why a run does not end with the state of a longer training at its end; empty if it does.

    The end of a training has a validation, unless neither an interval nor `trainer.max_steps` is given. Behind the
    hooks of an epoch's end it comes too late.
    """
    trainer, bound = settings.trainer, saved.bound
    assert bound is not None
    if bound.is_within:
        return why_cut(saved, trainer.max_steps)
    every = trainer.val_check_interval
    has_interval = isinstance(every, int) or every < 1
    is_validated = bound.is_validated or (not has_interval and trainer.validate_every_epochs == 1)
    if is_validated or not (has_interval or trainer.max_steps > 0):
        return ""
    return f"its state of step {saved.step:,} has no validation, which the end of a training has"


def schedule_differs(
    project: Project, alike: Alike, run: RunPlan, saved: TrainingCheckpoint
) -> str:
    """Return why the learning rates of two trainings differ before a state; empty if they are equal."""
    before = (
        saved.continued
    )  # of a state that was taken over, the plan is that of a shorter training
    is_own = before is None or before.step < saved.step
    planned = saved.bound.planned if saved.bound and is_own else 0

    def steps_of(epochs: int) -> int:
        # The ranks check again with the data, whose epochs may differ in length.
        if planned and epochs == alike.trainer.max_epochs and alike.trainer.max_steps < 0:
            return planned
        done = saved.epoch + saved.bound.is_within if saved.bound else 0
        return epochs * saved.bound.epoch_end // done if saved.bound and done else MANY * epochs

    until = same_until(alike.settings(run.settings), run.settings, steps_of)
    if until >= saved.step or has_own_optimizer(project, run):
        return ""
    if until:
        return f"the learning rates differ from step {until:,} on"
    return (
        f"schedule.name={run.settings.schedule.name} is another learning rate over another length; set schedule.epochs "
        "or schedule.steps to the same horizon for both"
    )


def has_own_optimizer(project: Project, run: RunPlan) -> bool:
    """Return whether the model ignores the settings of the schedule."""
    return project.documents.has_method(run.model_class, "configure_optimizers") is True


MANY = 1_000_000_007  # steps of an epoch where only an equal number of epochs can be equal


def is_shorter(a: Trainer, b: Trainer) -> bool:
    """Return whether a training ends before another, whatever the data."""

    def limits(one: Trainer) -> list[float]:
        return [most if most > 0 else float("inf") for most in (one.max_epochs, one.max_steps)]

    pairs = [*zip(limits(a), limits(b), strict=True)]
    return all(mine <= its for mine, its in pairs) and any(mine < its for mine, its in pairs)


def _seconds(work: Path, step: int) -> float:
    """Return the seconds of training up to a step, by the metrics of a training."""
    path = work / "metrics.jsonl"
    lines = read_json_lines(path) if path.exists() else []
    times = [
        line["wall_s"]
        for line in lines
        if line.get("step", step + 1) <= step and line.get("wall_s")
    ]
    return max(times, default=0.0)
