"""Verification of a run's sample ledger against the planned order of samples."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.config.scripts import is_script
from shardline.core.errors import DataError
from shardline.data.planned import PlannedStep, planned_steps
from shardline.records.trainings import Training
from shardline_io.ledger_files import NAME

_KEYS, _OF_PARTS = ("step", "epoch", "ids"), ("parts", "passes")
# steps at the end of a killed attempt: one rank may be a step ahead of another
_UNFINISHED = 2


_Steps = dict[int, list["_Line"]]


class _Line(NamedTuple):
    """A line of the ledger: a batch of one rank."""

    path: Path
    step: int
    epoch: int
    samples: list[Any]
    has_parts: bool


def problems_of_ledger(
    folder: Path, spec: RunSpec, datasets: Sequence[DatasetPlace], training: Training
) -> tuple[int, list[str]]:
    """Verify the files of a ledger against the planned order of samples.

    Args:
        folder: Folder `ledger/` of the run in the store.
        datasets: Places of the run's undamaged datasets.
        training: Record `training` in the sealed provenance; an empty one before the run is sealed.

    Returns:
        The number of files, and a sentence for each problem.
    """
    attempts: dict[int, _Steps] = defaultdict(lambda: defaultdict(list))
    problems, files = [], sorted(folder.glob("*"))
    for path in files:
        try:
            start = _start_of(path)
            for line in _lines(path, is_sealed=start == training.resumed_step):
                attempts[start][line.step].append(line)
        except (OSError, ValueError) as error:
            problems.append(f"{path} is damaged: {error}")
    if problems or is_script(spec.model_class):  # a script chooses its own samples
        return len(files), problems
    ends = {start: max(steps, default=start) for start, steps in attempts.items()}
    lasts = {start: end - _UNFINISHED for start, end in ends.items()}
    if training.resumed_step in attempts and isinstance(training.steps, int):
        ends[training.resumed_step] = lasts[training.resumed_step] = training.steps
    found: dict[int, str] = {}  # the first problem of each attempt
    try:
        for planned in planned_steps(datasets, spec.settings, last=max(ends.values(), default=0)):
            for start, steps in attempts.items():
                is_over = start < planned.step <= lasts[start]
                problem = _problem(planned, steps.pop(planned.step, []), start, is_over=is_over)
                if problem:
                    found.setdefault(start, f"{folder}: {problem}")
    except DataError as error:
        return len(files), [f"{folder} cannot be compared with the planned order: {error}"]
    for start, steps in attempts.items():
        for step in steps:
            found.setdefault(start, f"{folder}: the training has no step {step}")
    return len(files), list(found.values())


def _start_of(path: Path) -> int:
    if name := NAME.fullmatch(path.name):
        return int(name["start"])
    raise ValueError("its name is not that of a ledger file")


def _lines(path: Path, *, is_sealed: bool) -> Iterator[_Line]:
    *lines, rest = path.read_text(encoding="ascii").split("\n")
    if rest and is_sealed:  # else a kill has cut it off
        raise ValueError(f"line {len(lines) + 1} is cut off")
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            step, epoch, ids = (record.pop(key) for key in _KEYS)
            samples = ids
            if has_parts := bool(record):
                parts, passes = (record.pop(key) for key in _OF_PARTS)
                samples = list(zip(parts, passes, ids, strict=True))
            if record or not isinstance(step, int) or step < 1:
                raise ValueError
            Counter(samples)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ValueError(f"line {number} is not a ledger line") from None
        yield _Line(path, step, epoch, samples, has_parts)


def _problem(
    planned: PlannedStep, lines: Sequence[_Line], start: int, *, is_over: bool
) -> str | None:
    """Return the difference between an attempt's lines of a step and the plan, or None.

    Args:
        start: Step that the attempt resumed from.
        is_over: Whether every rank has done the step.
    """
    has_parts = all(line.has_parts for line in lines)
    left = Counter(sample if has_parts else sample[2] for sample in planned.samples)
    for line in lines:
        where = f"step {line.step} in {line.path.name}"
        if line.step <= start or line.epoch != planned.epoch:
            return f"{where} is of epoch {line.epoch}, expected {planned.epoch} and a step after {start}"
        names = Counter(line.samples)
        if not names <= left:
            return f"{where} has other samples than the planned order"
        left -= names
    if is_over and left:
        return f"the attempt that resumed from step {start} lacks samples of step {planned.step}"
    return None
