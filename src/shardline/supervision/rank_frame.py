"""The frame of every rank's program: resolve its World, redirect its output, report its failure."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardline.core.errors import ShardlineError, exit_code_of
from shardline.core.masked_output import masked_output
from shardline.core.process import die_with_parent
from shardline.core.variables import check_python, clean, ignored
from shardline.core.world import World
from shardline.launch.levels import is_azure
from shardline.launch.resolve import resolve_world
from shardline.supervision import signals
from shardline.supervision.failure_records import report_failure
from shardline.supervision.watchdog import Watch
from shardline_io import heartbeat_memory


def run_rank(
    body: Callable[[World], None], *, work: Path, logs: Path, shorten: Callable[[Exception], str],
    watch: Watch | None = None,
) -> int:  # fmt: skip
    """Run one rank's work, and return its exit code.

    Args:
        work: the run's folder in the store, where a failure is recorded.
        logs: folder for the logs of all ranks but rank 0.
        shorten: returns the message of an unexpected error.
        watch: settings of the watchdog; None for no watchdog.
    """
    with masked_output():
        die_with_parent()
        signals.listen()
        world, log = None, None
        details: dict[str, Any] = {}
        try:
            world = resolve_world(os.environ)
            log = _own_log(logs, world)
            check_python()
            # variables that a shell's profile or an image added on this host
            if changing := clean(os.environ):
                print(ignored(changing), flush=True)
            if watch:
                watch.start(world, work=work, logs=logs)
            body(world)
            return 0
        except ShardlineError as error:
            message, code = str(error), error.exit_code
            step, stop = getattr(error, "step", None), getattr(error, "reason", None)
            details = {"kind": error.kind, "step": step, "stop": stop}
        except Exception as error:
            traceback.print_exc()  # to the log
            message, code = shorten(error), exit_code_of(error)
        finally:
            heartbeat_memory.mine().leave()
        report_failure(
            work, message, rank=world.rank if world else None, log=log, code=code, **details
        )
        return code


def _own_log(folder: Path, world: World) -> Path | None:
    """Redirect the output of each rank but rank 0 to its own file; rank 0 writes to the job's log.

    Under Azure ML the output stays: the service keeps it, while files are lost with their node.
    """
    if world.world_size == 1:
        return None
    if world.rank == 0:
        return folder.with_name(f"{folder.name}.log")
    if is_azure(os.environ):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{world.rank}.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    return path
