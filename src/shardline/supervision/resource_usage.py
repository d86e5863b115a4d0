"""What each rank used of its machine over time: memory, CPU and GPU, sampled by its watchdog.

The points of a rank lie in `machine/rank-00000.json` of the run's folder in the store, which the
attempts of a training continue. They are numbers alone.
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

MAX_POINTS = 240  # of a rank: at least half as many are kept, whatever a training takes
_MAX_SEALED, _MIN_SEALED = 960, 16  # of all ranks together, and of each of very many
_FOLDER = "machine"
_PERIOD_S = 2.0  # of a sampler at first; it doubles whenever the points are halved


class MachinePoint(Record, frozen=True, kw_only=True):
    """What a rank used, with the programs that it runs, since the point before.

    Attributes:
        attempt: number of the attempt, from 1.
        s: seconds of running up to now, without the time between attempts.
        rss_bytes: resident memory; what processes share counts in each of them.
        cpu_percent: of one core.
        gpu_bytes: memory that PyTorch holds on the rank's GPU; None where not known.
        gpu_percent: utilisation of that GPU, by NVML; None where not known.
    """

    attempt: int
    s: float
    rss_bytes: int
    cpu_percent: float
    gpu_bytes: int | None = None
    gpu_percent: int | None = None


_COLUMNS = MachinePoint.__struct_fields__


def halve(points: Sequence[MachinePoint]) -> list[MachinePoint]:
    """Merge each two points after the first one; no peak of memory is lost by it."""
    later = points[1:]
    pairs = [later[at : at + 2] for at in range(0, len(later), 2)]
    return [*points[:1], *map(_merge, pairs)]


def thin(points: Sequence[MachinePoint], max_points: int) -> list[MachinePoint]:
    """Halve points until there are few enough; the first and the last time stay.

    Args:
        max_points: at least 2.
    """
    kept = list(points)
    while len(kept) > max_points:
        kept = halve(kept)
    return kept


def _merge(pair: Sequence[MachinePoint]) -> MachinePoint:
    """Return one point at the time of the last: the highest memory, and the mean use."""
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
    """The points of one rank up to now.

    Attributes:
        points: by time.
        period_s: seconds from one point to the next.
    """

    points: list[MachinePoint]
    period_s: float

    def begin(self, attempt: int) -> int:
        """Let an attempt continue the curve, and return its number.

        Args:
            attempt: 0 where it is not known: one more than the last one. Points of later attempts
                are of a training whose attempts were deleted, and are left out.
        """
        if not attempt:
            return self.points[-1].attempt + 1 if self.points else 1
        self.points = [point for point in self.points if point.attempt <= attempt]
        return attempt

    def add(self, point: MachinePoint) -> None:
        """Append a point; where there are too many, half as many stay, and come half as often."""
        self.points.append(point)
        if len(self.points) > MAX_POINTS:
            self.points = halve(self.points)
            self.period_s *= 2

    @property
    def last_s(self) -> float:
        """Seconds of running at the last point."""
        return self.points[-1].s if self.points else 0.0


def read_curve(work: Path, rank: int, *, period_s: float = 1.0) -> MachineCurve:
    """Return a rank's points; none where no whole file of them is there.

    Args:
        work: the run's folder in the store.
        period_s: of a curve that begins.
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
    """Write a rank's points; a full disk or a missing folder does not end a training."""
    document = {"period_s": curve.period_s, "points": _columns(curve.points)}
    path = _file(work, rank)
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        with renamed_when_complete(path) as scratch:
            scratch.write_text(json.dumps(document))


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


def sealed_curve(work: Path, rank: int, world_size: int) -> UsageCurve | None:
    """Return a rank's points as they are sealed with the run; None of fewer than two.

    Columns that were never known are left out.
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
