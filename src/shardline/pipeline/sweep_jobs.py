"""The jobs of a sweep: propose a trial, train it, and seal the finished study."""

import logging
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import structs

from shardline.config.plans import RunPlan
from shardline.config.project import Project, record_names
from shardline.config.sweeps import SweepPlan
from shardline.core.canonical import short_digest
from shardline.core.errors import CODE_ERROR, ConfigError, CrashLoop, ShardlineError
from shardline.core.files import write_json
from shardline.pipeline.run_jobs import resolve_run
from shardline.pipeline.started_ranks import Inputs
from shardline.pipeline.training import is_whole, train
from shardline.provenance.actions import Action
from shardline.records.base import sealed
from shardline.records.sweeps import Proposal, StudyResult, TrialResult
from shardline.results.sweeps.importance import importance_of
from shardline.results.sweeps.measured import measured
from shardline.results.sweeps.trials import (
    best_of,
    next_proposal,
    read_proposal,
    read_result,
    read_trial,
    run_of_trial,
)

_MEMORY = ("OutOfMemoryError", "CUDA out of memory")


def propose(project: Project, study: str, trial: int, output: str) -> None:
    """Write the proposal of a trial, from the proposal before it and the results that it may know.

    Raises:
        ConfigError: The sampler's package is missing, or its version is not that of the study.
    """
    plan, layout = project.sweeps[study], project.layout.declared
    action = Action(id=f"propose/{study}-{trial}")
    recheck_sweep(project, plan)
    before = read_proposal(plan.proposal(layout, trial - 1)) if trial else None
    known = range(plan.visible(trial - 1), plan.visible(trial))
    results = [[read_result(path) for path in plan.results(layout, one)] for one in known]
    found = with_runs(project, plan, next_proposal(plan, trial, before, results))
    write_json(Path(output), sealed(structs.replace(found, action=action.record())))


def with_runs(project: Project, plan: SweepPlan, proposal: Proposal) -> Proposal:
    """Return a proposal with the ids of its runs, or with the reason why its settings are impossible together."""
    if proposal.excluded:
        return proposal
    try:
        runs = [run_of_trial(project, plan, proposal, n).id for n in range(plan.settings.seeds)]
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
    project: Project, study: str, trial: int, repeat: int, log: Path, output: str, inputs: Inputs, *, attempt: int = 1,
) -> None:  # fmt: skip
    """Train one run of a trial, unless the run is sealed already, and write the trial's result.

    A failure of the training itself is a result. Any other failure is raised, and stops the study.

    Args:
        project: The base run's part of the project.
        inputs: `proposal`, and the inputs of a training except `spec`.

    Raises:
        ShardlineError: The training was stopped, or failed for a reason outside of the trial.
    """
    plan = project.sweeps[study]
    action = Action(id=f"train_trial/{study}-{trial}-{repeat}")
    proposal = read_proposal(Path(str(inputs["proposal"])))
    found = TrialResult(study=study, trial=trial, repeat=repeat, failure=proposal.excluded)
    if not proposal.excluded:
        run = run_of_trial(project, plan, proposal, repeat)
        if run.id != proposal.runs[repeat]:
            raise ConfigError(
                f"sweeps.{plan.name} trial {trial}: its run is {run.id} now, and {proposal.runs[repeat]} was proposed: "
                "code, lock or source changed while the pipeline ran; start the pipeline again"
            )
        found = _trained(project, plan, run, found, log, inputs, attempt)
    write_json(Path(output), sealed(structs.replace(found, action=action.record())))


def _trained(
    project: Project, plan: SweepPlan, run: RunPlan, found: TrialResult, log: Path, inputs: Inputs, attempt: int,
) -> TrialResult:  # fmt: skip
    layout = project.layout.declared
    own = replace(project, runs={run.id: run}, scaling=(), sweeps={plan.id: plan})
    folder, model = layout.run(run.id), layout.model(run.id)
    found = structs.replace(found, run=run.id, linked=is_whole(folder))
    record_names(own)
    if found.linked:
        logging.info("%s is sealed already: nothing is trained", run.id)
    else:
        if not ((folder / "run.json").exists() and (folder / "identity.json").exists()):
            resolve_run(own, str(folder / "run.json"), str(folder / "identity.json"))
        given = {key: value for key, value in inputs.items() if key != "proposal"}
        try:
            is_trained = train(
                own, log, str(model), given, attempt=attempt, skip_sealed=True, group=plan.name
            )
            found = structs.replace(found, linked=not is_trained)
        except ShardlineError as error:
            if not is_own_failure(error):
                raise
            logging.info("the trial failed, which is its result: %s", error)
            return structs.replace(found, failure=str(error))
    return measured(found, folder, plan.settings.objective)


def is_own_failure(error: ShardlineError) -> bool:
    """Return whether a failed training is the result of its settings, and not of machine, disk or network."""
    if isinstance(error, CrashLoop):
        return False
    is_memory = error.kind == "failed" and any(words in str(error) for words in _MEMORY)
    return error.kind == "diverged" or error.exit_code == CODE_ERROR or is_memory


def seal_study(project: Project, study: str, output: str) -> None:
    """Write the trials of a finished study, with the best of them."""
    plan, layout = project.sweeps[study], project.layout.declared
    action = Action(id=f"seal_study/{study}-{plan.trials}")
    objective = plan.settings.objective
    trials = [read_trial(plan, layout, number) for number in range(plan.trials)]
    best = best_of(trials, objective.mode)
    document = StudyResult(
        study=study,
        metric=objective.metric,
        mode=objective.mode,
        keys=[*plan.space.keys],
        trials=trials,
        best=best.trial if best else None,
        importance=importance_of(plan, trials),
        identity=plan.document,
        action=action.record(),
    )
    assert short_digest(plan.document) == study
    write_json(Path(output), sealed(document))
