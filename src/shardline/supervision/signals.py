"""Which signals ask for a stop, and what a rank does with one: it remembers it.

A rank that is training goes on to its next step boundary, where all ranks agree to save
(`stopping`). One that has not begun has nothing to lose and ends at once.
"""

import os
import signal
import time
from types import FrameType

from shardline.core.errors import Stopped
from shardline.supervision.heartbeat_memory import mine

# Schedulers preempt by SIGTERM, and send SIGUSR1 where `--signal=USR1@60` asks for it.
SIGNALS = {
    signal.SIGTERM: "preempted",
    signal.SIGUSR1: "signal",
    signal.SIGINT: "interrupted",
}
# A launcher passes on what its ranks got already: within this time a signal is the same one.
_SAME_S = 2.0

_first: dict[int, float] = {}
_can_save = False


def listen() -> None:
    """Have the signals ask this rank to stop; one that comes a second time ends it at once."""
    for number in SIGNALS:
        signal.signal(number, _ask)


def can_save() -> None:
    """From now on leave the stop to who reads `pulse.mine().stop_reason()`."""
    global _can_save
    _can_save = True


def _ask(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    first = _first.setdefault(number, now)
    if now - first > _SAME_S:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    reason = SIGNALS[signal.Signals(number)]
    mine().request_stop(reason)
    if first == now and not _can_save:
        raise Stopped(reason, None)
