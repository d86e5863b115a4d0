"""What is done about a training that diverges: decided as a function of the run, kept on disk.

`divergence.json` in the run's folder of the store holds the interventions so far. It is written
before the training goes back, and read at each start. What a step does then follows from the run
alone, never from when its state was saved or its job killed.
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
            **structs.asdict(trouble),
            first=max(1, first),
            action=settings.policy,
            factor=settings.factor if settings.policy == "lower" else 1.0,
        )
        return Plan((*done, added))


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
    found = read_record(path, Interventions, remedy=remedy)
    if found.identity != identity:
        raise DataError(f"{path} is of another run (identity {found.identity[:12]}); {remedy}")
    return Plan((*found.interventions,))


def write_plan(work: Path, identity: str, plan: Plan) -> None:
    """Bring a run's interventions to disk."""
    record = Interventions(identity=identity, interventions=[*plan.interventions])
    write_json(work / FILE, encode(record))
