"""The jobs that start ranks: a training, its first steps alone, and a rehearsal of it."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from shardline.checkpoints.folder import last_step
from shardline.config.project import Project, Run
from shardline.core.errors import NAME_FILE, CrashLoop, LaunchError, ShardlineError, Stopped
from shardline.core.files import make_folder, write_bytes
from shardline.core.machine import num_cpus, num_gpus
from shardline.environments.python import python_of_ranks
from shardline.pipeline.common import find_run
from shardline.pipeline.watched import tell_ranks
from shardline.supervision.attempts import attempted, read_attempts, started_s
from shardline.supervision.retries import check_retry, crash_loop, is_final, log_of_attempt
from shardline.supervision.run_lock import only_one


def train(
    config: Mapping[str, Any], run_id: str, log: Path, model: str, inputs: Mapping[str, str],
    *, attempt: int = 1,
) -> None:  # fmt: skip
    """Start a run's ranks and wait until they have sealed it.

    Args:
        model: where the sealed model is to be; metrics and provenance go beside it.
        inputs: `spec` and `manifest`.
        attempt: Snakemake's number of the attempt, from 1.

    Raises:
        CrashLoop: a retry that could only end as those before it did.
        Stopped: it was asked to stop, and nobody else starts it again.
        RankError: a rank failed.
    """
    from shardline.pipeline.tracking_context import story_of
    from shardline.tracking import tracked

    project, run = find_run(config, run_id)
    runtime = project.runtime
    work = project.store / "work" / run.id
    make_folder(work)
    # what is sealed holds no name, nor the command line that it records
    write_bytes(work / NAME_FILE, run.name.encode())
    tell_ranks(project, run)
    named = files_of(run, inputs)
    program = [
        *_program(project, run, named, work, "train"),
        "--results", str(Path(model).parent),
        "--watch-reads", runtime["watch_reads"],
        *(["--ledger"] if runtime["ledger"] else []),
        "--tracking", *runtime["tracking"],
        "--log-every-steps", str(runtime["log_every_steps"]),
        "--checkpoint-every-steps", str(runtime["checkpoint"]["every_steps"]),
        "--checkpoint-every-min", str(runtime["checkpoint"]["every_min"]),
        *([] if runtime["checkpoint"]["asynchronous"] else ["--synchronous-checkpoints"]),
    ]  # fmt: skip
    story = story_of(run, project.store, work, manifest=named["manifest"], model=model)
    python = _python(project, run, inputs)
    known = _scheduled(os.environ)
    known["retry"] += attempt - 1
    with only_one(work, run.id) as has_waited:
        if has_waited:  # which is no part of its own time
            known |= {"started": None, "queue_s": None}
        attempts, logs = read_attempts(work), _logs_of_ranks("train", run.id)
        saved_step = last_step(work / "checkpoints")
        check_retry(attempts, retry=known["retry"], saved_step=saved_step, logs=logs)
        try:
            with (
                attempted(work, **known) as number,
                tracked(runtime["tracking"], story),
                _log_kept(log, log_of_attempt(logs, number)),
            ):
                program += ["--attempt", str(number)]
                files = _read_by_ranks(named)
                _start_ranks(project, run, program, work, log, python, files, saves=True)
        except ShardlineError as error:
            _judge(error, work)
            raise


def train_first_steps(
    config: Mapping[str, Any], run_id: str, steps: int, log: Path, output: str,
    inputs: Mapping[str, str],
) -> None:  # fmt: skip
    """Train a run's first steps, write the metrics of each, and keep nothing else.

    Args:
        steps: optimiser steps.
        inputs: `spec` and `manifest`.

    Raises:
        RankError: a rank failed.
    """
    project, run = find_run(config, run_id)
    work, named = project.store / "work" / f"{run.id}-first-steps", files_of(run, inputs)
    shutil.rmtree(work, ignore_errors=True)  # of a job that was killed
    make_folder(work)
    write_bytes(work / NAME_FILE, run.name.encode())
    program = [
        *_program(project, run, named, work, "train_first_steps"),
        "--results", str(Path(output).parent),
        "--first-steps", str(steps),
        "--first-metrics", output,
        "--log-every-steps", "1",
        "--checkpoint-every-steps", "0",
    ]  # fmt: skip
    try:
        python, files = _python(project, run, inputs), _read_by_ranks(named)
        _start_ranks(project, run, program, work, log, python, files)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _program(
    project: Project, run: Run, named: Mapping[str, Path], work: Path, rule: str
) -> list[str]:
    """Return the arguments that start a rank: its program, and the options common to all trainings."""
    runtime = project.runtime
    return [
        "-m", "shardline.training.worker", str(named["spec"]),
        # the file is of the first run with this identity, and the class may have moved since
        "--model-class", run.model_class,
        "--manifest", str(named["manifest"]),
        "--shards", str(project.store / "datasets" / run.dataset.id),
        *_rank_options(runtime, work, rule, run.id),
        "--verify", runtime["verify"],
        "--strict-env", runtime["strict_env"],
        "--hang-timeout-s", str(runtime["hang_timeout_s"]),
        "--checkpoints-kept", str(runtime["checkpoint"]["keep"]),
        "--best-kept", str(runtime["checkpoint"]["keep_best"]),
        "--set-by-row", *run.set_by_row,
    ]  # fmt: skip


def _read_by_ranks(named: Mapping[str, Path]) -> list[str]:
    return [str(named["spec"]), str(named["manifest"])]


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


def _judge(error: ShardlineError, work: Path) -> None:
    """Have Slurm queue a job again that another attempt may help; does not return where it does.

    Raises:
        CrashLoop: it ended as the one before.
    """
    from shardline.launch.slurm.deadline import leave_to_slurm

    attempts = read_attempts(work)
    if loop := crash_loop(attempts, saved_step=last_step(work / "checkpoints")):
        raise CrashLoop(f"{error}; not started again, since {loop}") from None
    was_asked = isinstance(error, Stopped) and error.reason != "interrupted"
    is_lost = error.kind == "hung" or getattr(error, "is_killed", False)
    if attempts and not is_final(attempts[-1]) and (was_asked or is_lost):
        leave_to_slurm(os.environ)


def rehearse(
    config: Mapping[str, Any], run_id: str, log: Path, output: str, inputs: Mapping[str, str]
) -> None:
    """Start a run's ranks only to meet, and write what they found.

    Args:
        inputs: `environment`, where `runtime.environment` has one.
    """
    project, run = find_run(config, run_id)
    settings = run.settings
    work = project.store / "work" / f"{run.id}-rehearsal"
    make_folder(work)
    program = [
        "-m", "shardline.training.preflight", run.id,
        "--accelerator", settings["accelerator"],
        *_rank_options(project.runtime, work, "rehearse", run.id),
        "--output", output,
    ]  # fmt: skip
    _start_ranks(project, run, program, work, log, _python(project, run, inputs))


def _scheduled(env: Mapping[str, str]) -> dict[str, Any]:
    """Return what the scheduler tells of this job: number, start, time in the queue, how often it was requeued."""
    from shardline.launch.slurm.allocation import find_allocation

    try:
        allocation = find_allocation(env)
    except LaunchError as error:  # a measurement is no reason to fail
        logging.warning("time in the queue is not known: %s", error)
        return {"job": env.get("SLURM_JOB_ID"), "retry": 0}
    if allocation is None:
        return {"job": env.get("AZUREML_RUN_ID"), "retry": 0}
    return {
        "job": allocation.job_id, "queue_s": allocation.queue_s, "started": allocation.started,
        "retry": allocation.restarts if allocation.is_own else 0,
    }  # fmt: skip


def _rank_options(runtime: Mapping[str, Any], work: Path, rule: str, run_id: str) -> list[str]:
    """Return the options that every rank's program takes."""
    return [
        "--work", str(work),
        "--rank-logs", str(_logs_of_ranks(rule, run_id)),
        "--rendezvous-timeout-s", str(runtime["rendezvous_timeout_s"]),
        *(["--oversubscribe"] if runtime["oversubscribe"] else []),
    ]  # fmt: skip


def _logs_of_ranks(rule: str, run_id: str) -> Path:
    # not beside the job's log, which may be a copy that is soon deleted
    return Path("logs") / rule / run_id


def _python(project: Project, run: Run, inputs: Mapping[str, str]) -> tuple[str, ...]:
    gpus = run.settings["accelerator"] == "gpu"
    return python_of_ranks(project, gpus=gpus, environment=inputs.get("environment"))


def _start_ranks(
    project: Project, run: Run, program: list[str], work: Path, log: Path,
    python: Sequence[str], files: Sequence[str] = (), *, saves: bool = False,
) -> None:  # fmt: skip
    """Start the ranks by the profile's launcher, and wait until they have ended.

    Args:
        files: small files that they read.
        saves: whether they have something to save when they are asked to stop.
    """
    from shardline.launch.remote import check_machines
    from shardline.launch.start import find_geometry, prepare_start
    from shardline.supervision.supervisor import run_ranks

    planned = run.settings["nodes"], run.settings["devices"]
    # in a scaling study a rank has as many CPUs at every size
    cpus = num_cpus() * planned[1] // project.measured.get(run.id, planned[1])
    nodes, devices = find_geometry(
        run.settings,
        run=run.name,
        runtime=project.runtime,
        env=os.environ,
        num_cpus=cpus,
        num_gpus=num_gpus(),
    )
    if (nodes, devices) != planned:
        logging.warning(
            "elastic: nodes=%d x devices=%d take over the work of the planned %d x %d",
            *(nodes, devices, *planned),
        )
    start = prepare_start(
        [*program, f"--nodes={nodes}", f"--devices={devices}"],
        run_id=run.id,
        settings={**run.settings, "nodes": nodes, "devices": devices},
        runtime=project.runtime,
        env=os.environ,
        num_cpus=cpus,
        files=files,
        python=python,
    )
    logging.info("%s", start.summary)
    check_machines(start.plan)
    run_ranks(
        start.command,
        env=start.env,
        log=log,
        work=work,
        title=run.name,
        ranks=start.plan.ranks,
        grace_s=project.runtime["stop_grace_s"] if saves else 0.0,
        watch=_deadline(project.runtime, work) if saves else None,
    )


def _deadline(runtime: Mapping[str, Any], work: Path) -> Callable[..., None]:
    """Return what asks the ranks to stop before this job's time is over."""
    from shardline.launch.slurm.deadline import end_of_job, watch_deadline

    started = started_s(read_attempts(work)[-1])
    times = partial(end_of_job, os.environ, started=started, walltime_min=runtime["walltime_min"])
    return partial(watch_deadline, end_of_job=times, margin_s=runtime["stop_margin_s"])


def files_of(run: Run, inputs: Mapping[str, str]) -> dict[str, Path]:
    """Return the files that a run's jobs read, where Snakemake named none the project's own."""
    own = {
        "spec": run.folder / "run.json",
        "manifest": run.dataset.manifest,
        "model": run.model,
        "provenance": run.folder / "provenance.json",
    }
    return {name: Path(inputs.get(name) or path) for name, path in own.items()}
