"""Samples what a rank uses of its machine; see `shardline.supervision.resource_usage`."""

import time
from contextlib import suppress
from pathlib import Path

from shardline.supervision.resource_usage import MachinePoint, read_curve, write_curve
from shardline.supervision.watchdog import Task
from shardline.supervision.watchdog.proc import usage_of
from shardline_io.heartbeat_memory import HeartbeatMemory

_PERIOD_S = 2.0  # at first; it doubles whenever the points are halved


class Sampler:
    """Appends a point to the rank's curve whenever its period has passed.

    Its first point comes one period after the start, so that a training of seconds has none.

    Args:
        memory: that the rank shares, and where it writes the use of its GPU.
    """

    def __init__(self, task: Task, memory: HeartbeatMemory) -> None:
        self._work, self._rank, self._pid = Path(task.work), task.rank, task.pid
        self._memory = memory
        self._curve = read_curve(self._work, self._rank, period_s=_PERIOD_S)
        self._attempt = self._curve.begin(task.attempt)
        self._started = self._sampled = time.monotonic()
        self._earlier_s, self._cpu_s = self._curve.last_s, 0.0
        with suppress(OSError):
            self._cpu_s = usage_of(self._pid)[1]

    def sample_if_due(self) -> None:
        """Append a point and write the curve, if it is time; takes some 0.5 ms then."""
        now = time.monotonic()
        if now - self._sampled < self._curve.period_s:
            return
        with suppress(OSError):  # the rank has just ended
            rss_bytes, cpu_s = usage_of(self._pid)
            gpu_bytes, gpu_percent = self._memory.gpu()
            # what a child used is missing for a moment between its end and its parent's notice
            used_s = max(0.0, cpu_s - self._cpu_s)
            point = MachinePoint(
                attempt=self._attempt,
                s=round(self._earlier_s + now - self._started, 1),
                rss_bytes=rss_bytes,
                cpu_percent=round(100 * used_s / (now - self._sampled), 1),
                gpu_bytes=gpu_bytes,
                gpu_percent=gpu_percent,
            )
            self._curve.add(point)
            self._sampled, self._cpu_s = now, cpu_s
            write_curve(self._work, self._rank, self._curve)
