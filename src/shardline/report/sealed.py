"""Reading one run's sealed files, and saying which of them is at fault."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardline.config.model_warnings import read_warnings
from shardline.core.digests import file_sha256
from shardline.core.errors import DataError
from shardline.core.files import read_json
from shardline.core.redaction import mask_values
from shardline.records.acceptances import Accepted
from shardline.records.base import decode
from shardline.report.charts.series import Curve
from shardline.report.confusion import view_confusion
from shardline.report.run import Run, TableEntry

_REMEDY = (
    "the report needs this file of every run: delete what is left of it and run `snakemake` again"
)
_Point = tuple[float, Any, Any]  # value, epoch and seconds of training
_NOT_METRICS = frozenset({"step", "epoch", "wall_s"})


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Where one run's sealed files lie.

    Attributes:
        run: run.json, the resolved run.
        identity: identity.json, all that the training depends on.
        metrics: metrics.jsonl, one record a line.
        evaluation: evaluations/{id}.json, the held-out result.
        provenance: provenance.json, how the run was made.
        asked: what the run table holds of the run.
        accepted: accepted.json, where an earlier result stands for the run.
    """

    run: Path
    identity: Path
    metrics: Path
    evaluation: Path
    provenance: Path
    asked: TableEntry
    accepted: Path | None = None


def read_run(files: RunFiles) -> Run:
    """Read a run.

    Raises:
        DataError: a file is missing, malformed or of another run; names file and remedy.
    """
    spec = read_object(files.run, "run")
    if "datasets" not in spec:  # of a mix
        spec = read_object(files.run, "dataset.id")
    evaluation = read_object(files.evaluation, "headline.metric", "headline.value")
    provenance = read_object(files.provenance)
    for path, document in ((files.evaluation, evaluation), (files.provenance, provenance)):
        is_own = path == files.evaluation or not files.accepted
        if is_own and document.get("run", spec["run"]) != spec["run"]:
            raise DataError(
                f"{path} is of run {document['run']!r}, but {files.run} is of run "
                f"{spec['run']!r}; expected files of one run: run `snakemake` again"
            )
    beside = [files.run, files.identity, files.metrics, files.provenance]
    accepted = None
    if taken := files.accepted:
        beside.append(taken)
        accepted = decode(read_object(taken), Accepted, where=taken, remedy="run `snakemake` again")
    return Run(
        spec=spec,
        identity=read_object(files.identity),
        evaluation=evaluation,
        evaluation_id=files.evaluation.stem,
        provenance=provenance,
        curves=read_curves(files.metrics),
        confusion=_read_confusion(evaluation, files.evaluation),
        files={path.name: sha256_of(path) for path in beside}
        | {f"evaluations/{files.evaluation.name}": sha256_of(files.evaluation)},
        asked=files.asked,
        accepted=accepted,
        warnings=tuple(read_warnings(files.metrics, provenance, evaluation)),
    )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return file_sha256(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {_REMEDY}") from error


def read_curves(path: Path) -> dict[str, Curve]:
    """Read every numeric metric of a metrics.jsonl.

    Args:
        path: One JSON object a line, each with an integer `step`. Where a step occurs twice for
            one metric (a resumed run), the later line counts.

    Returns:
        Metric name to its curve, not thinned.

    Raises:
        DataError: the file cannot be read, or a line is no such object; names file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); {_REMEDY}") from error
    points: dict[str, dict[int, _Point]] = {}
    for number, line in enumerate(lines, start=1):
        record = _parse_record(line, f"{path} line {number}") if line.strip() else {}
        for name, value in record.items():
            if name not in _NOT_METRICS and is_number(value):
                measured = math.nan if value is None else float(value)
                place = record.get("epoch"), record.get("wall_s")
                points.setdefault(name, {})[record["step"]] = measured, *place
    return {name: _curve(by_step) for name, by_step in points.items()}


def is_number(value: object) -> bool:
    """Return whether a value is a number or, as a missing or not finite one, null."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def read_object(path: Path, *required: str) -> dict[str, Any]:
    """Read a JSON object, and mask what looks like a secret.

    Args:
        required: Dotted keys that it must have.

    Raises:
        DataError: it is missing, malformed, or lacks one of them; names file and remedy.
    """
    document = read_json(path, remedy=_REMEDY)
    for key in required:
        value: Any = document
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                raise DataError(f"{path} has no {key}; {_REMEDY}")
            value = value[part]
    return dict(mask_values(document))


def _parse_record(line: str, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(
            f"{place} is not JSON ({error}); expected one JSON object a line: {_REMEDY}"
        ) from error
    step = record.get("step") if isinstance(record, dict) else None
    if isinstance(step, bool) or not isinstance(step, int):
        raise DataError(
            f"{place} has no integer `step` (found {step!r}); expected an object such as "
            f'{{"step": 50, "train_loss": 0.9}}: {_REMEDY}'
        )
    return dict(record)


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
    """Return a column, or nothing where it lacks a number: a script need not record it."""
    is_whole = all(is_number(one) and one is not None and math.isfinite(one) for one in column)
    return tuple(column) if is_whole else ()


def _read_confusion(evaluation: Mapping[str, Any], path: Path) -> dict[str, Any] | None:
    confusion = evaluation.get("confusion")
    if not confusion:
        return None
    try:
        return view_confusion(confusion)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(
            f"{path} has a malformed confusion ({error}); expected `classes` and as many rows of "
            f"`counts`, or `mistakes` and `hardest`: {_REMEDY}"
        ) from error
