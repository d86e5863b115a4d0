"""Read the metrics that a training script wrote about itself, and turn them into an evaluation."""

import math
from collections.abc import Collection
from pathlib import Path

from shardline.config.settings.run_settings import Evaluation
from shardline.core.errors import DataError
from shardline.core.files import read_object
from shardline.records.base import decode
from shardline.records.datasets import Manifest
from shardline.records.evaluations import Evaluated, HeadlineValue
from shardline.records.trainings import ScriptEvaluation, Training
from shardline.training.headline import choose_headline

# Headline metric and direction by task, the same as for models that Shardline evaluates,
# so that both can be ranked in one table.
_HEADLINES = {"classification": ("accuracy", "max"), "regression": ("mse", "min")}
_KEYS = {"metrics", "num_samples", "headline"}
_FORM = 'write {"metrics": {"accuracy": 0.9}, "num_samples": 1000}'


def read_evaluation(path: Path) -> ScriptEvaluation | None:
    """Read the `evaluation.json` of a script; None if there is none.

    The file contains `metrics` (numbers by name) and `num_samples` (number of held-out samples).
    Optionally, `headline` (`{"metric": name, "mode": "max" or "min"}`) names the metric that ranks
    the run instead of the task's default.

    Raises:
        DataError: The file has another form, or a number is not finite; the message names the key.
    """
    if not path.exists():
        return None
    document = read_object(path, remedy=_FORM)
    if unknown := sorted(document.keys() - _KEYS):
        raise DataError(
            f"{path}: {unknown[0]} is an unknown key, expected only {', '.join(sorted(_KEYS))}; remove the key, or "
            "move its number into metrics"
        )
    metrics, num_samples = document.get("metrics"), document.get("num_samples")
    if not isinstance(metrics, dict) or not metrics:
        raise DataError(f"{path}: metrics={metrics} is not an object of numbers by name; {_FORM}")
    for name, value in metrics.items():
        if not _is_finite(value):
            raise DataError(f"{path}: metrics.{name}={value} is not a finite number; {_FORM}")
    if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
        raise DataError(f"{path}: num_samples={num_samples} is not a positive integer; {_FORM}")
    _check_headline(path, document.get("headline"), metrics)
    return decode(
        {k: v for k, v in document.items() if v is not None},
        ScriptEvaluation,
        where=path,
        remedy=_FORM,
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_headline(path: Path, headline: object, metrics: Collection[str]) -> None:
    if headline is None:
        return
    given = headline if isinstance(headline, dict) else {}
    if given.keys() != {"metric", "mode"} or given["mode"] not in ("max", "min"):
        raise DataError(
            f"{path}: headline={headline} is not an object with metric and mode (max or min); write "
            '{"metric": "f1", "mode": "max"}'
        )
    if given["metric"] not in metrics:
        raise DataError(
            f"{path}: headline.metric={given['metric']} is not in metrics ({', '.join(metrics)}); "
            "add its value to metrics"
        )


def evaluation_of(
    training: Training, manifest: Manifest, wanted: Evaluation, run: str
) -> Evaluated:
    """Make the evaluation of a script's run from the metrics that the script wrote.

    Without metrics the headline's value is None: the run is shown, but not ranked.

    Args:
        training: Record of the training from the run's provenance, with the script's metrics.
        manifest: Manifest of the dataset.
        wanted: The run's settings `evaluation`; their headline overrides the script's.
        run: Name of the run, for errors.

    Raises:
        ConfigError: The wanted headline is missing, or neither script nor task determines a headline.
    """
    figures = training.evaluation or None
    task, split = manifest.schema.task, str(wanted.split)
    metrics, num_samples = (figures.metrics, figures.num_samples) if figures else ({}, None)
    metric, mode = _HEADLINES.get(task, ("loss", "min"))
    usual = HeadlineValue(metric=metric, value=metrics.get(metric), mode=mode)
    if named := figures and figures.headline:
        value = metrics[named.metric]
        usual = HeadlineValue(metric=named.metric, value=value, mode=named.mode)
    headline = usual
    if metrics:
        knows = named or task in _HEADLINES
        what = f'run "{run}": the script'
        headline = choose_headline(
            metrics, wanted=wanted.headline, what=what, usual=usual if knows else None
        )
    if num_samples not in (None, manifest.splits[split]):
        # the script used other samples than the split, so the run is ranked separately
        split = f"own {num_samples}-sample"
    return Evaluated(
        split=split,
        task=task,
        num_samples=num_samples,
        metrics={**metrics},
        headline=headline,
        measured_by="script",
        reference=manifest.reference,
    )
