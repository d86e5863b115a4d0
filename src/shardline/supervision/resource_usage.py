"""What each rank used of its machine over time: memory, CPU and GPU, sampled by its watchdog.

The points of a rank lie in `machine/rank-00000.json` of the run's folder in the store, which the
attempts of a training continue. They are numbers alone.
"""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from shardline.core.files import renamed_when_complete

MAX_POINTS = 240  # of a rank: at least half as many are kept, whatever a training takes
_MAX_SEALED, _MIN_SEALED = 960, 16  # of all ranks together, and of each of very many
_FOLDER = "machine"


@dataclass(frozen=True, kw_only=True)
class MachinePoint:
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


_COLUMNS = tuple(field.name for field in fields(MachinePoint))
_OPTIONAL = ("gpu_bytes", "gpu_percent")


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
    with suppress(OSError, ValueError, TypeError, KeyError, OverflowError):
        document = json.loads(_file(work, rank).read_bytes())
        rows = zip(*(document["points"][name] for name in _COLUMNS), strict=True)
        points = [MachinePoint(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]
        if all(map(_is_whole, points)) and len(points) <= MAX_POINTS:
            return MachineCurve(points, max(period_s, float(document["period_s"])))
    return MachineCurve([], period_s)


def _is_whole(point: MachinePoint) -> bool:
    return all(
        (value is None and name in _OPTIONAL)
        or (isinstance(value, int | float) and math.isfinite(value))
        for name, value in asdict(point).items()
    )


def write_curve(work: Path, rank: int, curve: MachineCurve) -> None:
    """Write a rank's points; a full disk or a missing folder does not end a training."""
    document = {"period_s": curve.period_s, "points": _columns(curve.points)}
    path = _file(work, rank)
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        with renamed_when_complete(path) as scratch:
            scratch.write_text(json.dumps(document))


def sealed_curve(work: Path, rank: int, world_size: int) -> dict[str, Any]:
    """Return a rank's points as they are sealed with the run: key `curve`, by column; nothing of fewer than two.

    Columns that were never known are left out.
    """
    points = read_curve(work, rank).points
    points = thin(points, max(_MIN_SEALED, min(MAX_POINTS, _MAX_SEALED // world_size)))
    columns = _columns(points)
    unknown = [name for name in _OPTIONAL if not _known(points, name)]
    known = {name: values for name, values in columns.items() if name not in unknown}
    return {"curve": known} if len(points) > 1 else {}


def _columns(points: Sequence[MachinePoint]) -> dict[str, list[Any]]:
    return {name: [getattr(point, name) for point in points] for name in _COLUMNS}


def _file(work: Path, rank: int) -> Path:
    return work / _FOLDER / f"rank-{rank:05d}.json"
