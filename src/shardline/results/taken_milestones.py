"""Milestones that a run takes over from the run that it continues."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardline.checkpoints.continuing import states_to_continue
from shardline.checkpoints.folder import problem_of
from shardline.checkpoints.manifest import Continued, TrainingCheckpoint
from shardline.config.settings.run_settings import Checkpoint
from shardline.results.continuing import Choice


@dataclass(frozen=True, kw_only=True)
class TakenMilestones:
    """What becomes of a run's milestones before the state that it continues.

    Attributes:
        taken: States of the other training, in the order of their steps, each with the record of what is continued.
        lacking: Sentence for each milestone that is not taken over.
    """

    taken: Sequence[tuple[TrainingCheckpoint, Continued]] = ()
    lacking: Sequence[str] = ()

    def __str__(self) -> str:
        """Return a sentence about the states that are taken over, empty for none."""
        steps = ", ".join(f"{saved.step:,}" for saved, _ in self.taken)
        return f"takes over the milestones of steps {steps}" if steps else ""


def milestones_taken(choice: Choice, declared: Checkpoint) -> TakenMilestones:
    """Find the states of the training that is continued at the milestones of the run that continues it.

    A state counts wherever the training has left one, also if the other run does not declare the milestone.
    """
    if choice.alike is None or choice.saved is None:
        return TakenMilestones()
    last = choice.saved
    folder = last.path.parent
    states = [*states_to_continue(folder, world_size=last.world_size)]
    taken: dict[int, tuple[TrainingCheckpoint, Continued]] = {}
    lacking = []
    for unit, number in sorted(_passed(declared, last), key=lambda one: one[1]):
        at = ((one, why) for one, why in states if _is_at(one, unit, number))
        saved, why = next(at, (None, ""))
        if saved is None:
            reason = "it has no state there"
        elif why:
            reason = f"its state there is not continued: {why}"
        elif problem := problem_of(saved):
            reason = f"its state there is damaged: {problem}"
        else:
            taken[saved.step] = saved, choice.continued(saved)
            continue
        begin = f"does not take over the milestone of {unit} {number:,} of {choice.alike.title}"
        lacking.append(f"{begin}, since {reason}")
    return TakenMilestones(taken=[taken[step] for step in sorted(taken)], lacking=lacking)


def _passed(declared: Checkpoint, last: TrainingCheckpoint) -> Iterator[tuple[str, int]]:
    """Yield the milestones before a state."""
    given = declared.milestones
    if isinstance(given, list):
        is_within = last.bound is not None and last.bound.is_within
        done = (
            last.epoch + is_within
        )  # the state behind the last epoch is the one that is continued
        yield from (("epoch", epoch) for epoch in given if epoch < done)
    else:
        yield from (("step", step) for step in given.steps if step < last.step)


def _is_at(saved: TrainingCheckpoint, unit: str, number: int) -> bool:
    if unit == "step":
        return saved.step == number
    is_between = saved.bound is not None and not saved.bound.is_within
    return saved.epoch == number and is_between
