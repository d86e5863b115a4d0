"""What a job reports of itself: a small JSON file beside its log."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LARGEST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ReportedProgress:
    """What is known of a job; whatever is missing, or of another type than expected, is left out.

    Attributes:
        title: what the job's line begins with.
        step: how many of `steps` are done; so of `epoch` and `epochs`.
        unit: what a step is.
        metrics: numbers by name, the most telling first; None stands for NaN and infinity.
        rate: steps in a second.
        left_s: seconds until the end, estimated.
        error: why the job failed.
        stopped: whether it was asked to stop, and may go on: it has not failed.
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
    error: str | None = None
    stopped: bool = False


def progress_file(log: str) -> Path:
    """Return where a job with this log reports: `logs/train/a.log` has `logs/train/a.progress.json`."""
    return Path(log).with_suffix(".progress.json")


def mark_of(log: str) -> tuple[int, int] | None:
    """Return what tells two contents of the file apart; None where it is missing."""
    try:
        status = progress_file(log).stat()
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns


def read_progress(log: str) -> ReportedProgress | None:
    """Read what the job with this log reports; None where there is nothing that can be read."""
    try:
        with progress_file(log).open("rb") as file:
            document = json.loads(file.read(_LARGEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return parse(document) if isinstance(document, dict) else None


def parse(document: Mapping[str, object]) -> ReportedProgress:
    """Return what a job's document holds."""
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
