"""The start and end of every `snakemake`: checks before any job, and links to results at the end."""

import json
import logging
import os
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from shardline.config.layout import ResultsLayout, check_layout, names_that_have_been
from shardline.config.load import load_project
from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.project import Project, record_names
from shardline.core.canonical import digest
from shardline.core.errors import ConfigError, ShardlineError
from shardline.core.extras import naming_extras
from shardline.core.files import check_writable
from shardline.core.package import workflow_folder
from shardline.core.rank_environment import check_passed
from shardline.core.variables import clean, ignored
from shardline.launch.slurm.arrays import arrays_of_equals
from shardline.launch.slurm.sacct import stand_before_sacct
from shardline.launch.slurm.scancel import cancel_by_name
from shardline.pipeline import invocation
from shardline.pipeline.bases import check_bases
from shardline.pipeline.forked_usage import add_to_benchmarks
from shardline.pipeline.links import publish
from shardline.pipeline.storage import Storage, logs_of, results_of
from shardline.pipeline.stored_trials import unpack
from shardline.pipeline.terminal_rows import final_rows
from shardline.results.staleness import edited_of
from shardline.supervision.warm.client import offer


def open_project(
    config: Mapping[str, object], storage: Storage | None,
    *, is_main: bool, is_making: bool, is_remote: bool, has_no_shared_disk: bool,
) -> Project:  # fmt: skip
    """Load the project, and fail at once if a job would certainly fail later.

    Args:
        config: config as merged by Snakemake.
        storage: storage of the declared files; None for this disk.
        is_main: whether this is the user's own process, and not a job's process.
        is_making: whether jobs will run: `is_main`, and no dry run.
        is_remote: whether the jobs run elsewhere.
        has_no_shared_disk: whether this is a job whose machine shares no disk with others.

    Raises:
        ShardlineError: config, table, sources or devices are wrong, or the store is not writable.
    """
    # before the jobs' interpreters start; a job's own machine may set other variables
    if (changing := clean(os.environ)) and is_main:
        print(ignored(changing), file=sys.stderr, flush=True)
    if not is_main:
        # Slurm's `--signal` reaches every process of a job's step; the signal is meant for the ranks
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if is_main:
        check_layout(ResultsLayout(root=Path.cwd()))
    project = load_project(config) if is_main else _load_own(config, _targets(sys.argv))
    found = storage.look(results_of(project)) if storage and is_main else {}
    exists = storage.exists if storage else Path.exists
    if is_main and not is_remote:
        project.check_devices(exists)
    elif is_main:
        stand_before_sacct(workflow_folder() / "profiles" / "slurm" / "bin")
        cancel_by_name()
        arrays_of_equals()
    if is_main:
        check_addresses(project)
    if storage and has_no_shared_disk:
        project.check_store_stays()
    if not is_making:
        return project
    invocation.record()
    check_bases(project, exists, has_store=not (storage and is_remote))
    offer(is_on=project.runtime.warm_ranks and not is_remote)
    add_to_benchmarks()
    sealed = all(exists(run.model) and exists(run.evaluation) for run in project.runs.values())
    # with a storage and remote jobs, each node has its own store
    if not (storage and is_remote) and not sealed:
        check_writable(project.store)
    if not sealed and project.runtime.launcher != "azureml":  # Azure ML passes them to its jobs
        check_passed(project.runtime.pass_env, os.environ)
    # after a return to earlier settings no job runs that would fetch results or update links
    if storage:
        storage.fetch(found)
        unpack(project)
    record_names(project)
    publish(project)
    if edited := edited_of(project.runs.values()):
        logging.getLogger("shardline").warning("%s", edited)
    if project.identity.environment != "exact":
        # most starts do not need this import
        from shardline.results.accept.take import accept_unasked

        accept_unasked(project)
    return project


def _targets(arguments: list[str]) -> list[dict[str, str]]:
    """Return the wildcards of the jobs that an executor started this process for.

    Args:
        arguments: command line; the workflow does not have it yet while it parses the Snakefile.
    """
    from snakemake.target_jobs import parse_target_jobs_cli_args

    if "--target-jobs" not in arguments:
        return []
    after = arguments[arguments.index("--target-jobs") + 1 :]
    targets = [*takewhile(lambda word: not word.startswith("-"), after)]
    return [one.wildcards_dict for one in parse_target_jobs_cli_args(targets)]


def _load_own(config: Mapping[str, object], targets: list[dict[str, str]]) -> Project:
    """Load only the rows and datasets of these jobs, if the history of names lists them; else all."""
    layout, rows, datasets = ResultsLayout(root=Path.cwd()), set[str](), set[str]()
    runs, built = names_that_have_been(layout, "run"), names_that_have_been(layout, "dataset")
    for one in targets:
        rows |= {*runs.get(one.get("run", ""), ())}
        datasets |= {*built.get(one.get("dataset", ""), ())}
    needs_all = config.get("scaling") or any(
        "prediction" in one or "study" in one for one in targets
    )
    if needs_all or not (rows or datasets):
        return load_project(config)
    project = load_project(config, only=rows, datasets=datasets)
    is_whole = all(
        ("run" not in one or project.key_of(one["run"], one.get("evaluation")))
        and ("dataset" not in one or one["dataset"] in project.datasets)
        for one in targets
    )
    return project if is_whole else load_project(config)


@contextmanager
def workflow_errors() -> Iterator[None]:
    """Convert Shardline's errors to Snakemake's `WorkflowError`, which it prints as one sentence."""
    from snakemake.exceptions import WorkflowError

    try:
        with naming_extras():
            yield
    except ShardlineError as error:
        raise WorkflowError(str(error)) from None


def check_jobs(project: Project, workflow: Any, logger: logging.Logger) -> None:
    """Fail before the first job if some of the jobs would certainly fail.

    Args:
        workflow: Snakemake's workflow, with its complete graph of jobs.
    """
    from shardline.results.check.all import check_before_building

    jobs = [*workflow.dag.needrun_jobs()]
    limits = project.runtime.checkpoint
    asks = (
        "render_report",
        *(("train", "train_trial") if limits.keep_days or limits.keep_bytes else ()),
    )
    if any(job.rule.name.endswith(asks) for job in jobs):
        invocation.record_project(project)
    outputs = {str(file) for job in jobs for file in job.output}
    methods = {method.name for method in workflow.deployment_settings.deployment_method}
    check_one_owner(workflow.executor_settings, workflow.execution_settings.retries)
    check_before_building(
        project, outputs, logger, is_elsewhere=not methods.isdisjoint({"APPTAINER", "CONDA"})
    )


def check_addresses(project: Project) -> None:
    """Reject a folder with the results of another identity: two digests may share their first 12 digits.

    Raises:
        ConfigError: the identity document in a folder is not the configured identity.
    """
    asked: list[RunPlan | DatasetPlan] = [*project.runs.values(), *project.datasets.values()]
    for one in asked:
        is_run = isinstance(one, RunPlan)
        path = one.folder / "identity.json" if isinstance(one, RunPlan) else one.provenance
        try:
            sealed = json.loads(path.read_bytes())
            sealed = sealed if is_run else sealed["identity"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not there yet, or damaged, which `shardline verify` reports
        if sealed not in (one.document, digest(one.document)):
            raise ConfigError(
                f"{path.parent} contains the results of another identity than that of {one.name}, whose digest "
                "begins with the same digits; move that folder away, or change a harmless setting, such as seed"
            )


def check_one_owner(executor_settings: Any, retries: int) -> None:
    """Reject a profile that would start a failed job twice.

    Args:
        executor_settings: settings of the executor's plugin; Slurm's plugin has `requeue`.
        retries: Snakemake's `retries`.

    Raises:
        ConfigError: both Slurm and Snakemake would start a failed job again.
    """
    if retries and getattr(executor_settings, "requeue", False):
        raise ConfigError(
            f"slurm-requeue: true and retries: {retries}: both Slurm and Snakemake would start a failed job "
            "again; set `retries: 0`, as profiles/slurm does, or `slurm-requeue: false`"
        )


def settle(
    project: Project, storage: Storage | None, logger: logging.Logger, before: Collection[str]
) -> None:
    """Fetch results and update the links after the jobs have ended, successful or not.

    Args:
        before: runs that were finished when Snakemake started.
    """
    if storage:
        try:
            storage.fetch(storage.look([*results_of(project), *logs_of(project)]))
            unpack(project)
        except ShardlineError as error:
            logger.error("results could not be fetched: %s", error)
    publish(project)
    invocation.forget_project()
    # Snakemake itself prints no record without a text
    logger.info(None, extra={"results": final_rows(project, before)})
