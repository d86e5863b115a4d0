"""The jobs that start ranks: a training, its first steps alone, and its preflight check alone."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from shardline.checkpoints.folder import last_step, prune_sealed
from shardline.config.current_identity import recheck_training
from shardline.config.geometry import PlannedGeometry
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.run_spec import DatasetPlace, RunSpec
from shardline.config.settings.run import RunSettings
from shardline.config.settings.runtime import Runtime
from shardline.core.errors import CrashLoop, LaunchError, ShardlineError, Stopped
from shardline.core.files import make_folder
from shardline.core.machine import num_cpus, num_gpus
from shardline.environments.installed import MODULES
from shardline.environments.python import built_on_nodes, python_of_ranks, python_of_script
from shardline.pipeline.common import only
from shardline.pipeline.inputs import Inputs, files_of, places_of
from shardline.pipeline.watched import write_watched_files
from shardline.supervision.attempts import attempted, only_one, read_attempts
from shardline.supervision.retries import check_retry, crash_loop, log_of_attempt
from shardline.training.rank_task import (
    Preflight,
    RankRuntime,
    RankTask,
    ShortTraining,
    Train,
    read_run,
    write_task,
)


def train(project: Project, log: Path, model: str, inputs: Inputs, *, attempt: int = 1) -> None:
    """Start a run's ranks and wait until they have sealed it.

    Args:
        project: the run's part of it.
        model: where the sealed model is to be; metrics and provenance go beside it.
        inputs: `spec` and `manifest`.
        attempt: Snakemake's number of the attempt, from 1.

    Raises:
        CrashLoop: a retry that could only end as those before it did.
        Stopped: it was asked to stop, and nobody else starts it again.
        RankError: a rank failed.
    """
    from shardline.pipeline.tracking_context import tracking_context_of
    from shardline.tracking import tracked

    run = only(project.runs)
    recheck_training(project, run)
    runtime, layout = project.runtime, project.layout.declared
    work = layout.work(run.id)
    make_folder(work)
    write_watched_files(project, run)
    task, action = _training_task(project, run, inputs, work, "train", results=Path(model).parent)
    action = structs.replace(action, tracking=tuple(runtime.tracking))
    context = tracking_context_of(run, layout.store, work, datasets=task.datasets, model=model)
    python = python_of(project, run, inputs)
    known = _scheduled(os.environ)
    known["retry"] += attempt - 1
    with only_one(work, run.id) as has_waited:
        if has_waited:  # which is no part of its own time
            known |= {"started": None, "queue_s": None}
        attempts, logs = read_attempts(work), layout.logs_of_parts("train", run.id)
        saved_step = last_step(work / "checkpoints")
        check_retry(attempts, retry=known["retry"], saved_step=saved_step, logs=logs)
        try:
            with (
                attempted(work, **known) as number,
                tracked(runtime.tracking, context),
                _log_kept(log, log_of_attempt(logs, number)),
            ):
                task = structs.replace(task, action=structs.replace(action, attempt=number))
                path = work / "attempts" / str(number) / "rank.json"
                start_ranks(project, task, path, log, python, saves=True)
        except ShardlineError as error:
            _requeue_or_stop(error, work)
            raise
        _prune(
            work,
            Path(model),
            runtime,
            is_in_place=Path(model).parent == layout.result("run", run.id),
        )


def _prune(work: Path, model: Path, runtime: Runtime, *, is_in_place: bool) -> None:
    """Remove what need not stay of a training, once all that is sealed of it is on disk.

    Args:
        is_in_place: whether the results lie where they stay; else a storage gets them after this job, and
            a state stays to seal them again from.
    """
    sealed = (model, *(model.with_name(name) for name in ("metrics.jsonl", "provenance.json")))
    if all(path.is_file() for path in sealed):
        keep = runtime.checkpoint.after_sealing
        prune_sealed(work / "checkpoints", keep if is_in_place or keep != "none" else "last")


def train_first_steps(project: Project, steps: int, log: Path, output: str, inputs: Inputs) -> None:
    """Train a run's first steps, write the metrics of each, and keep nothing else.

    Args:
        project: the run's part of it.
        steps: optimiser steps.
        inputs: `spec` and `manifest`.

    Raises:
        RankError: a rank failed.
    """
    run = only(project.runs)
    recheck_training(project, run)
    with own_work(project, f"{run.id}-first-steps") as work:
        task, action = _training_task(
            project, run, inputs, work, "train_first_steps", results=Path(output).parent
        )
        saves = structs.replace(task.runtime.checkpoint, every_steps=0, every_min=0.0)
        runtime = structs.replace(
            task.runtime, checkpoint=saves, log_every_steps=1, ledger=False, watch_reads="off"
        )
        first = ShortTraining(num_steps=steps, metrics=Path(output))
        action = structs.replace(action, first_steps=first)
        task = structs.replace(task, runtime=runtime, action=action)
        python = python_of(project, run, inputs)
        start_ranks(project, task, work / "rank.json", log, python)


def train_again(project: Project, number: int, log: Path, model: str, inputs: Inputs) -> None:
    """Train a run once more beside its result, without trackers.

    Args:
        project: the run's part of it.
        number: of the rerun; one that was cut off continues from its training checkpoint.
        model: where the model is to be; metrics and provenance go beside it.
        inputs: `spec` and `manifest`.

    Raises:
        RankError: a rank failed.
    """
    run = only(project.runs)
    recheck_training(project, run)
    work = project.layout.declared.work(f"{run.id}-rerun-{number}")
    make_folder(work)
    task, action = _training_task(
        project, run, inputs, work, "train_again", results=Path(model).parent
    )
    runtime = structs.replace(task.runtime, watch_reads="off")
    with only_one(work, run.id), attempted(work) as attempt:
        action = structs.replace(action, attempt=attempt)
        task = structs.replace(task, runtime=runtime, action=action)
        path = work / "attempts" / str(attempt) / "rank.json"
        start_ranks(project, task, path, log, python_of(project, run, inputs), saves=True)
    shutil.rmtree(work, ignore_errors=True)


def _training_task(
    project: Project, run: RunPlan, inputs: Inputs, work: Path, rule: str, *, results: Path
) -> tuple[RankTask, Train]:
    """Return what the ranks of any training are given, and its action."""
    run_json, given = files_of(run, inputs)["spec"], inputs.get("script_environment")
    action = Train(
        run_json=run_json,
        results=results,
        set_by_row=tuple(run.set_by_row),
        script_python=python_of_script(
            project, run, str(given) if given else None, modules=work / MODULES
        ),
        script_environment=built_on_nodes(run.environment, project.layout),
    )
    # the file is of the first run with this identity: since then classes may have moved, and workers be others
    environment = read_run(run_json).environment
    task = rank_task(
        structs.replace(run.spec, environment=environment),
        action,
        datasets=places_of(run, inputs),
        work=work,
        rank_logs=project.layout.declared.logs_of_parts(rule, run.id),
        runtime=project.runtime,
    )
    return task, action


def rank_task(
    run: RunSpec, action: Any, *, datasets: Sequence[DatasetPlace] = (), work: Path,
    rank_logs: Path, runtime: Runtime,
) -> RankTask:  # fmt: skip
    """Return what ranks are given; see `RankTask` for the arguments.

    Args:
        runtime: the profile's, of which ranks read a part.
    """
    return RankTask(
        run=run,
        action=action,
        datasets=tuple(datasets),
        work=work,
        rank_logs=rank_logs,
        runtime=RankRuntime.of(runtime),
    )


@contextmanager
def own_work(project: Project, name: str) -> Iterator[Path]:
    """Give ranks that keep nothing a folder in the store for as long as they work."""
    work = project.layout.declared.work(name)
    shutil.rmtree(work, ignore_errors=True)  # of a job that was killed
    make_folder(work)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def seen_by_all(model: Path, settings: RunSettings, work: Path) -> Path:
    """Return a file that all nodes see: they see the store, and may not see the results."""
    return Path(shutil.copy(model, work)) if settings.nodes > 1 else model


@contextmanager
def _log_kept(log: Path, copy: Path) -> Iterator[None]:
    """Keep the log of an attempt that fails: Snakemake deletes it before it starts the next."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, copy)
        raise


def _requeue_or_stop(error: ShardlineError, work: Path) -> None:
    """Have Slurm queue a job again if another attempt may help; does not return in that case.

    Raises:
        CrashLoop: the attempt ended as the one before.
    """
    from shardline.launch.slurm.deadline import leave_to_slurm

    attempts = read_attempts(work)
    if loop := crash_loop(attempts, saved_step=last_step(work / "checkpoints")):
        raise CrashLoop(f"{error}; not started again, since {loop}") from None
    was_asked = isinstance(error, Stopped) and error.reason != "interrupted"
    is_lost = error.kind == "hung" or getattr(error, "is_killed", False)
    if attempts and not attempts[-1].is_final and (was_asked or is_lost):
        leave_to_slurm(os.environ)


def run_preflight(project: Project, log: Path, output: str, inputs: Inputs) -> None:
    """Run the preflight check of a run's ranks alone, and write its report.

    Args:
        project: the run's part of it.
        inputs: `environment`, where `runtime.environment` has one.
    """
    run = only(project.runs)
    layout = project.layout.declared
    work = layout.work(f"{run.id}-preflight")
    make_folder(work)
    task = rank_task(
        run.spec,
        Preflight(output=Path(output)),
        work=work,
        rank_logs=layout.logs_of_parts("run_preflight", run.id),
        runtime=project.runtime,
    )
    python = python_of(project, run, inputs)
    start_ranks(project, task, work / "rank.json", log, python)


def _scheduled(env: Mapping[str, str]) -> dict[str, Any]:
    """Return what the scheduler tells of this job: number, start, time in the queue, how often it was requeued."""
    from shardline.launch.slurm.allocation import allocation_of_launch

    try:
        allocation = allocation_of_launch(env)
    except LaunchError as error:  # a measurement is no reason to fail
        logging.warning("time in the queue is not known: %s", error)
        return {"job": env.get("SLURM_JOB_ID"), "retry": 0}
    if allocation is None:
        return {"job": env.get("AZUREML_RUN_ID"), "retry": 0}
    return {
        "job": allocation.job_id, "queue_s": allocation.queue_s,
        "started": allocation.began if allocation.is_own else None,
        "retry": allocation.restarts if allocation.is_own else 0,
    }  # fmt: skip


def python_of(project: Project, run: RunPlan | RunSpec, inputs: Inputs) -> tuple[str, ...]:
    """Return the words that start Python for a run's ranks."""
    gpus, given = run.settings.accelerator == "gpu", inputs.get("environment")
    return python_of_ranks(project, gpus=gpus, environment=str(given) if given else None)


def start_ranks(
    project: Project, task: RankTask, path: Path, log: Path,
    python: Sequence[str], *, saves: bool = False,
) -> None:  # fmt: skip
    """Start the ranks by the profile's launcher, and wait until they have ended.

    Args:
        task: what they are given, but for the geometry that is there.
        path: where it is written, in the store, which all nodes see.
        saves: whether they have something to save when they are asked to stop.
    """
    from shardline.launch.remote import check_machines
    from shardline.launch.start import find_geometry, prepare_start
    from shardline.supervision.supervisor import run_ranks

    run = task.run
    planned = PlannedGeometry.of(run.settings)
    # in a scaling study a rank has as many CPUs at every size
    cpus = num_cpus() * planned.devices // project.measured.get(run.id, planned.devices)
    actual = find_geometry(
        run.settings,
        run=run.title,
        runtime=project.runtime,
        env=os.environ,
        num_cpus=cpus,
        num_gpus=num_gpus(),
    )
    if not planned.fits(actual):
        logging.warning(
            "elastic: %s take over the work of the planned %d x %d",
            *(actual, planned.nodes, planned.devices),
        )
    write_task(path, structs.replace(task, geometry=actual))
    own = [str(task.action.run_json)] if isinstance(task.action, Train) else []
    start = prepare_start(
        ["-m", "shardline.training.rank", str(path)],
        run_id=run.id,
        geometry=actual,
        accelerator=run.settings.accelerator,
        runtime=project.runtime,
        env=os.environ,
        num_cpus=cpus,
        files=[*own, *(str(one.manifest) for one in task.datasets)],
        python=python,
    )
    logging.info("%s", start.summary)
    check_machines(start.plan)
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
    )


def _deadline(runtime: Runtime, work: Path) -> Callable[..., None]:
    """Return what asks the ranks to stop before this job's time is over."""
    from shardline.launch.slurm.deadline import end_of_job, watch_deadline

    started = read_attempts(work)[-1].started_s
    times = partial(end_of_job, os.environ, started=started, walltime_min=runtime.walltime_min)
    return partial(watch_deadline, end_of_job=times, margin_s=runtime.stop_margin_s)
