"""Input functions, threads and resources of the rules of sweeps."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from shardline.config.job_plan import GivenPlan
from shardline.config.plans import RunPlan
from shardline.config.rungs import AnySlot, Slot, slot_of
from shardline.config.sweeps import SweepPlan
from shardline.launch.request import REQUESTED, threads_of
from shardline.pipeline.jobs import Jobs
from shardline.pipeline.snakemake_speedups import with_signature
from shardline.pipeline.stored_trials import check_no_combined_trials
from shardline.results.sweeps.proposing import check_schedule
from shardline.results.sweeps.stopping import needs_last


class SweepJobs:
    """The input functions, threads and resources of a project's sweeps.

    Sealed proposals and results are no inputs, so that a finished trial makes no job.

    Raises:
        ConfigError: `parallel` does not fit the sealed proposals, or a row combines trials that are in a storage.
    """

    def __init__(self, jobs: Jobs, *, is_main: bool) -> None:
        self._jobs, self._project, self._layout = jobs, jobs.project, jobs.project.layout
        if jobs.storage:
            check_no_combined_trials(self._project)
        runs = "results/studies/{study}/{trial}/runs-{repeat}.zip"
        self.packed = {"runs": runs} if jobs.storage else {}
        for plan in self._project.sweeps.values() if is_main else ():
            check_schedule(plan, self._layout)
        self.training = {
            name: with_signature(self._resource(name)) if self._project.sweeps else None
            for name in REQUESTED
        }

    @property
    def summaries(self) -> list[str]:
        """The files of all finished studies."""
        return self._jobs.of_all(
            plan.summary(self._layout) for plan in self._project.sweeps.values()
        )

    def summary(self, wildcards: Any) -> list[str]:
        """Return the results that a finished study waits for."""
        plan = self._plan(wildcards)
        return self._missing(plan.slots, plan)

    def before(self, wildcards: Any) -> list[str]:
        """Return what a proposal waits for: the proposal before, and results that no proposal knew."""
        plan, slot = self._plan(wildcards), slot_of(wildcards.trial)
        if self._jobs.exists(plan.proposal(self._layout, slot)):
            return []
        before, known = plan.needs(slot)
        path = None if before is None else plan.proposal(self._layout, before)
        return [
            *self._jobs.of_all([] if path is None or self._jobs.exists(path) else [path]),
            *self._missing(known, plan),
        ]

    def _missing(self, slots: Iterable[AnySlot], plan: SweepPlan) -> list[str]:
        files = (path for slot in slots for path in plan.results(self._layout, slot))
        return self._jobs.of_all(path for path in files if not self._jobs.exists(path))

    def proposal(self, wildcards: Any) -> str:
        """Return the proposal of a trial."""
        return self._jobs.declared(
            self._plan(wildcards).proposal(self._layout, slot_of(wildcards.trial))
        )

    def of_base(self, find: Callable[[RunPlan], list[Path | None]]) -> Any:
        """Return an input function for files that the base run's training reads."""

        def ask(wildcards: Any) -> Any:
            names = self._jobs.of_all(filter(None, find(self._base(wildcards))))
            return names[0] if len(names) == 1 else names

        return with_signature(ask)

    def _plan(self, wildcards: Any) -> SweepPlan:
        return self._project.sweeps[wildcards.study]

    def _base(self, wildcards: Any) -> RunPlan:
        return self._project.runs[self._plan(wildcards).base]

    def plan(self, wildcards: Any, output: Any) -> GivenPlan:
        """Return the base run's part of the project, with the rows whose states a study with rungs does not remove."""
        plan = self._plan(wildcards)
        rows = [key for key, run in self._project.runs.items() if plan.rungs and needs_last(run)]
        return GivenPlan(self._project.part(runs=[*dict.fromkeys([plan.base, *rows])]))

    def title(self, wildcards: Any, output: Any) -> str:
        """Return the title of a job for messages."""
        trial = wildcards.get("trial")
        name = self._plan(wildcards).name
        if trial is None:
            return name
        slot = slot_of(str(trial))
        if isinstance(slot, Slot):
            plan = self._plan(wildcards)
            return f"promotion {slot.place} to {plan.rungs[slot.rung]:,} {plan.unit}s of {name}"
        return f"trial {trial} of {name}"

    def threads(self, wildcards: Any) -> int:
        """Return the threads of a trial's training, which are those of the base run."""
        base = self._base(wildcards)
        return threads_of(
            base.settings, self._project.runtime, cores=self._jobs._cores, is_alone=False
        )

    def _resource(self, name: str) -> Callable[[Any], Any]:
        return lambda wildcards: self._jobs._asked[self._plan(wildcards).base].get(name)
