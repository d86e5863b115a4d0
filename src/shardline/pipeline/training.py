"""The job that trains a run."""

import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from msgspec import structs

from shardline.checkpoints.folder import last_step
from shardline.checkpoints.kept import kept_after_sealing, prune_sealed
from shardline.config.job_plan import recheck_training
from shardline.config.layout import ResultsLayout
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.settings.config import Runtime, RuntimeCheckpoint
from shardline.core.errors import CrashLoop, DataError, LaunchError, ShardlineError, Stopped
from shardline.core.files import make_folder
from shardline.core.job_progress import job_progress
from shardline.core.redaction import mask
from shardline.pipeline.continuing import continue_shorter
from shardline.pipeline.invocation import recorded_project
from shardline.pipeline.job_frame import only
from shardline.pipeline.started_ranks import (
    Inputs,
    LacksMemory,
    python_of,
    start_ranks,
)
from shardline.pipeline.training_task import check_evaluated_rows, tracking_context, training_task
from shardline.pipeline.watched import write_watched_files
from shardline.results.continuing import states_to_keep
from shardline.results.kept_states import remove_beyond_limits
from shardline.results.states import read_if_sound
from shardline.results.sweeps.stopping import waiting_runs
from shardline.supervision.attempt_log import attempted, only_one, own_attempts
from shardline.supervision.retry_policy import check_retry, crash_loop, log_of_attempt


def train(
    project: Project, log: Path, model: str, inputs: Inputs, *, attempt: int = 1, skip_sealed: bool = False,
    group: str = "",
) -> bool:  # fmt: skip
    """Start a run's ranks, and wait until they have sealed the run.

    Args:
        project: the run's part of the project.
        model: path of the sealed model; metrics and provenance are written beside it.
        inputs: `spec` and `manifest`.
        attempt: Snakemake's number of the attempt, from 1.
        skip_sealed: whether nothing is done if another job has sealed the run in the meantime.
        group: name of the sweep that trackers group the run by; empty for none.

    Returns:
        Whether this job trained the run; False if `skip_sealed` and another job did.

    Raises:
        CrashLoop: this retry would fail like the attempts before it.
        Stopped: the training was asked to stop, and Slurm does not requeue it.
        RankError: a rank failed.
    """
    from shardline.tracking import tracked

    run = only(project.runs)
    recheck_training(project, run)
    runtime, layout = project.runtime, project.layout.declared
    work = layout.work(run.id)
    make_folder(work)
    write_watched_files(project, run)
    task, action = training_task(project, run, inputs, work, "train", results=Path(model).parent)
    check_evaluated_rows(run, task)
    action = structs.replace(action, tracking=tuple(runtime.tracking))
    context = tracking_context(run, layout.store, task, model, group)
    python = python_of(project, run, inputs)
    known = _scheduled(os.environ)
    known = replace(known, retry=known.retry + attempt - 1)
    with only_one(work, run.id) as has_waited:
        if skip_sealed and is_whole(Path(model).parent):
            return False
        if has_waited:  # the wait is not part of this attempt's time
            known = replace(known, started=None, queue_s=None)
        continue_shorter(project, run)
        attempts, logs = own_attempts(work), layout.logs_of_parts("train", run.id)
        saved_step = last_step(work / "checkpoints")
        check_retry(attempts, retry=known.retry, saved_step=saved_step, logs=logs)
        try:
            for alone in (False, True):
                try:
                    with (
                        attempted(work, **asdict(known)) as number,
                        tracked(runtime.tracking, context),
                        _log_kept(log, log_of_attempt(logs, number)),
                    ):
                        task = structs.replace(task, action=structs.replace(action, attempt=number))
                        path = work / "attempts" / str(number) / "rank.json"
                        start_ranks(project, task, path, log, python, saves=True, alone=alone)
                    break
                except LacksMemory as error:  # never if it was alone
                    logging.warning("%s", error.remedy)
                    known = replace(known, retry=known.retry + 1, started=None, queue_s=None)
        except ShardlineError as error:
            _requeue_or_stop(error, work)
            raise
        _prune(
            work,
            Path(model),
            runtime,
            is_in_place=Path(model).parent == layout.result("run", run.id),
            keep_last=run.settings.checkpoint.keep_last or "last" in run.needed_states,
        )
        _limit_states(layout, runtime.checkpoint)
    if note := _early_end(Path(model).with_name("provenance.json"), run):
        job_progress.report(note=note)
    return True


def _early_end(provenance: Path, run: RunPlan) -> str:
    """Return at which step a sealed training stopped early, and why; "" if it did not."""
    consumed = read_if_sound(provenance).get("training", {}).get("consumed")
    if not consumed or consumed["steps"] >= consumed["planned"]:
        return ""  # a script has no such counts
    patience = f"early_stopping.patience: {run.settings.early_stopping.patience}"
    reasons = [
        f"{reason}, {patience}" if reason.startswith("early stopping") else reason
        for reason in consumed["reasons"]
    ]
    at = f"step {consumed['steps']:,} of {consumed['planned']:,}"
    return mask(f"stopped early at {at} ({'; '.join(reasons)})")


def is_whole(folder: Path) -> bool:
    """Return whether all files that a training seals are in a run's folder."""
    return all(
        (folder / name).is_file()
        for name in ("model.safetensors", "metrics.jsonl", "provenance.json")
    )


def _prune(
    work: Path, model: Path, runtime: Runtime, *, is_in_place: bool, keep_last: bool = False
) -> None:
    """Delete training checkpoints that are no longer needed, once all sealed files are on disk.

    Args:
        is_in_place: whether the results are in their final place. Otherwise a storage gets them after
            this job, and one training checkpoint stays so that they can be sealed again.
        keep_last: whether the run, or another run of the config that begins from it, needs the last state.
    """
    if is_whole(model.parent):
        keep = kept_after_sealing(
            runtime.checkpoint.after_sealing, keep_last=keep_last or not is_in_place
        )
        prune_sealed(work / "checkpoints", keep)


def _limit_states(layout: ResultsLayout, limits: RuntimeCheckpoint) -> None:
    """Remove training checkpoints of sealed runs beyond the limits, unless a run or a rung may continue them.

    This job has only its own run, so the whole project is that of the command that started it.
    """
    if not (limits.keep_days or limits.keep_bytes):
        return
    try:
        project = recorded_project()
        continued = states_to_keep(project) | waiting_runs(project)
    except DataError as error:
        logging.warning(
            "no training checkpoint beyond runtime.checkpoint.keep_days and keep_bytes is removed here, since a run of "
            "the config may continue it (%s); `shardline gc` lists them",
            error,
        )
        return
    for sentence in remove_beyond_limits(layout, limits, continued):
        logging.info("%s", sentence)


@contextmanager
def _log_kept(log: Path, copy: Path) -> Iterator[None]:
    """Keep the log of a failed attempt, which Snakemake deletes before the next attempt."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, copy)
        raise


def _requeue_or_stop(error: ShardlineError, work: Path) -> None:
    """Have Slurm requeue the job if another attempt may help; in that case, do not return.

    Raises:
        CrashLoop: the attempt failed like the one before.
    """
    from shardline.launch.slurm.deadline import leave_to_slurm

    attempts = own_attempts(work)
    if loop := crash_loop(attempts, saved_step=last_step(work / "checkpoints")):
        raise CrashLoop(f"{error}; not started again, since {loop}", str(error)) from None
    was_asked = isinstance(error, Stopped) and error.reason != "interrupted"
    is_lost = error.kind == "hung" or getattr(error, "is_killed", False)
    if attempts and not attempts[-1].is_final and (was_asked or is_lost):
        leave_to_slurm(os.environ)


@dataclass(frozen=True, kw_only=True)
class _Scheduled:
    """The scheduler's data on this job: ID, number of requeues, start, and seconds in the queue."""

    job: str | None
    retry: int = 0
    started: float | None = None
    queue_s: float | None = None


def _scheduled(env: Mapping[str, str]) -> _Scheduled:
    from shardline.launch.slurm.allocation import allocation_of_launch

    try:
        allocation = allocation_of_launch(env)
    except LaunchError as error:  # not worth failing the job
        logging.warning("the time in the queue is unknown: %s", error)
        return _Scheduled(job=env.get("SLURM_JOB_ID"))
    if allocation is None:
        return _Scheduled(job=env.get("AZUREML_RUN_ID"))
    return _Scheduled(
        job=allocation.job_id,
        queue_s=allocation.queue_s,
        started=allocation.began if allocation.is_own else None,
        retry=allocation.restarts if allocation.is_own else 0,
    )
