"""Interventions in a training that diverges: decided from the run alone, and kept on disk.

`divergence.json` in the run's folder of the store lists the interventions so far. It is written
before the training goes back, and read at each start. So a step's result does not depend on when a
state was saved or the job was killed.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from shardline.config.settings.run_settings import Divergence
from shardline.core.errors import DataError, Diverged
from shardline.core.files import write_json
from shardline.records.base import encode, read_record
from shardline.records.measured import Intervention, Interventions, Trouble

FILE = "divergence.json"


@dataclass(frozen=True)
class Plan:
    """The interventions so far, and how they change each step."""

    interventions: tuple[Intervention, ...] = ()

    def skips(self, step: int) -> bool:
        """Return whether the update of an optimiser step is skipped."""
        return any(
            done.action == "skip" and done.first <= step <= done.step for done in self.interventions
        )

    def lr_factor(self, step: int) -> float:
        """Return the factor of an optimiser step's learning rate."""
        return math.prod(done.factor for done in self.interventions if step >= done.first)

    def extended(self, trouble: Trouble, settings: Divergence, remedy: str, run: str) -> "Plan":
        """Return the plan with one more intervention.

        A bad step within the steps of the last intervention, or right after them, has an earlier
        cause. The new intervention then starts earlier, by the length of the last one.

        Args:
            trouble: The bad step.
            settings: The run's settings `divergence`.
            remedy: End of the error's message.
            run: Name of the run, for the error.

        Raises:
            Diverged: The policy is "stop", or the limit of interventions is reached.
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
            **structs.asdict(trouble),
            first=max(1, first),
            action=settings.policy,
            factor=settings.factor if settings.policy == "lower" else 1.0,
        )
        return Plan((*done, added))


def read_plan(work: Path, identity: str) -> Plan:
    """Read the plan of a run; an empty plan if there were no interventions.

    Args:
        work: The run's folder in the store.
        identity: Identity of the run.

    Raises:
        DataError: The file is damaged or belongs to another run.
    """
    path = work / FILE
    if not path.exists():
        return Plan()
    remedy = f"delete {path} and {work / 'checkpoints'} to train from the start"
    found = read_record(path, Interventions, remedy=remedy)
    if found.identity != identity:
        raise DataError(
            f"{path} belongs to a run with identity {found.identity[:12]}, expected {identity[:12]}; {remedy}"
        )
    return Plan((*found.interventions,))


def write_plan(work: Path, identity: str, plan: Plan) -> None:
    """Write a run's interventions to disk."""
    record = Interventions(identity=identity, interventions=[*plan.interventions])
    write_json(work / FILE, encode(record))
