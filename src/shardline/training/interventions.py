"""What is done about a training that diverges: decided as a function of the run, kept on disk.

`divergence.json` in the run's folder of the store holds the interventions so far. It is written
before the training goes back, and read at each start. What a step does then follows from the run
alone, never from when its state was saved or its job killed.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardline.config.settings.run import Divergence
from shardline.core.errors import DataError, Diverged
from shardline.core.files import read_json, write_json

FILE = "divergence.json"


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """The first step at which a training is known to be bad.

    Attributes:
        step: optimiser step, from 1, whose loss is bad.
        epoch: from 0.
        rank: where it was seen, where it was worst.
        cause: such as `the training loss is NaN`.
        lr: learning rate of the step; None where no optimiser has recorded it.
    """

    step: int
    epoch: int
    rank: int
    cause: str
    lr: float | None

    @property
    def place(self) -> str:
        """Where it was seen, as messages tell it."""
        lr = "" if self.lr is None else f", lr {self.lr:.6g}"
        return f"{self.cause} at step {self.step} (epoch {self.epoch}, rank {self.rank}{lr})"


@dataclass(frozen=True, kw_only=True)
class Intervention(Trouble):
    """What was done about one.

    Attributes:
        first: the first step that is done in another way; the training goes back before it.
        action: `skip` leaves out the updates of steps first..step, `lower` multiplies the
            learning rate by `factor` from `first` on.
        factor: of the learning rate; 1 under `skip`.
    """

    first: int
    action: str
    factor: float

    def __str__(self) -> str:
        if self.action == "skip":
            steps = (
                f"step {self.step}"
                if self.first == self.step
                else f"steps {self.first} to {self.step}"
            )
            return f"{self.place}: left out the update of {steps}"
        return f"{self.place}: multiplied the learning rate by {self.factor:g} from step {self.first} on"


@dataclass(frozen=True)
class Plan:
    """How each step is done, given the interventions so far."""

    interventions: tuple[Intervention, ...] = ()

    def skips(self, step: int) -> bool:
        """Return whether an optimiser step's update is left out."""
        return any(
            done.action == "skip" and done.first <= step <= done.step for done in self.interventions
        )

    def lr_factor(self, step: int) -> float:
        """Return what an optimiser step's learning rate is multiplied by."""
        return math.prod(done.factor for done in self.interventions if step >= done.first)

    def extended(self, trouble: Trouble, settings: Divergence, remedy: str, run: str) -> "Plan":
        """Return the plan with one more intervention.

        Trouble within the steps of the last intervention, or right after them, began
        before them: the new one reaches as much further back as the last one was long.

        Args:
            settings: `divergence` of the run.
            remedy: what the error ends with.
            run: named in the error.

        Raises:
            Diverged: the policy is to stop, or there were as many interventions as may be.
        """
        done = self.interventions
        if settings.policy == "stop" or len(done) >= settings.limit:
            after = f", after {len(done)} interventions (divergence.limit)" if done else ""
            raise Diverged(f'run "{run}": {trouble.place}{after}; {remedy}')
        first = trouble.step - settings.window_steps + 1
        if done and trouble.step <= done[-1].step + 1:
            last = done[-1]
            first = min(first, last.first - (last.step - last.first + 1))
        added = Intervention(
            **asdict(trouble),
            first=max(1, first),
            action=settings.policy,
            factor=settings.factor if settings.policy == "lower" else 1.0,
        )
        return Plan((*done, added))

    def to_json(self) -> list[dict[str, Any]]:
        """Return one record per intervention, in the order in which they were made."""
        return [asdict(done) for done in self.interventions]


def read_plan(work: Path, identity: str) -> Plan:
    """Return what a run's interventions so far make of its steps.

    Args:
        work: the run's folder in the store.
        identity: of the run.

    Raises:
        DataError: the file is damaged, or of another run.
    """
    path = work / FILE
    if not path.exists():
        return Plan()
    remedy = f"delete {path} and {work / 'checkpoints'} to train from the start"
    document = read_json(path, remedy=remedy)
    try:
        found = tuple(Intervention(**record) for record in document["interventions"])
        of = document["identity"]
    except (KeyError, TypeError):
        raise DataError(f"{path} is not what this version writes; {remedy}") from None
    if of != identity:
        raise DataError(f"{path} is of another run (identity {str(of)[:12]}); {remedy}")
    return Plan(found)


def write_plan(work: Path, identity: str, plan: Plan) -> None:
    """Bring a run's interventions to disk."""
    write_json(work / FILE, {"identity": identity, "interventions": plan.to_json()})
