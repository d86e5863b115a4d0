"""The program of one rank, which a launcher starts: `python -m shardline.training.rank rank.json`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shardline.core.error_texts import short_traceback
from shardline.core.errors import ConfigError
from shardline.core.extras import naming_extras
from shardline.core.files import write_json
from shardline.core.one_lightning import keep
from shardline.core.world import World
from shardline.identity import watch_reads
from shardline.records.base import encode
from shardline.supervision.rank_frame import run_rank
from shardline.supervision.watchdog import Watch
from shardline.training.preflight import meet
from shardline.training.rank_task import (
    Check,
    Evaluate,
    Find,
    ModelResult,
    Predict,
    Preflight,
    RankTask,
    Train,
    read_task,
    write_result,
)

# The timeout applies to each part of the preflight check: rendezvous, process group, one message.
_PREFLIGHT_PARTS = 3


def main() -> int:
    """Run one rank, and return the exit code."""
    tasks = _read_tasks()
    first = tasks[0]
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    return run_rank(
        naming_extras()(lambda world: _run(tasks, world)),
        work=first.work,
        logs=first.rank_logs,
        shorten=short_traceback,
        watch=_watch_of(first),
    )


def _read_tasks() -> list[RankTask]:
    parser = argparse.ArgumentParser(prog="python -m shardline.training.rank", description=__doc__)
    parser.add_argument(
        "tasks",
        nargs="+",
        type=Path,
        help="JSON file with the task of the rank, see `RankTask`; several files only to check several models",
    )
    return [read_task(path) for path in parser.parse_args().tasks]


def _watch_of(task: RankTask) -> Watch | None:
    if not isinstance(task.action, Train):
        return None
    return Watch(
        hang_timeout_s=task.runtime.hang_timeout_s,
        startup_timeout_s=_PREFLIGHT_PARTS * task.runtime.rendezvous_timeout_s + 60,
        attempt=task.action.attempt,
    )


def _run(tasks: Sequence[RankTask], world: World) -> None:
    # torch is imported only after the task was read without an error
    task = tasks[0]
    if not _keep_lightning(tasks, world):
        return
    match task.action:
        case Train() as action:
            from shardline.training.sealed_training import train_and_seal

            train_and_seal(task, action, world)
        case Evaluate() as action:
            _evaluate(task, action, world)
        case Predict() as action:
            _predict(task, action, world)
        case Find() as action:
            from shardline.training.find import find

            meet(task, world)
            find(task, action, world)
        case Check():
            from shardline.training.model_check import check_models

            check_models(tasks, world)
        case Preflight() as action:
            found = meet(task, world)
            if world.rank == 0:
                write_json(action.output, found)
    _leave()


def _keep_lightning(tasks: Sequence[RankTask], world: World) -> bool:
    """Load the Lightning that the runs' code imports; return False if models cannot be checked with it."""
    try:
        line = keep(tasks[0].run.lightning)
        if line and world.rank == 0:
            print(line, flush=True)
    except ConfigError as error:
        for task in tasks:
            if not isinstance(task.action, Check):
                raise
            write_result(task.action.output, ModelResult(problems=[str(error)]))
        return False
    return True


def _evaluate(task: RankTask, action: Evaluate, world: World) -> None:
    """Evaluate as one rank; rank 0 writes the evaluation."""
    import torch

    from shardline.training.evaluate import evaluate

    meet(task, world)
    # the number of threads changes the last bits of sums, so it must not depend on the launcher
    torch.set_num_threads(1)
    watch_reads.start_rank(task.work, task.runtime.watch_reads)
    found = evaluate(
        task.run,
        model_file=action.model,
        datasets=task.datasets,
        verify=task.runtime.verify,
        has_test_step=action.has_test_step,
        has_samples=action.has_samples,
        world=world,
    )
    if warning := watch_reads.finish():
        print(f"warning: {warning}", flush=True)
    if found:  # on rank 0
        write_json(action.output, encode(found))


def _predict(task: RankTask, action: Predict, world: World) -> None:
    """Predict as one rank; each rank writes its own parts."""
    import torch

    from shardline.training.predict import predict

    meet(task, world)
    torch.set_num_threads(1)  # as in an evaluation
    for num_rows in predict(
        task.run,
        model_file=action.model,
        trained_on=task.datasets,
        rows=action.rows,
        split=action.split,
        folder=action.folder,
        parts=action.parts,
        verify=task.runtime.verify,
        world=world,
    ):
        print(f"{num_rows} rows predicted", flush=True)


def _leave() -> None:
    """End the process group together, so that no rank reports a peer's normal exit as a failure."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _prepare_spawned(task: RankTask) -> None:
    """Load one Lightning, and watch the reads, in a process that user code spawned by multiprocessing."""
    keep(task.run.lightning)
    if isinstance(task.action, Train | Evaluate):
        watch_reads.start_rank(task.work, task.runtime.watch_reads, is_spawned=True)


if __name__ == "__main__":
    sys.exit(main())
elif __name__ == "__mp_main__":
    _prepare_spawned(_read_tasks()[0])
