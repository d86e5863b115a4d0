"""Heartbeat memory: a few numbers that a rank shares with its watchdog process.

The rank writes its progress; the watchdog reads it, also while the rank is stopped or stuck in
compiled code. In the other direction, the watchdog requests that the rank saves and stops.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass

PHASES = ("startup", "rendezvous", "train", "validation", "save", "seal", "script", "end")
REASONS = ("preempted", "signal", "interrupted", "deadline", "requested")

_PHASE_CODES = {phase: code for code, phase in enumerate(PHASES)}
_REASON_CODES = {reason: code for code, reason in enumerate(REASONS, 1)}  # 0: none
# Each field is one aligned 64-bit integer, written and read atomically: no lock is needed.
_STEP, _PHASE, _PLACE, _TICKS, _REASON, _LEFT, _GPU_BYTES, _GPU_PERCENT, _HEEDS, _PROGRAM = range(
    10
)
_BYTES = 10 * 8


@dataclass(frozen=True)
class RankProgress:
    """Progress of a rank at its last tick.

    Attributes:
        step: optimiser steps done.
        phase: one of `PHASES`.
        place: position within the phase at this step.
        ticks: number of ticks so far.
    """

    step: int
    phase: str
    place: int
    ticks: int


class HeartbeatMemory:
    """The memory of one rank. Every method may be called from a signal handler."""

    def __init__(self, descriptor: int = -1) -> None:
        """Map the memory.

        Args:
            descriptor: of the file that rank and watchdog share, see `shared_file`; -1: memory
                of this process alone.
        """
        self.descriptor = descriptor
        # the map stays open as long as a view of it
        self._fields = memoryview(mmap.mmap(descriptor, _BYTES)).cast("Q")

    def tick(self, step: int, phase: str, place: int = 0) -> None:
        """Record progress of this rank; takes less than a microsecond.

        Args:
            step: optimiser steps done.
            phase: one of `PHASES`.
            place: position within the phase at this step, where ranks can be compared by it: the
                lowest is the rank that is behind.
        """
        fields = self._fields
        fields[_STEP] = step
        fields[_PHASE] = _PHASE_CODES[phase]
        fields[_PLACE] = place
        fields[_TICKS] += 1

    def again(self, phase: str | None = None) -> None:
        """Record progress at the present step, in the present phase unless another is named."""
        self.tick(self._fields[_STEP], phase or PHASES[self._fields[_PHASE]])

    def read(self) -> RankProgress:
        """Return the rank's progress."""
        fields = self._fields
        return RankProgress(
            step=fields[_STEP],
            phase=PHASES[fields[_PHASE]],
            place=fields[_PLACE],
            ticks=fields[_TICKS],
        )

    def record_gpu(self, used_bytes: int | None, percent: int | None) -> None:
        """Record the use of this rank's GPU.

        Args:
            used_bytes: memory that the rank holds on it; None: not known, as is `percent`.
            percent: its utilisation.
        """
        for field, value in ((_GPU_BYTES, used_bytes), (_GPU_PERCENT, percent)):
            self._fields[field] = 0 if value is None else value + 1

    def gpu(self) -> tuple[int | None, int | None]:
        """Return what was recorded of the rank's GPU: bytes and per cent, None where not known."""
        used_bytes, percent = (self._fields[field] for field in (_GPU_BYTES, _GPU_PERCENT))
        return (used_bytes - 1 if used_bytes else None, percent - 1 if percent else None)

    def request_stop(self, reason: str) -> None:
        """Ask the rank to save and stop at its next step boundary; the first reason stays.

        Args:
            reason: one of `REASONS`.
        """
        code = _REASON_CODES[reason]
        if not self._fields[_REASON]:
            self._fields[_REASON] = code

    def stop_reason(self) -> str | None:
        """Return why the rank is to stop, None if it is not."""
        code = self._fields[_REASON]
        return REASONS[code - 1] if code else None

    def heed_stops(self) -> None:
        """Record that a program which the rank has started reads `stop_reason` by itself."""
        self._fields[_HEEDS] = 1

    @property
    def heeds_stops(self) -> bool:
        """Whether a program that the rank has started reads `stop_reason` by itself."""
        return bool(self._fields[_HEEDS])

    def record_program(self, pid: int) -> None:
        """Record the process of a program that the rank has started, which writes its stacks when it is asked to.

        Args:
            pid: of the process; 0: there is none any more.
        """
        self._fields[_PROGRAM] = pid

    @property
    def program(self) -> int:
        """The process that `record_program` recorded; 0: there is none."""
        return self._fields[_PROGRAM]

    def leave(self) -> None:
        """Record that this rank exits in good order."""
        self._fields[_LEFT] = 1

    @property
    def has_left(self) -> bool:
        """Whether the rank has exited in good order."""
        return bool(self._fields[_LEFT])


def shared_file() -> int:
    """Return the descriptor of a new unnamed file that can be mapped as heartbeat memory."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("heartbeat")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.write(descriptor, bytes(_BYTES))
    return descriptor


_mine: HeartbeatMemory | None = None


def mine() -> HeartbeatMemory:
    """Return this process's memory; a private one where no watchdog was started."""
    return _mine or adopt(HeartbeatMemory())


def adopt(memory: HeartbeatMemory) -> HeartbeatMemory:
    """Use a memory as this process's own."""
    global _mine
    _mine = memory
    return memory
