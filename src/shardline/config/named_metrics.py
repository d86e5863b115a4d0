"""`evaluation.metrics` as a config writes it."""

from collections.abc import Mapping
from typing import Any


def metrics_of(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return `evaluation.metrics` in its one form: a list of tables with `type` and arguments."""
    listed = evaluation.get("metrics") or []
    return [{"type": one} if isinstance(one, str) else dict(one) for one in listed]


def metric_name(metric: Mapping[str, Any]) -> str:
    """Return what a metric is called among those of an evaluation."""
    return str(metric.get("name") or str(metric.get("type")).rpartition(":")[2])


def import_path(metric: Mapping[str, Any]) -> str:
    """Return the import path of a metric; without a module it is a class of torchmetrics."""
    kind = str(metric["type"])
    return kind if ":" in kind else f"torchmetrics:{kind}"
