"""Read new metric records from a growing file, as batches of whole steps."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from msgspec import structs

from shardline.records.metrics import MetricLine

_TAIL_BYTES = 65536


@dataclass(frozen=True)
class Value:
    """One value of one metric.

    Attributes:
        step: optimiser step.
        wall_s: training time in seconds; None if a script does not record it.
    """

    name: str
    value: float
    step: int
    wall_s: float | None


@dataclass(frozen=True)
class MetricBatch:
    """All values of some consecutive steps.

    Attributes:
        logged: images, tables and texts that the model logged, one line for each step with such entries.
        step: last step.
        records: number of records.
    """

    values: list[Value]
    step: int
    records: int
    logged: list[MetricLine] = field(default_factory=list)

    def rows(self) -> Iterator[dict[str, float | None]]:
        """Yield one row per step: `step`, `wall_s` and the metrics by name."""
        for step, values in groupby(self.values, key=lambda value: value.step):
            row: dict[str, float | None] = {"step": step}
            for value in values:
                row |= {"wall_s": value.wall_s, value.name: value.value}
            yield row


class Records:
    """Metric records of a growing file.

    A resumed training truncates the file, and the last line may be incomplete. A step is complete when a later
    step begins, since validation may add records to it, or when `is_whole` is set.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = self._inode = 0

    def restart(self) -> None:
        """Read from the beginning of the file again."""
        self._offset = 0

    def batches(self, after: int, *, is_whole: bool, size: int) -> Iterator[MetricBatch]:
        """Yield new records as batches of at most `size` values; a single step may have more.

        A batch counts as read when the caller requests the next batch.

        Args:
            after: last step to skip.
            is_whole: whether the file is complete.
        """
        batch = MetricBatch([], after, 0)
        end = self._offset
        for step, records, offset in self._steps(is_whole=is_whole):
            if step > after:
                values = [value for record in records for value in _values(record)]
                if batch.records and len(batch.values) + len(values) > size:
                    yield batch
                    self._offset, batch = end, MetricBatch([], after, 0)
                logged = [*batch.logged, *_joined(records)]
                number = batch.records + len(records)
                batch = MetricBatch([*batch.values, *values], step, number, logged)
            end = offset
        if batch.records:
            yield batch
        self._offset = end

    def started(self) -> float | None:
        """Return the start time of a training without pauses, in seconds since the epoch; None if unknown."""
        try:
            with self._path.open("rb") as file:
                modified = self._path.stat().st_mtime
                file.seek(max(0, self._path.stat().st_size - _TAIL_BYTES))
                lines = file.read().split(b"\n")
        except OSError:
            return None
        walls = (line.wall_s for line in map(_parse, reversed(lines)) if line)
        newest = next((wall for wall in walls if wall is not None), None)
        return None if newest is None else modified - newest

    def _steps(self, *, is_whole: bool) -> Iterator[tuple[int, list[MetricLine], int]]:
        """Yield each complete step with its records and the file offset of the next step."""
        held: tuple[int, list[MetricLine], int] | None = None
        for step, group in groupby(self._lines(), key=lambda line: line[0].step):
            if held:
                yield held
            lines = list(group)
            held = step, [record for record, _ in lines], lines[-1][1]
        if held and is_whole:
            yield held

    def _lines(self) -> Iterator[tuple[MetricLine, int]]:
        """Yield each complete record with the file offset of the next line."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:  # no metrics yet
            return
        with file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._offset, self._inode = 0, found.st_ino
            file.seek(self._offset)
            offset = self._offset
            for line in file:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                if record := _parse(line):
                    yield record, offset


def _joined(records: Sequence[MetricLine]) -> list[MetricLine]:
    """Return one line with the images, tables and texts of a step; none without them."""
    lines = [record for record in records if record.logged]
    entries = [one for line in lines for one in line.logged or () if not one.left_out]
    return [structs.replace(lines[-1], logged=entries)] if entries else []


def _parse(line: bytes) -> MetricLine | None:
    """Return a record; None for an invalid line, which the job reports at its end."""
    try:
        return MetricLine.of(json.loads(line))
    except ValueError:
        return None


def _values(line: MetricLine) -> Iterator[Value]:
    """Yield the finite values of a record; services handle other values differently."""
    if line.logged:
        return
    for name, value in {"epoch": line.epoch, **line.values}.items():
        if value is not None and math.isfinite(value):
            yield Value(name, float(value), line.step, line.wall_s)
