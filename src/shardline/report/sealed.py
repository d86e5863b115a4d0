"""Read sealed files of runs; errors name the faulty file."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from shardline.core.digests import file_sha256
from shardline.core.errors import DataError
from shardline.core.files import read_object
from shardline.core.redaction import mask_values
from shardline.records.base import Record, decode
from shardline.records.metrics import MetricLine
from shardline.records.reported_parts import Curve

REMEDY = "the report needs this file of every run; delete the file if it exists, and run `snakemake` again"
_Record = TypeVar("_Record", bound=Record)
_Point = tuple[float, float | None, float | None]  # value, epoch, training time in seconds


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """Fields of a run from the run table and its notes, which are not in its sealed files.

    Attributes:
        key: Unique key in the report; the run's id unless the report has two evaluations of the run.
        names: Names in the table.
        dataset_names: Names of the dataset in the config; one text for a mix.
        datasets: Dataset names by id; may be empty for a single dataset.
        bases: Names by id of the runs that the run begins from.
        varied: Settings that vary within a grid of the table, by dotted key.
        in_table: Whether the run is in the leaderboard; runs of scaling studies are not.
        notes: Text of `config/notes/{name}.md` by name.
        tags: Tags in these files.
        num_folds: Number of folds of the dataset, if the run tests on a fold.
    """

    key: str
    names: tuple[str, ...]
    dataset_names: tuple[str, ...]
    datasets: Mapping[str, str] = field(default_factory=dict)
    bases: Mapping[str, str] = field(default_factory=dict)
    varied: Mapping[str, Any] = field(default_factory=dict)
    in_table: bool = True
    notes: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    num_folds: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Paths of the sealed files of one run.

    Attributes:
        run: run.json, the resolved run.
        identity: identity.json, everything that the result of the training depends on.
        metrics: metrics.jsonl, one record per line.
        evaluation: evaluations/{id}.json, the held-out result.
        provenance: provenance.json, how the run was made.
        asked: Fields of the run from the run table.
        accepted: accepted.json, if an earlier result was accepted for the run.
    """

    run: Path
    identity: Path
    metrics: Path
    evaluation: Path
    provenance: Path
    asked: TableEntry
    accepted: Path | None = None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as hex.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        return file_sha256(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {REMEDY}") from error


def read_curves(path: Path) -> dict[str, Curve]:
    """Read every numeric metric of a metrics.jsonl, see `read_metrics`."""
    return read_metrics(path)[0]


def read_metrics(path: Path) -> tuple[dict[str, Curve], list[MetricLine]]:
    """Read a metrics.jsonl.

    Args:
        path: File with one JSON object per line, each with an integer `step`. If a resumed run has a step
            of a metric twice, the later line counts.

    Returns:
        Complete curves by metric name, and the lines with images, tables and texts.

    Raises:
        DataError: The file cannot be read, or a line is invalid. The message names file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); {REMEDY}") from error
    points: dict[str, dict[int, _Point]] = {}
    logged = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        found = _parse(line, f"{path} line {number}")
        logged += [found] if found.logged else []
        for name, value in found.values.items():
            measured = math.nan if value is None else float(value)
            points.setdefault(name, {})[found.step] = measured, found.epoch, found.wall_s
    return {name: _curve(by_step) for name, by_step in points.items()}, logged


def is_number(value: object) -> bool:
    """Return whether a value is a number or None, which marks a missing or non-finite number."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def read(path: Path, kind: type[_Record]) -> _Record:
    """Read a record, and mask values that look like secrets.

    Raises:
        DataError: The file is missing or malformed. The message names file and remedy.
    """
    document = mask_values(read_object(path, remedy=REMEDY))
    return decode(document, kind, where=path, remedy=REMEDY)


def _parse(line: str, place: str) -> MetricLine:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(
            f"{place} is not JSON ({error}); expected one JSON object per line; {REMEDY}"
        ) from error
    if not (found := MetricLine.of(record)):
        step = record.get("step") if isinstance(record, dict) else None
        raise DataError(
            f"{place} has no integer `step` (found {step!r}); expected an object such as "
            f'{{"step": 50, "train_loss": 0.9}}; {REMEDY}'
        )
    return found


def _curve(by_step: Mapping[int, _Point]) -> Curve:
    steps = [step for step in sorted(by_step) if math.isfinite(by_step[step][0])]
    points = [by_step[step] for step in steps]
    return Curve(
        steps=tuple(steps),
        values=tuple(value for value, _, _ in points),
        num_non_finite=len(by_step) - len(steps),
        epochs=_if_whole([epoch for _, epoch, _ in points]),
        wall_s=_if_whole([seconds for _, _, seconds in points]),
    )


def _if_whole(column: Sequence[Any]) -> tuple[Any, ...]:
    """Return a column, or () if a number is missing, since scripts need not record it."""
    is_whole = all(is_number(one) and one is not None and math.isfinite(one) for one in column)
    return tuple(column) if is_whole else ()
