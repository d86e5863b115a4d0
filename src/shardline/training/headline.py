"""Choose the headline of an evaluation: the metric that ranks the run, and its direction."""

from collections.abc import Mapping
from typing import Any

from shardline.config.settings.run_settings import Headline
from shardline.core.errors import ConfigError
from shardline.core.metric_names import Mode, guess_mode
from shardline.core.suggest import did_you_mean
from shardline.records.evaluations import HeadlineValue


def mode_of(metric: Any) -> Mode | None:
    """Return whether lower or higher values of a torchmetrics metric are better; None if unknown."""
    is_higher = metric.higher_is_better
    return None if is_higher is None else "max" if is_higher else "min"


def choose_headline(
    metrics: Mapping[str, float | None], *, wanted: Headline | None, what: str, modes: Mapping[str, Mode] = {},
    usual: HeadlineValue | None = None,
) -> HeadlineValue:  # fmt: skip
    """Return the `headline` of an evaluation.

    Args:
        metrics: Values by name, at least one.
        wanted: The setting `evaluation.headline`.
        what: Source of the metrics, with which messages begin.
        modes: Known directions by metric.
        usual: Headline if `wanted` is None. If both are None, the first metric with a known direction is chosen.

    Raises:
        ConfigError: The wanted metric is missing, or the direction of no metric is known.
    """
    if wanted is not None:
        if wanted.metric not in metrics:
            remedy = did_you_mean(wanted.metric, metrics, otherwise="name one of these")
            raise ConfigError(
                f"{what} gave {', '.join(metrics)}, expected evaluation.headline.metric={wanted.metric} among them; "
                f"{remedy}"
            )
        value = metrics[wanted.metric]
        return HeadlineValue(metric=wanted.metric, value=value, mode=wanted.mode)
    if usual is not None:
        return usual
    for metric, value in metrics.items():
        if mode := modes.get(metric) or guess_mode(metric):
            return HeadlineValue(metric=metric, value=value, mode=mode)
    first = next(iter(metrics))
    raise ConfigError(
        f"{what} gave {', '.join(metrics)}, and Shardline cannot tell for any of them whether higher is better; set "
        f"evaluation.headline: {{metric: {first}, mode: max}} (or mode: min)"
    )
