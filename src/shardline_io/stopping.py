"""Heartbeat and stop signal of a program, in the memory that it shares with its rank and its watchdog."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from shardline_io import heartbeat_memory, own_run
from shardline_io.errors import ConfigError

STOPPED = 75  # EX_TEMPFAIL of sysexits.h, as Shardline's own ranks end
# Schedulers preempt by SIGTERM, and send SIGUSR1 where `--signal=USR1@60` asks for it.
SIGNALS = {signal.SIGTERM: "preempted", signal.SIGUSR1: "signal", signal.SIGINT: "interrupted"}
_began = False


def begin() -> None:
    """Use the memory that the rank shares, and take stop signals as requests from now on."""
    global _began
    if _began:
        return
    _began = True
    descriptor = os.environ.get("SHARDLINE_HEARTBEAT")
    if descriptor:
        heartbeat_memory.adopt(heartbeat_memory.HeartbeatMemory(int(descriptor)))
    heartbeat_memory.mine().heed_stops()
    _write_stacks_on_request()
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, _ask)


def _write_stacks_on_request() -> None:
    """Write the stacks of all threads behind the rank's own when the watchdog asks for them by a signal."""
    path, number = os.environ.get("SHARDLINE_STACKS"), os.environ.get("SHARDLINE_STACKS_SIGNAL")
    if not path or not number or not hasattr(faulthandler, "register"):
        return
    try:
        stacks = Path(path).open("ab")  # noqa: SIM115  # as long as the process lives
    except OSError:  # a training is worth more than its stacks
        return
    # works where the interpreter's lock is held for ever, and needs no Python
    faulthandler.register(int(number), stacks, all_threads=True)
    heartbeat_memory.mine().record_program(os.getpid())


def _ask(number: int, frame: FrameType | None) -> None:
    heartbeat_memory.mine().request_stop(SIGNALS[signal.Signals(number)])


def alive() -> None:
    """Record a heartbeat, where the program works for a long time between two batches or after the last one.

    Each batch of `train` and `held_out`, `checkpoint`, `log`, `write_evaluation` and `save_model` are
    heartbeats too. After the last batch, ranks that wait for one which records heartbeats need none.
    """
    heartbeat_memory.mine().again()


def should_stop(max_over_ranks: Callable[[int], int] | None = None) -> bool:
    """Return whether the training is to save and stop, such as before its job's time is over.

    Args:
        max_over_ranks: returns the largest of the numbers that the ranks give it, by the
            framework's own all-reduce, so that all ranks stop at one step. All ranks call this at
            the same steps then. Not needed for one rank.

    Raises:
        ConfigError: there are several ranks and nothing to agree by.
    """
    begin()
    asked = int(heartbeat_memory.mine().stop_reason() is not None)
    if own_run.world().world_size == 1:
        return bool(asked)
    if max_over_ranks is None:
        raise ConfigError(
            f"shardline_io.should_stop() was called without max_over_ranks, expected it with "
            f"world_size={own_run.world().world_size}; give the framework's all-reduce by maximum, so that all "
            "ranks stop at one step"
        )
    return bool(max_over_ranks(asked))


def stop() -> None:
    """End this process as a training that was stopped: started again, it resumes.

    Call it on all ranks behind a `checkpoint`.

    Raises:
        SystemExit: always.
    """
    sys.exit(STOPPED)
