"""Heartbeat memory: a few numbers shared by a rank and its watchdog process.

The rank writes its progress. The watchdog reads the progress even if the rank is stopped or stuck
in compiled code, and can request that the rank saves and stops.
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
    """Heartbeat memory of one rank; every method is safe in a signal handler."""

    def __init__(self, descriptor: int = -1) -> None:
        """Map the memory.

        Args:
            descriptor: file descriptor shared by rank and watchdog, see `shared_file`; -1 for
                private memory of this process.
        """
        self.descriptor = descriptor
        # the view keeps the map open
        self._fields = memoryview(mmap.mmap(descriptor, _BYTES)).cast("Q")

    def tick(self, step: int, phase: str, place: int = 0) -> None:
        """Record progress of this rank, in less than a microsecond.

        Args:
            step: optimiser steps done.
            phase: one of `PHASES`.
            place: position within the phase at this step; the rank with the lowest one is behind.
        """
        fields = self._fields
        fields[_STEP] = step
        fields[_PHASE] = _PHASE_CODES[phase]
        fields[_PLACE] = place
        fields[_TICKS] += 1

    def again(self, phase: str | None = None) -> None:
        """Record a heartbeat at the same step, in the same phase unless another is given."""
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
            used_bytes: GPU memory that the rank uses; None if unknown.
            percent: utilisation of the GPU; None if unknown.
        """
        for field, value in ((_GPU_BYTES, used_bytes), (_GPU_PERCENT, percent)):
            self._fields[field] = 0 if value is None else value + 1

    def gpu(self) -> tuple[int | None, int | None]:
        """Return the recorded GPU memory in bytes and the utilisation in per cent; None if unknown."""
        used_bytes, percent = (self._fields[field] for field in (_GPU_BYTES, _GPU_PERCENT))
        return (used_bytes - 1 if used_bytes else None, percent - 1 if percent else None)

    def request_stop(self, reason: str) -> None:
        """Request that the rank saves and stops after the current step; keeps the first reason.

        Args:
            reason: one of `REASONS`.
        """
        code = _REASON_CODES[reason]
        if not self._fields[_REASON]:
            self._fields[_REASON] = code

    def stop_reason(self) -> str | None:
        """Return the reason of a stop request; None if there is none."""
        code = self._fields[_REASON]
        return REASONS[code - 1] if code else None

    def heed_stops(self) -> None:
        """Record that a script started by the rank reads `stop_reason` itself."""
        self._fields[_HEEDS] = 1

    @property
    def heeds_stops(self) -> bool:
        """Whether a script started by the rank reads `stop_reason` itself."""
        return bool(self._fields[_HEEDS])

    def record_program(self, pid: int) -> None:
        """Record the process of the rank's script, which writes its stacks on request.

        Args:
            pid: process id; 0 after the script has ended.
        """
        self._fields[_PROGRAM] = pid

    @property
    def program(self) -> int:
        """Process id recorded by `record_program`; 0 if there is none."""
        return self._fields[_PROGRAM]

    def leave(self) -> None:
        """Record that this rank exits regularly."""
        self._fields[_LEFT] = 1

    @property
    def has_left(self) -> bool:
        """Whether the rank has exited regularly."""
        return bool(self._fields[_LEFT])


def shared_file() -> int:
    """Return the descriptor of a new unnamed file for heartbeat memory."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("heartbeat")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.write(descriptor, bytes(_BYTES))
    return descriptor


_mine: HeartbeatMemory | None = None


def mine() -> HeartbeatMemory:
    """Return the heartbeat memory of this process; private memory if there is no watchdog."""
    return _mine or adopt(HeartbeatMemory())


def adopt(memory: HeartbeatMemory) -> HeartbeatMemory:
    """Use this heartbeat memory for the current process."""
    global _mine
    _mine = memory
    return memory
