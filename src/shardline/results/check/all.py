"""Check of runs: models, samples, environments of scripts and this machine."""

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress

from shardline.config.objects import unread_objects
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.script_files import uncounted_paths
from shardline.core.errors import ConfigError, DataError, ShardlineError
from shardline.core.redaction import mask
from shardline.core.visible import from_here
from shardline.environments.python import interpreter_of, problem_of
from shardline.results.check.checked_models import check_models
from shardline.results.check.checked_sweeps import check_trials
from shardline.results.check.found import Finding, errors_of, merged
from shardline.results.check.machine_needs import check_machine
from shardline.results.kept_states import missing_milestones

_BEFORE_S = 120.0  # for models without a known result; after that they count as not checked


def check_runs(
    project: Project, runs: Mapping[str, RunPlan], env: Mapping[str, str], *, limit_s: float | None = None,
    is_elsewhere: bool = False, announce: Callable[[str], None] = lambda _: None,
) -> list[Finding]:  # fmt: skip
    """Check runs, and return the findings, errors first.

    Args:
        runs: Runs by key of the project.
        env: Environment variables of this process.
        limit_s: Seconds after which the remaining models count as not checked.
        is_elsewhere: Whether jobs use other packages than this process, such as those of a container.
        announce: Called with a sentence before models are tried, which takes seconds.
    """
    models = check_models(
        project, runs, limit_s=limit_s, is_elsewhere=is_elsewhere, announce=announce
    )
    machine = check_machine(project, runs, models.results, env, is_elsewhere=is_elsewhere)
    paths = [
        Finding(kind="warning", sentence=sentence, runs=(run.name,))
        for run in runs.values()
        for sentence in (
            *uncounted_paths(run.model_class, run.settings, project.layout),
            *unread_objects(run.settings, run.model_class, project.code),
        )
    ]
    paths += [
        Finding(kind="warning", sentence=sentence, runs=(name,))
        for name, sentence in missing_milestones(runs)
    ]
    return merged([*models.findings, *machine, *check_script_environments(project, runs), *paths])


def check_before_building(
    project: Project,
    outputs: Collection[str],
    logger: logging.Logger,
    *,
    is_elsewhere: bool = False,
) -> None:
    """Check the runs that will be trained, before any job starts.

    Args:
        outputs: Files that will be written, with paths as declared.
        is_elsewhere: Whether jobs use other packages than this process, such as those of a container.

    Raises:
        ConfigError: A training would fail. The message has a sentence for each mistake.
    """
    runs = {
        key: run
        for key, run in project.runs.items()
        if project.layout.name_of(run.model) in outputs
    }
    sweeps = [
        plan
        for plan in project.sweeps.values()
        if project.layout.name_of(plan.summary(project.layout)) in outputs
    ]
    if not (runs or sweeps) or not project.runtime.check:
        return
    findings = check_trials(
        project, sweeps, limit_s=_BEFORE_S, is_elsewhere=is_elsewhere, announce=logger.info
    )
    findings += check_runs(
        project,
        runs,
        os.environ,
        limit_s=_BEFORE_S,
        is_elsewhere=is_elsewhere,
        announce=logger.info,
    )
    if errors := errors_of(findings):
        raise ConfigError(from_here("\n".join(one.text for one in errors)))
    for one in findings:
        if one.kind == "read":  # also in the dataset's log
            continue
        logger.warning("%s: %s", one.kind, mask(from_here(one.text)))


def check_script_environments(project: Project, runs: Mapping[str, RunPlan]) -> Iterator[Finding]:
    """Yield the problems of environments for scripts; skip environments that are not built yet.

    Args:
        runs: Runs by key of the project.
    """
    for run in runs.values():
        environment = run.environment
        if environment is None:
            continue
        found = None
        with suppress(DataError):  # its rule builds it
            found = interpreter_of(environment, run.environment_file)
        if found is None:
            continue
        try:
            if problem := problem_of(project, run, found):
                yield Finding(kind="error", sentence=problem, runs=run.names)
        except ShardlineError as error:
            yield Finding(kind="error", sentence=str(error), runs=run.names)
