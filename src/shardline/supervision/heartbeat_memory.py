"""A rank's pulse: a few numbers in memory that the rank shares with the watchdog process beside it.

The rank writes how far it is; the watchdog, which also lives while the rank is stopped or stuck in
compiled code, reads it. The other way goes the wish that the rank saves and stops.
"""

import mmap
import os
import tempfile
import time
from dataclasses import dataclass

PHASES = ("startup", "rendezvous", "train", "validation", "save", "seal", "script")
REASONS = ("preempted", "signal", "interrupted", "deadline", "requested")

_PHASE_CODES = {phase: code for code, phase in enumerate(PHASES)}
_REASON_CODES = {reason: code for code, reason in enumerate(REASONS, 1)}  # 0: none
# Each is one aligned word, which is written and read whole: no lock is needed.
_STEP, _PHASE, _PLACE, _TICKS, _TIME_NS, _REASON, _LEFT = range(7)
_BYTES = 7 * 8


@dataclass(frozen=True, kw_only=True)
class Beat:
    """How far a rank was when it last told.

    Attributes:
        step: optimiser steps done.
        phase: one of `PHASES`.
        place: how far it is within the phase at this step.
        ticks: times that it told.
        since_s: seconds since then.
    """

    step: int
    phase: str
    place: int
    ticks: int
    since_s: float


class Pulse:
    """One rank's pulse. Every method may be called from a signal handler."""

    def __init__(self, descriptor: int = -1) -> None:
        """Map it.

        Args:
            descriptor: of the file that rank and watchdog share, see `shared_file`; -1: of no
                other process.
        """
        # the map stays open as long as a view of it
        self._words = memoryview(mmap.mmap(descriptor, _BYTES)).cast("Q")
        if not self._words[_TIME_NS]:
            self._words[_TIME_NS] = time.monotonic_ns()

    def tick(self, step: int, phase: str, place: int = 0) -> None:
        """Tell that this rank goes on; takes less than a microsecond.

        Args:
            step: optimiser steps done.
            phase: one of `PHASES`.
            place: how far it is within the phase at this step, where that can be compared between
                ranks; it tells which of them is behind.
        """
        words = self._words
        words[_STEP] = step
        words[_PHASE] = _PHASE_CODES[phase]
        words[_PLACE] = place
        words[_TIME_NS] = time.monotonic_ns()
        words[_TICKS] += 1

    def again(self, phase: str | None = None) -> None:
        """Tell that this rank goes on at the step where it is, in the same phase unless another is named."""
        self.tick(self._words[_STEP], phase or PHASES[self._words[_PHASE]])

    def read(self) -> Beat:
        """Return how far the rank is."""
        words = self._words
        return Beat(
            step=words[_STEP],
            phase=PHASES[words[_PHASE]],
            place=words[_PLACE],
            ticks=words[_TICKS],
            since_s=(time.monotonic_ns() - words[_TIME_NS]) / 1e9,
        )

    def request_stop(self, reason: str) -> None:
        """Ask the rank to save and stop at its next step boundary; the first reason stays.

        Args:
            reason: one of `REASONS`.
        """
        code = _REASON_CODES[reason]
        if not self._words[_REASON]:
            self._words[_REASON] = code

    def stop_reason(self) -> str | None:
        """Return why the rank is to stop, None if it is not."""
        code = self._words[_REASON]
        return REASONS[code - 1] if code else None

    def leave(self) -> None:
        """Tell that this rank has told all that it has to: its end is no surprise."""
        self._words[_LEFT] = 1

    @property
    def has_left(self) -> bool:
        """Whether the rank has ended by itself."""
        return bool(self._words[_LEFT])


def shared_file() -> int:
    """Return the descriptor of a new file that a pulse can be mapped from; it has no name to be left behind."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pulse")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.write(descriptor, bytes(_BYTES))
    return descriptor


_mine: Pulse | None = None


def mine() -> Pulse:
    """Return this process's pulse; one that nobody watches where no watchdog was started."""
    return _mine or adopt(Pulse())


def adopt(pulse: Pulse) -> Pulse:
    """Make a pulse this process's own."""
    global _mine
    _mine = pulse
    return pulse
