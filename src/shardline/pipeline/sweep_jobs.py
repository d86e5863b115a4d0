"""The jobs of a sweep: propose a trial, train it, and seal the finished study."""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import structs

from shardline.config.plans import RunPlan
from shardline.config.project import Project, record_names
from shardline.config.rungs import AnySlot, Slot
from shardline.config.sweeps import SweepPlan
from shardline.core.canonical import short_digest
from shardline.core.errors import CODE_ERROR, ConfigError, CrashLoop, ShardlineError
from shardline.core.files import write_json
from shardline.pipeline.run_jobs import resolve_run
from shardline.pipeline.started_ranks import Inputs
from shardline.pipeline.stored_trials import bring_home, pack
from shardline.pipeline.training import is_whole, train
from shardline.provenance.actions import Action
from shardline.records.base import sealed
from shardline.records.sweeps import Proposal, StudyResult, TrialResult
from shardline.results.sweeps.importance import importance_of
from shardline.results.sweeps.measured import measured
from shardline.results.sweeps.stopping import beaten, forget_states, proposal_of, stops
from shardline.results.sweeps.trials import best_of, read_proposal, run_of_trial, trials_so_far
from shardline.supervision.attempt_log import own_attempts

# An error of Python, and words of one that a device, a network or a disk may have caused although it repeats.
_RAISED = re.compile(r"\b[A-Za-z]\w*(Error|Exception)\b: ")
_ELSEWHERE = re.compile(
    r"cuda|cublas|cudnn|nccl|gloo|\bHIP|Dist\w*Error|OSError|errno|connect|time[d ]*out|disk|space|DataLoader worker",
    re.IGNORECASE,
)
_MEMORY = ("OutOfMemoryError", "CUDA out of memory")


def propose(
    project: Project, study: str, slot: AnySlot, output: str, inputs: Iterable[str]
) -> None:
    """Write the proposal of a trial or a promotion, from the proposal before it and the results that it may know.

    Args:
        project: The base run's part of the project.
        inputs: The files that this command had to wait for; with a storage, local copies.

    Raises:
        ConfigError: The sampler's package is missing, or its version is not that of the study.
    """
    plan, layout = project.sweeps[study], project.layout.declared
    action = Action(id=f"propose/{study}-{slot}")
    recheck_sweep(project, plan)
    bring_home(layout, inputs)
    found = with_runs(project, plan, proposal_of(plan, layout, slot))
    for one in beaten(plan, slot, found) if isinstance(slot, Slot) else ():
        for run in filter(None, one.runs):
            forget_states(project, plan, run)
    before, known = plan.needs(slot)
    found = structs.replace(
        found,
        before="" if before is None else str(before),
        results=[*map(str, known)],
        action=action.record(),
    )
    write_json(Path(output), sealed(found))
    bring_home(layout, [output])  # later promotions read it


def with_runs(project: Project, plan: SweepPlan, proposal: Proposal) -> Proposal:
    """Return a proposal with the ids of its runs, or with the reason why its settings are impossible together."""
    if proposal.excluded:
        return structs.replace(proposal, runs=[])
    ended = proposal.runs or [""] * plan.settings.seeds
    try:
        runs = [
            one or run_of_trial(project, plan, proposal, repeat).id
            for repeat, one in enumerate(ended)
        ]
        if plan.median:
            rungs = range(len(plan.rungs))
            runs = [run_of_trial(project, plan, proposal, 0, rung).id for rung in rungs]
    except ConfigError as error:
        return structs.replace(proposal, excluded=str(error))
    return structs.replace(proposal, runs=runs)


def recheck_sweep(project: Project, plan: SweepPlan) -> None:
    """Reject a sampler of another version than the study's.

    Raises:
        ConfigError: An installed package has another version than the study's identity names.
    """
    for package, expected in plan.document["versions"].items():
        if package == "sweep":
            continue
        found = _installed(package)
        # the build of torch, such as +cpu, is no other version
        if (
            found.partition("+")[0] != str(expected).partition("+")[0]
            and project.runtime.strict_env == "error"
        ):
            raise ConfigError(
                f"sweeps.{plan.name}: {package} {found} is installed, and the study is one of {package} {expected}; "
                f"run `pip install {package}=={expected}`"
            )


@cache
def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def train_trial(
    project: Project, study: str, slot: AnySlot, repeat: int, log: Path, output: str, inputs: Inputs, *,
    attempt: int = 1, packed: str | None = None,
) -> None:  # fmt: skip
    """Train one run of a trial, unless the run is sealed already, and write the trial's result.

    With `stop.median`, train one run after the other, each longer, until the trial stops.

    A failure of the training itself is a result. Any other failure is raised, and stops the study.

    Args:
        project: The base run's part of the project.
        inputs: `proposal`, and the inputs of a training except `spec`.
        packed: With a storage, the file that gets the sealed files of the trained runs.

    Raises:
        ShardlineError: The training was stopped, or failed for a reason outside of the trial.
    """
    plan = project.sweeps[study]
    action = Action(id=f"train_trial/{study}-{slot}-{repeat}")
    proposal = read_proposal(Path(str(inputs["proposal"])))
    found = TrialResult(
        study=study,
        trial=proposal.trial,
        rung=proposal.rung,
        repeat=repeat,
        failure=proposal.excluded,
    )
    if not proposal.excluded:
        given = {key: value for key, value in inputs.items() if key != "proposal"}
        job = _Job(project, plan, proposal, log, given, attempt, has_storage=packed is not None)
        found = job.by_median(found) if plan.median else job.at_rung(found)
    if packed is not None:
        pack(project.layout.declared, [*proposal.runs, found.run], Path(packed))
    write_json(Path(output), sealed(structs.replace(found, action=action.record())))


@dataclass(frozen=True)
class _Job:
    """The job of one training of a trial.

    Attributes:
        has_storage: Whether the sealed files leave this machine after the job. Their training checkpoints then stay, so
            that a job that could not deliver them trains no step again.
    """

    project: Project
    plan: SweepPlan
    proposal: Proposal
    log: Path
    inputs: Inputs
    attempt: int
    has_storage: bool

    def at_rung(self, found: TrialResult) -> TrialResult:
        """Train the run at the proposal's rung, which continues the run at the rung before."""
        expected, shorter = self.proposal.runs[found.repeat], self.proposal.chosen
        runs = (self._run(found, rung) for rung in range(found.rung, -1, -1))
        # a training that ended early is its own longer training
        run = next((one for one in runs if one.id == expected), self._run(found, found.rung))
        self._recheck(run, expected)
        found = self._trained(run, found)
        if shorter and shorter.runs[found.repeat] != expected:
            forget_states(self.project, self.plan, shorter.runs[found.repeat])
        return found

    def by_median(self, found: TrialResult) -> TrialResult:
        """Train rung by rung, until the value at a rung is worse than the median of earlier trials."""
        parts: list[TrialResult] = []
        for rung, expected in enumerate(self.proposal.runs):
            found = structs.replace(found, rung=rung)
            if not found.is_final:  # otherwise a longer training is the same
                run = self._run(found, rung)
                self._recheck(run, expected)
                found = self._trained(run, found)
                for part in parts[-1:]:
                    self._forget(part.run)
                parts.append(found)
            if found.value is None or expected == self.proposal.runs[-1]:
                break
            if stops(self.plan, self.proposal.told, rung, found.value):
                break
            found = structs.replace(found, values=[*found.values, found.value])
        if found.value is not None and found.rung < len(self.plan.rungs) - 1:
            self._forget(found.run)
        own = [one for one in parts if not one.linked]
        return structs.replace(
            found,
            steps=sum(one.steps or 0 for one in own),
            seconds=sum(one.seconds or 0.0 for one in own) if own else None,
            linked=not own,
        )

    def _forget(self, run: str) -> None:
        if not self.has_storage:
            forget_states(self.project, self.plan, run)

    def _run(self, found: TrialResult, rung: int) -> RunPlan:
        run = run_of_trial(self.project, self.plan, self.proposal, found.repeat, rung)
        is_last = rung >= len(self.plan.rungs) - 1 and not self.has_storage
        return run if is_last else replace(run, needed_states=("last",))

    def _recheck(self, run: RunPlan, expected: str) -> None:
        if run.id != expected:
            raise ConfigError(
                f"sweeps.{self.plan.name} trial {self.proposal.trial}: its run is {run.id} now, and {expected} was "
                "proposed: code, lock or source changed while the pipeline ran; start the pipeline again"
            )

    def _trained(self, run: RunPlan, found: TrialResult) -> TrialResult:
        layout, plan = self.project.layout.declared, self.plan
        own = replace(self.project, runs={run.id: run}, scaling=(), sweeps={plan.id: plan})
        folder, model = layout.run(run.id), layout.model(run.id)
        found = structs.replace(found, run=run.id, linked=is_whole(folder))
        record_names(own)
        if found.linked:
            logging.info("%s is sealed already: nothing is trained", run.id)
        else:
            if not ((folder / "run.json").exists() and (folder / "identity.json").exists()):
                resolve_run(own, str(folder / "run.json"), str(folder / "identity.json"))
            # its files are in the storage, and its last training checkpoint seals them again
            was_sealed = self.has_storage and any(
                one.end == "sealed" for one in own_attempts(layout.work(run.id))
            )
            try:
                is_trained = train(
                    own, self.log, str(model), self.inputs, attempt=self.attempt, skip_sealed=True,
                    group=plan.name,
                )  # fmt: skip
                found = structs.replace(found, linked=was_sealed or not is_trained)
            except ShardlineError as error:
                if not is_own_failure(error):
                    raise
                logging.info("the trial failed, which is its result: %s", error)
                return structs.replace(found, value=None, failure=str(error))
        return measured(found, folder, plan.settings.objective)


def is_own_failure(error: ShardlineError) -> bool:
    """Return whether a failed training is the result of its settings, and not of machine, disk or network."""
    if isinstance(error, CrashLoop):  # the model raised it at the same step twice
        return bool(_RAISED.search(error.reason)) and not _ELSEWHERE.search(error.reason)
    is_memory = error.kind == "failed" and any(words in str(error) for words in _MEMORY)
    return error.kind == "diverged" or error.exit_code == CODE_ERROR or is_memory


def seal_study(project: Project, study: str, output: str, inputs: Iterable[str]) -> None:
    """Write the trials of a finished study, with the best of them; see `propose`."""
    plan, layout = project.sweeps[study], project.layout.declared
    action = Action(id=f"seal_study/{study}-{plan.trials}")
    objective = plan.settings.objective
    bring_home(layout, inputs)
    trials = trials_so_far(plan, layout)
    best = best_of(trials, objective.mode)
    document = StudyResult(
        study=study,
        metric=objective.metric,
        mode=objective.mode,
        keys=[*plan.space.keys],
        trials=trials,
        best=best.trial if best else None,
        importance=importance_of(plan, trials),
        rungs=plan.rungs,
        unit=plan.unit,
        folders=[*map(str, plan.slots)],
        identity=plan.document,
        action=action.record(),
    )
    assert short_digest(plan.document) == study
    write_json(Path(output), sealed(document))
