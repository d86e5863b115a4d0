"""The common part of jobs that start ranks: their input files, the task for the ranks, and the start."""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from shardline.checkpoints.folder import last_step
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.resolved import ActualGeometry, DatasetPlace, PlannedGeometry, RunSpec
from shardline.config.settings.config import Runtime
from shardline.config.settings.run_settings import RunSettings
from shardline.core.error_texts import LACKS_MEMORY
from shardline.core.files import make_folder
from shardline.core.machine import num_cpus, num_gpus, oom_kills
from shardline.environments.python import python_of_ranks
from shardline.launch.device_share import Share, device_share
from shardline.pipeline.cold_ranks import note_cold
from shardline.pipeline.forked_usage import note_usage
from shardline.supervision.attempt_log import read_attempts, record_threads, threads_of_state
from shardline.supervision.supervisor import RankError
from shardline.supervision.warm.client import (
    PYTORCH_LIGHTNING,
    VARIABLE,
    Cold,
    WarmRanks,
    start_warm,
)
from shardline.training.rank_task import (
    PROGRAM,
    Evaluate,
    Find,
    Predict,
    Preflight,
    RankRuntime,
    RankTask,
    Train,
    write_task,
)

if TYPE_CHECKING:
    from shardline.launch.start import Start

# Snakemake's inputs by name: a file, or several files
Inputs = Mapping[str, str | Sequence[str]]


def files_of(run: RunPlan, inputs: Inputs) -> dict[str, Path]:
    """Return the files that a run's jobs read; the project's own path for each that Snakemake did not pass."""
    layout = run.layout.declared
    own = {
        "spec": layout.run(run.id) / "run.json",
        "model": layout.model(run.id),
        "provenance": layout.run(run.id) / "provenance.json",
    }
    return {name: Path(str(inputs.get(name) or path)) for name, path in own.items()}


def places_of(run: RunPlan, inputs: Inputs) -> tuple[DatasetPlace, ...]:
    """Return the places of a run's datasets; the project's own paths if Snakemake passed no manifests."""
    layout, given = run.layout.declared, inputs.get("manifest")
    manifests = [given] if isinstance(given, str) else given
    manifests = manifests or [str(layout.manifest(part.dataset.id)) for part in run.parts]
    return tuple(
        DatasetPlace(
            manifest=Path(manifest),
            shards=layout.shards(part.dataset.id),
            weight=str(part.weight),
            tokenizer=part.dataset.tokenizer,
            fold=run.settings.tested_fold,
            python=part.dataset.python,
        )
        for part, manifest in zip(run.parts, manifests, strict=True)
    )


@contextmanager
def own_work(project: Project, name: str) -> Iterator[Path]:
    """Provide a temporary folder in the store for ranks that keep nothing."""
    work = project.layout.declared.work(name)
    shutil.rmtree(work, ignore_errors=True)  # left behind by a killed job
    make_folder(work)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def seen_by_all(model: Path, settings: RunSettings, work: Path) -> Path:
    """Return a path of the model that all nodes can read: they share the store, but maybe not the results."""
    return Path(shutil.copy(model, work)) if settings.nodes > 1 else model


def has_gpus(settings: RunSettings) -> bool:
    """Return whether ranks that start on this machine compute on GPUs."""
    return settings.accelerator == "gpu" or (settings.accelerator == "auto" and num_gpus() > 0)


def run_on_ranks(
    project: Project, run: RunSpec, action: Evaluate | Find | Predict | Preflight, *, work: Path, rank_logs: Path,
    log: Path, datasets: Sequence[DatasetPlace] = (), inputs: Inputs | None = None, single: bool = False,
) -> None:  # fmt: skip
    """Start a run's ranks for an action without retries, and wait until they have ended.

    Args:
        work: field of `RankTask`, like `rank_logs` and `datasets`.
        log: the job's log.
        inputs: Snakemake's inputs; `environment` is used, if `runtime.environment` has one.
        single: whether one rank does it instead of all ranks of the run.

    Raises:
        RankError: a rank failed.
    """
    task = RankTask(
        run=run, action=action, datasets=tuple(datasets), work=work, rank_logs=rank_logs,
        runtime=RankRuntime.of(project.runtime),
    )  # fmt: skip
    path, python = work / "rank.json", python_of(project, run, inputs or {})
    start = partial(start_ranks, project, task, path, log, python, single=single)
    try:
        start()
    except LacksMemory as error:
        logging.warning("%s", error.remedy)
        start(alone=True)


def python_of(project: Project, run: RunPlan | RunSpec, inputs: Inputs) -> tuple[str, ...]:
    """Return the command that starts Python for a run's ranks."""
    gpus, given = run.settings.accelerator == "gpu", inputs.get("environment")
    return python_of_ranks(project, gpus=gpus, environment=str(given) if given else None)


class LacksMemory(RankError):
    """A rank was ended for lack of memory while other runs computed on this machine.

    Args:
        error: the error of the rank.
        beside: descriptions of the other runs.
    """

    def __init__(self, error: RankError, beside: Sequence[str]) -> None:
        super().__init__(
            str(error), kind=error.kind, code=error.exit_code, is_killed=error.is_killed
        )
        self.remedy = (
            f"{error}; beside it ran {'; '.join(beside)}; starting it once more, when no other run "
            "computes on this machine"
        )


def start_ranks(
    project: Project, task: RankTask, path: Path, log: Path,
    python: Sequence[str], *, saves: bool = False, threads: int | None = None, alone: bool = False,
    single: bool = False,
) -> None:  # fmt: skip
    """Start the ranks with the profile's launcher, and wait until they have ended.

    Args:
        task: task of the ranks, without the actual geometry.
        path: path for the task, in the store, which all nodes see.
        saves: whether the ranks can save when they are asked to stop.
        threads: CPU threads of a rank in a sealed training that is repeated. If None, an attempt that resumes
            keeps the number of the attempt before.
        alone: whether no other run may compute on this machine.
        single: whether one rank does it instead of all ranks of the run.

    Raises:
        LacksMemory: a rank was ended for lack of memory, and the run was not alone on this machine.
        RankError: a rank failed.
    """
    run, runtime = task.run, project.runtime
    planned = PlannedGeometry.of(run.settings)
    # in a scaling study a rank has the same number of CPUs at every size
    cpus = num_cpus() * planned.devices // project.measured.get(run.id, planned.devices)
    settings = run.settings
    if single:
        settings = structs.replace(settings, nodes=1, devices=1)
        cpus = max(1, cpus // planned.devices)  # as many threads as one of the run's ranks
    if threads is None and saves:
        threads = _threads_begun(task.work, cpus // planned.devices)
    killed = oom_kills()
    with device_share(
        settings,
        title=run.title,
        threads=runtime.threads_per_rank or threads or 1,
        env=os.environ,
        oversubscribe=runtime.oversubscribe,
        alone=alone,
    ) as share:
        try:
            _start_on(
                share, project, task, path, log, python, saves=saves, threads=threads, cpus=cpus,
                single=single,
            )  # fmt: skip
        except RankError as error:
            lacks = LACKS_MEMORY.search(str(error)) or (error.is_killed and oom_kills() > killed)
            if alone or not lacks or not (beside := share.company()):
                raise
            raise LacksMemory(error, beside) from error


def _start_on(
    share: Share, project: Project, task: RankTask, path: Path, log: Path, python: Sequence[str], *,
    saves: bool, threads: int | None, cpus: int, single: bool,
) -> None:  # fmt: skip
    """Start the ranks on devices of this machine.

    Args:
        cpus: CPUs of this machine for the ranks.
    """
    from shardline.launch.host_commands import check_machines
    from shardline.launch.start import find_geometry, prepare_start
    from shardline.supervision.supervisor import run_ranks

    run, planned = task.run, PlannedGeometry.of(task.run.settings)
    if single:
        actual = ActualGeometry(nodes=1, devices=1)
    else:
        actual = find_geometry(
            run.settings,
            run=run.title,
            runtime=project.runtime,
            env=share.env,
            num_cpus=cpus,
            num_gpus=num_gpus(share.env),
        )
    if not single and not planned.fits(actual):
        logging.warning(
            "elastic: %s do the work of the planned %d x %d",
            *(actual, planned.nodes, planned.devices),
        )
    write_task(path, structs.replace(task, geometry=actual))
    own = [str(task.action.run_json)] if isinstance(task.action, Train) else []
    start = prepare_start(
        ["-m", PROGRAM, str(path)],
        run_id=run.id,
        geometry=actual,
        accelerator=run.settings.accelerator,
        runtime=project.runtime,
        env=share.env,
        num_cpus=cpus,
        files=[*own, *(str(one.manifest) for one in task.datasets)],
        python=python,
        threads=threads,
    )
    if saves:
        record_threads(task.work, start.plan.cpus)
    logging.info("%s", start.summary)
    check_machines(start.plan)
    warm = _warm(start, share, run, path, project.runtime, log)
    try:
        run_ranks(
            start.command,
            env=start.env,
            log=log,
            work=task.work,
            title=run.title,
            ranks=start.plan.ranks,
            grace_s=project.runtime.stop_grace_s if saves else 0.0,
            watch=_deadline(project.runtime, task.work) if saves else None,
            monitor=run.settings.checkpoint.monitor,
            descriptors=share.descriptors,
            cores=share.cores,
            warm=warm,
        )
    finally:
        note_usage(log, warm.used if warm else None)


def forks_ranks(runtime: Runtime) -> bool:
    """Return whether a rank that is forked from a server saves this job the import of torch."""
    return runtime.warm_ranks and VARIABLE in os.environ


def _warm(
    start: "Start", share: Share, run: RunSpec, task: Path, runtime: Runtime, log: Path
) -> WarmRanks | None:
    """Return ranks that are forked from a server with all imports; None if they must be started by the command."""
    plan = start.plan
    if not forks_ranks(runtime):
        return None
    if unusual := _unusual(start, runtime):
        logging.info("the ranks are started cold: %s", unusual)
        return None
    try:
        warm = start_warm(
            [str(task)], module=PROGRAM, env=start.env, ranks=plan.ranks, run_id=plan.run_id,
            grace_s=runtime.stop_grace_s, pass_fds=share.descriptors, cores=share.cores,
            package=next(iter(run.lightning), PYTORCH_LIGHTNING),
        )  # fmt: skip
    except Cold as reason:
        logging.info("the ranks are started cold: %s", reason)
        note_cold(log, str(reason))
        return None
    logging.info("the ranks are forked from a server that has imported torch")
    return warm


def _unusual(start: "Start", runtime: Runtime) -> str:
    """Return why the ranks of a plan cannot be forked from a server; empty if they can."""
    plan = start.plan
    if plan.nodes > 1 or plan.hosts or plan.job_id:
        return "they run on several nodes, or in a job of a scheduler"
    if runtime.launcher not in ("torchrun", "none"):
        return f"runtime.launcher={runtime.launcher} starts them"
    if runtime.launcher_args and plan.ranks > 1:
        return "runtime.launcher_args has arguments for the launcher"
    if runtime.environment != "job" or plan.python != (sys.executable,):
        return "they have another Python than this job"
    return ""


def _threads_begun(work: Path, of_old: int) -> int | None:
    """Return the CPU threads of each rank in the attempt that a training resumes; None for a new training.

    Args:
        of_old: the number that versions used which did not record it.
    """
    saved_step = last_step(work / "checkpoints")
    is_old = saved_step and len(read_attempts(work)) > 1
    return threads_of_state(work, saved_step) or (max(1, of_old) if is_old else None)


def _deadline(runtime: Runtime, work: Path) -> Callable[..., None]:
    """Return a function that asks the ranks to stop before this job's time limit."""
    from shardline.launch.slurm.deadline import end_of_job, watch_deadline

    started = read_attempts(work)[-1].started_s
    times = partial(end_of_job, os.environ, started=started, walltime_min=runtime.walltime_min)
    return partial(watch_deadline, end_of_job=times, margin_s=runtime.stop_margin_s)
