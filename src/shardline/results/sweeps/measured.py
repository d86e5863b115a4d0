"""The value of a trial: the best validation in the sealed metrics of its run."""

import math
from pathlib import Path
from typing import Any

from msgspec import structs

from shardline.config.settings.sweep_settings import Objective
from shardline.core.errors import ConfigError
from shardline.core.files import read_json_lines
from shardline.records.metrics import MetricLine
from shardline.records.sweeps import TrialResult
from shardline.results.states import read_if_sound


def measured(found: TrialResult, folder: Path, objective: Objective) -> TrialResult:
    """Return a result with the best value in the sealed metrics of its run.

    Raises:
        ConfigError: The model does not log the metric of the objective.
    """
    lines = [
        line for one in read_json_lines(folder / "metrics.jsonl") if (line := MetricLine.of(one))
    ]
    values = [
        (line.values[objective.metric], line.step)
        for line in lines
        if objective.metric in line.values
    ]
    if not values:
        names = sorted({name for line in lines for name in line.values})
        raise ConfigError(
            f"objective.metric={objective.metric} is not among the metrics of {folder}: {', '.join(names)}; name one "
            "of the validation split"
        )
    finite = [
        (float(value), step) for value, step in values if value is not None and math.isfinite(value)
    ]
    provenance: dict[str, Any] = read_if_sound(folder / "provenance.json")
    training, continued = provenance.get("training") or {}, provenance.get("continued") or {}
    steps, consumed = training.get("steps"), training.get("consumed") or {}
    found = structs.replace(
        found,
        steps=None if steps is None else steps - continued.get("step", 0),
        seconds=provenance.get("duration_s"),
        is_final=consumed.get("steps", 0) < consumed.get("planned", 0),
    )
    if not finite:
        return structs.replace(
            found, failure=f"{objective.metric} is NaN or infinite in every validation"
        )
    sign = 1 if objective.mode == "min" else -1
    value, step = min(finite, key=lambda one: (sign * one[0], one[1]))
    return structs.replace(found, value=value, step=step)
