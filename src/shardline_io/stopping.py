"""Heartbeats and stop requests of a script, in memory shared with its rank and the watchdog."""

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

STOPPED = 75  # EX_TEMPFAIL of sysexits.h, the exit code of all stopped ranks
# Schedulers preempt with SIGTERM, and send SIGUSR1 under `--signal=USR1@60`.
SIGNALS = {signal.SIGTERM: "preempted", signal.SIGUSR1: "signal", signal.SIGINT: "interrupted"}
_began = False


def begin() -> None:
    """Map the rank's heartbeat memory, and turn stop signals into stop requests."""
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
    """Append the stacks of all threads to the rank's file when the watchdog sends its signal."""
    path, number = os.environ.get("SHARDLINE_STACKS"), os.environ.get("SHARDLINE_STACKS_SIGNAL")
    if not path or not number or not hasattr(faulthandler, "register"):
        return
    try:
        stacks = Path(path).open("ab")  # noqa: SIM115  # open until the process ends
    except OSError:  # training continues without stacks
        return
    # runs in C, so it works even if a thread never releases the interpreter lock
    faulthandler.register(int(number), stacks, all_threads=True)
    heartbeat_memory.mine().record_program(os.getpid())


def _ask(number: int, frame: FrameType | None) -> None:
    heartbeat_memory.mine().request_stop(SIGNALS[signal.Signals(number)])


def alive() -> None:
    """Record a heartbeat; call it during long work between two batches or after the last one.

    Each batch of `train` and `held_out` is a heartbeat too, as are `checkpoint`, `log`,
    `write_evaluation` and `save_model`. After the last batch, ranks that only wait for another rank
    need no heartbeats as long as that rank records them.
    """
    heartbeat_memory.mine().again()


def should_stop(max_over_ranks: Callable[[int], int] | None = None) -> bool:
    """Return whether the training must save and stop, for example shortly before its time limit.

    Args:
        max_over_ranks: function that returns the maximum of a number over all ranks, by your
            framework's all-reduce, so that all ranks stop at the same step. Every rank must then
            call `should_stop` at the same steps. Not needed for a single rank.

    Raises:
        ConfigError: there are several ranks, but no `max_over_ranks`.
    """
    begin()
    asked = int(heartbeat_memory.mine().stop_reason() is not None)
    if own_run.world().world_size == 1:
        return bool(asked)
    if max_over_ranks is None:
        raise ConfigError(
            f"shardline_io.should_stop() was called without max_over_ranks, expected it since "
            f"world_size={own_run.world().world_size}; pass your framework's all-reduce by maximum, so that all "
            "ranks stop at the same step"
        )
    return bool(max_over_ranks(asked))


def stop() -> None:
    """End this process as a stopped training, which resumes when it is started again.

    Call this on all ranks after a `checkpoint`.

    Raises:
        SystemExit: always.
    """
    sys.exit(STOPPED)
