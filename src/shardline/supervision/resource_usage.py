"""Each rank's use of memory, CPU and GPU over time, sampled by its watchdog.

The points of a rank are in `machine/rank-00000.json` of the run's folder in the store. Later
attempts of a training append to them.
"""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shardline.core.files import renamed_when_complete
from shardline.records.base import Record
from shardline.records.measured import UsageCurve
from shardline.supervision.watchdog import Task
from shardline.supervision.watchdog.proc import usage_of
from shardline_io.heartbeat_memory import HeartbeatMemory

MAX_POINTS = 240  # per rank; at least half as many are kept, however long the training
_MAX_SEALED, _MIN_SEALED = 960, 16  # points of all ranks together, and the least per rank
_FOLDER = "machine"
_PERIOD_S = 2.0  # a sampler's first period; it doubles whenever the points are halved


class MachinePoint(Record, frozen=True, kw_only=True):
    """Resources that a rank and its programs used since the previous point.

    Attributes:
        attempt: number of the attempt, from 1.
        s: seconds of running up to now, without the time between attempts.
        rss_bytes: resident memory; memory shared by processes counts in each of them.
        cpu_percent: CPU use, percent of one core.
        gpu_bytes: PyTorch's memory on the rank's GPU; None if unknown.
        gpu_percent: utilisation of that GPU, by NVML; None if unknown.
    """

    attempt: int
    s: float
    rss_bytes: int
    cpu_percent: float
    gpu_bytes: int | None = None
    gpu_percent: int | None = None


_COLUMNS = MachinePoint.__struct_fields__


def halve(points: Sequence[MachinePoint]) -> list[MachinePoint]:
    """Merge the points after the first in pairs; peaks of memory are kept."""
    later = points[1:]
    pairs = [later[at : at + 2] for at in range(0, len(later), 2)]
    return [*points[:1], *map(_merge, pairs)]


def thin(points: Sequence[MachinePoint], max_points: int) -> list[MachinePoint]:
    """Halve points until at most `max_points` are left; the first and the last time stay.

    Args:
        max_points: number of points, at least 2.
    """
    kept = list(points)
    while len(kept) > max_points:
        kept = halve(kept)
    return kept


def _merge(pair: Sequence[MachinePoint]) -> MachinePoint:
    """Return a point at the last time with the highest memory and the mean use of a pair."""
    last = pair[-1]
    return MachinePoint(
        attempt=last.attempt,
        s=last.s,
        rss_bytes=max(point.rss_bytes for point in pair),
        cpu_percent=round(sum(point.cpu_percent for point in pair) / len(pair), 1),
        gpu_bytes=max(_known(pair, "gpu_bytes"), default=None),
        gpu_percent=_mean(_known(pair, "gpu_percent")),
    )


def _known(points: Sequence[MachinePoint], name: str) -> list[int]:
    values = (getattr(point, name) for point in points)
    return [value for value in values if value is not None]


def _mean(values: Sequence[int]) -> int | None:
    return round(sum(values) / len(values)) if values else None


@dataclass
class MachineCurve:
    """The points of one rank so far.

    Attributes:
        points: points by time.
        period_s: seconds between two points.
    """

    points: list[MachinePoint]
    period_s: float

    def begin(self, attempt: int) -> int:
        """Let an attempt continue the curve, and return the attempt's number.

        Args:
            attempt: number of the attempt; 0 if unknown, for the number after the last one.
                Points of later attempts are dropped: those attempts were deleted.
        """
        if not attempt:
            return self.points[-1].attempt + 1 if self.points else 1
        self.points = [point for point in self.points if point.attempt <= attempt]
        return attempt

    def add(self, point: MachinePoint) -> None:
        """Append a point; when there are too many, halve the points and double the period."""
        self.points.append(point)
        if len(self.points) > MAX_POINTS:
            self.points = halve(self.points)
            self.period_s *= 2

    @property
    def last_s(self) -> float:
        """Seconds of running at the last point."""
        return self.points[-1].s if self.points else 0.0


def read_curve(work: Path, rank: int, *, period_s: float = 1.0) -> MachineCurve:
    """Return a rank's points; none if the file is missing or damaged.

    Args:
        work: the run's folder in the store.
        period_s: least period of the curve, seconds.
    """
    with suppress(OSError, ValueError, TypeError, KeyError, msgspec.MsgspecError):
        document = msgspec.json.decode(_file(work, rank).read_bytes())
        rows = zip(*(document["points"][name] for name in _COLUMNS), strict=True)
        read = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
        points = msgspec.convert(read, list[MachinePoint])
        if len(points) <= MAX_POINTS:
            return MachineCurve(points, max(period_s, float(document["period_s"])))
    return MachineCurve([], period_s)


def write_curve(work: Path, rank: int, curve: MachineCurve) -> None:
    """Write a rank's points; errors such as a full disk are ignored."""
    document = {"period_s": curve.period_s, "points": _columns(curve.points)}
    path = _file(work, rank)
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        with renamed_when_complete(path) as scratch:
            scratch.write_text(json.dumps(document))


class Sampler:
    """Appends a point to the rank's curve after each period.

    The first point comes one period after the start, so a training of a few seconds has none.

    Args:
        memory: memory shared with the rank, which writes the use of its GPU there.
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
        """Append a point and write the curve, if it is time; this takes about 0.5 ms."""
        now = time.monotonic()
        if now - self._sampled < self._curve.period_s:
            return
        with suppress(OSError):  # the rank has just exited
            rss_bytes, cpu_s = usage_of(self._pid)
            gpu_bytes, gpu_percent = self._memory.gpu()
            # between a child's exit and its parent's wait(), the child's CPU time is missing
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


def sealed_curve(work: Path, rank: int, world_size: int) -> UsageCurve | None:
    """Return a rank's points as sealed with the run; None if there are fewer than two.

    Columns without any value are left out.
    """
    points = read_curve(work, rank).points
    points = thin(points, max(_MIN_SEALED, min(MAX_POINTS, _MAX_SEALED // world_size)))
    known = {
        name: values for name, values in _columns(points).items() if values != [None] * len(values)
    }
    return UsageCurve(**known) if len(points) > 1 else None


def _columns(points: Sequence[MachinePoint]) -> dict[str, list[Any]]:
    return {name: [getattr(point, name) for point in points] for name in _COLUMNS}


def _file(work: Path, rank: int) -> Path:
    return work / _FOLDER / f"rank-{rank:05d}.json"
