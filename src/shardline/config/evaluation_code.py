"""The code that a run's evaluation needs beside the model, and which ranks may evaluate."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shardline.config.checks import import_path, metric_name, metrics_of, resolve_class
from shardline.config.plans import RunPlan, WeightedDataset
from shardline.config.scripts import is_script
from shardline.config.settings.run_settings import RunSettings
from shardline.config.settings.runtime import Runtime
from shardline.config.validate import Problems
from shardline.core.errors import ConfigError
from shardline.identity import CodeIndex

METRIC = "metric"  # parts of an identity document begin with it


def metric_paths(evaluation: Mapping[str, Any], code: CodeIndex, where: str) -> dict[str, str]:
    """Return the import paths of metrics by their part of an identity document: `metric`, `metric 2`, ...

    A class of torchmetrics that is named without its module is one of `torchmetrics`.

    Args:
        evaluation: resolved settings.
        where: file and row, as messages begin.

    Raises:
        ConfigError: a metric has no type, there is no such module or class, or two have one name.
    """
    problems, found, names = Problems(), {}, set()
    for number, one in enumerate(metrics_of(evaluation)):
        key, kind = f"evaluation.metrics.{number}", one.get("type")
        with problems.gather():
            if not isinstance(kind, str):
                raise ConfigError(
                    f"{where}: {key}.type is {'missing' if kind is None else kind}, expected a class of torchmetrics "
                    "or an import path such as torchmetrics.classification:MulticlassF1Score; add it"
                )
            part = f"{METRIC} {number + 1}" if number else METRIC
            found[part] = resolve_class(import_path(one), {}, code, f"{where}: {key}.type")
            if metric_name(one) in names:
                raise ConfigError(
                    f"{where}: {key} is called {metric_name(one)}, as another metric is; give it a `name` of its own"
                )
            names.add(metric_name(one))
    problems.refuse()
    return found


def check_evaluation(
    settings: RunSettings, parts: tuple[WeightedDataset, ...], model_class: str, where: str,
    *, has_method: Callable[[str, str], bool | None],
) -> None:  # fmt: skip
    """Refuse settings of the evaluation that could do nothing, and a run that nothing would evaluate.

    Args:
        where: file and row, as messages begin.
        has_method: tells of an import path and a method what `identity.resolution.has_method` does.

    Raises:
        ConfigError: a sentence for each.
    """
    found = _of_script if is_script(model_class) else _of_model
    problems = Problems()
    problems.found = [
        f"{where}: {text}" for text in found(settings, parts, model_class, has_method)
    ]
    problems.refuse()


def _of_script(settings: RunSettings, *_: object) -> Iterator[str]:
    if settings.evaluation.metrics is not None:
        yield (
            "evaluation.metrics is given, but a training script evaluates its model itself; leave it out, and write "
            "its figures into evaluation.json"
        )


def _of_model(
    settings: RunSettings, parts: tuple[WeightedDataset, ...], model_class: str,
    has_method: Callable[[str, str], bool | None],
) -> Iterator[str]:  # fmt: skip
    if settings.evaluation.metrics is not None:
        if has_method(model_class, "test_step"):
            yield (
                f"evaluation.metrics is given, but {model_class} has a test_step, which is its evaluation; leave it "
                "out, and log these metrics there"
            )
        return
    unlabelled = [part.dataset.name for part in parts if part.dataset.source.get("type") == "text"]
    steps = ("test_step", "validation_step")
    if unlabelled and all(has_method(model_class, step) is False for step in steps):
        yield (
            f"model={model_class} has neither a test_step nor a validation_step, and the rows of dataset "
            f"{unlabelled[0]} have no labels, so nothing would evaluate it; define test_step, and log there what "
            "is to be known of it (self.log)"
        )


def evaluates_on_ranks(run: RunPlan, runtime: Runtime) -> bool:
    """Return whether a run may be evaluated on its own ranks; else one process on the CPU does it.

    Models that are sharded over ranks, environments that only ranks have and Azure ML's jobs stay with one
    process; so do elastic runs whose metrics depend on the number of ranks.
    """
    settings = run.settings
    depends = "measured_by" in run.evaluation_document or settings.evaluation.metrics is not None
    return (
        predicts_on_ranks(settings, runtime)
        and not is_script(run.model_class)
        and not (settings.elastic and depends)
    )


def predicts_on_ranks(settings: RunSettings, runtime: Runtime) -> bool:
    """Return whether a run's own ranks may predict; else one process on the CPU does it."""
    return not (
        settings.strategy == "fsdp" or runtime.launcher == "azureml" or runtime.environment != "job"
    )
