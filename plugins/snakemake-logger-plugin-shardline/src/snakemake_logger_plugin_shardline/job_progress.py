"""The progress that a job reports: a small JSON file beside its log."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LARGEST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ReportedProgress:
    """A job's report; fields that are missing, or of an unexpected type, have their defaults.

    Attributes:
        title: beginning of the job's line.
        step: number of steps done, of `steps`; likewise `epoch` and `epochs`.
        unit: name of a step.
        metrics: numbers by name, the most important first; None for NaN and infinity.
        rate: steps per second.
        left_s: estimated seconds until the end.
        note: what a person should know about a job that succeeded.
        warning: likewise, but shown once for all jobs that report the same.
        error: cause of the job's failure.
        stopped: whether the job was asked to stop and can resume; it has not failed.
    """

    title: str | None = None
    step: int | None = None
    steps: int | None = None
    unit: str = "step"
    epoch: int | None = None
    epochs: int | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    rate: float | None = None
    left_s: float | None = None
    note: str | None = None
    warning: str | None = None
    error: str | None = None
    stopped: bool = False


def progress_file(log: str) -> Path:
    """Return the progress file of a job's log: `logs/train/a.progress.json` for `logs/train/a.log`."""
    return Path(log).with_suffix(".progress.json")


def mark_of(log: str) -> tuple[int, int] | None:
    """Return a mark that changes with the file's contents; None if the file is missing."""
    try:
        status = progress_file(log).stat()
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns


def read_progress(log: str) -> ReportedProgress | None:
    """Read the report of the job with this log; None if there is no readable report."""
    try:
        with progress_file(log).open("rb") as file:
            document = json.loads(file.read(_LARGEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return parse(document) if isinstance(document, dict) else None


def parse(document: Mapping[str, object]) -> ReportedProgress:
    """Return the report in a JSON document."""
    metrics = document.get("metrics")
    return ReportedProgress(
        title=_text(document.get("title")),
        step=_count(document.get("step")),
        steps=_count(document.get("steps")),
        unit=_text(document.get("unit")) or "step",
        epoch=_count(document.get("epoch")),
        epochs=_count(document.get("epochs")),
        metrics={str(name): _number(value) for name, value in metrics.items()}
        if isinstance(metrics, dict)
        else {},
        rate=_number(document.get("rate")),
        left_s=_number(document.get("left_s")),
        note=_text(document.get("note")),
        warning=_text(document.get("warning")),
        error=_text(document.get("error")),
        stopped=document.get("stopped") is True,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return float(value) if is_number and math.isfinite(value) else None
    except OverflowError:
        return None
