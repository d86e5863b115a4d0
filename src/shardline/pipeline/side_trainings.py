"""The jobs that start ranks beside a training: its first steps alone, a rerun, and its preflight check alone."""

import shutil
from pathlib import Path

from msgspec import structs

from shardline.config.combined import refuse_combined
from shardline.config.job_plan import recheck_training
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.core.files import make_folder
from shardline.pipeline.job_frame import only
from shardline.pipeline.started_ranks import Inputs, own_work, python_of, run_on_ranks, start_ranks
from shardline.pipeline.training_task import training_task
from shardline.results.states import read_if_sound
from shardline.supervision.attempt_log import attempted, only_one
from shardline.training.rank_task import Preflight, ShortTraining


def train_first_steps(project: Project, steps: int, log: Path, output: str, inputs: Inputs) -> None:
    """Train a run's first steps, write the metrics of each step, and keep nothing else.

    Args:
        project: the run's part of the project.
        steps: number of optimiser steps.
        inputs: `spec` and `manifest`.

    Raises:
        RankError: a rank failed.
    """
    run = only(project.runs)
    refuse_combined(run.settings, run.row.where, "has no first steps")
    recheck_training(project, run)
    with own_work(project, f"{run.id}-first-steps") as work:
        task, action = training_task(
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
    """Train a run again beside its result, without trackers.

    Args:
        project: the run's part of the project.
        number: number of the rerun; an interrupted rerun resumes from its training checkpoint.
        model: path of the model; metrics and provenance are written beside it.
        inputs: `spec` and `manifest`.

    Raises:
        RankError: a rank failed.
    """
    run = only(project.runs)
    recheck_training(project, run)
    work = project.layout.declared.work(f"{run.id}-rerun-{number}")
    make_folder(work)
    task, action = training_task(
        project, run, inputs, work, "train_again", results=Path(model).parent
    )
    runtime = structs.replace(task.runtime, watch_reads="off")
    with only_one(work, run.id), attempted(work) as attempt:
        action = structs.replace(action, attempt=attempt)
        task = structs.replace(task, runtime=runtime, action=action)
        path = work / "attempts" / str(attempt) / "rank.json"
        python, threads = python_of(project, run, inputs), _sealed_threads(project, run)
        start_ranks(project, task, path, log, python, saves=True, threads=threads)
    shutil.rmtree(work, ignore_errors=True)


def _sealed_threads(project: Project, run: RunPlan) -> int | None:
    """Return the CPU threads of each rank in a sealed training; None if unknown."""
    sealed = read_if_sound(project.layout.result("run", run.id) / "provenance.json")
    ranks = sealed.get("world", {}).get("ranks")
    return ranks[0].get("threads") if ranks else None


def run_preflight(project: Project, log: Path, output: str, inputs: Inputs) -> None:
    """Run only the preflight check of a run's ranks, and write its report.

    Args:
        project: the run's part of the project.
        inputs: `environment`, if `runtime.environment` has one.
    """
    run = only(project.runs)
    layout = project.layout.declared
    work = layout.work(f"{run.id}-preflight")
    make_folder(work)
    run_on_ranks(
        project,
        run.spec,
        Preflight(output=Path(output)),
        work=work,
        rank_logs=layout.logs_of_parts("run_preflight", run.id),
        log=log,
        inputs=inputs,
    )
