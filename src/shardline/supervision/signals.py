"""Signals that request a stop, and their handler in a rank, which records the request.

A rank that is training continues to its next step boundary, where all ranks agree to save
(`training.stop_agreement`). A rank that has not begun to train exits at once.
"""

import os
import signal
import time
from types import FrameType

from shardline.core.errors import Stopped
from shardline_io.heartbeat_memory import mine
from shardline_io.stopping import SIGNALS

# A launcher forwards signals that its ranks received too: a repeat within this time is the same signal.
_SAME_S = 2.0

_first: dict[int, float] = {}
_can_save = False


def listen() -> None:
    """Make the signals request a stop of this rank; a second signal ends the rank at once."""
    for number in SIGNALS:
        signal.signal(number, _ask)


def can_save() -> None:
    """From now on, leave stops to the code that reads `heartbeat_memory.mine().stop_reason()`."""
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
