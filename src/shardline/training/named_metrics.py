"""Metrics of torchmetrics that `evaluation.metrics` names, of a model's outputs and the labels."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torchmetrics import Metric

from shardline.config.code_paths import import_path, metric_name, metrics_of
from shardline.core.error_texts import import_class
from shardline.core.errors import ConfigError
from shardline.training.headline import Mode, mode_of


class NamedMetrics:
    """The metrics of one evaluation.

    Args:
        written: `evaluation.metrics`.
        run: name of the run, for errors.

    Attributes:
        modes: which end is better, of those that know.

    Raises:
        ConfigError: a class is no metric, or refuses its arguments.
    """

    def __init__(self, written: Sequence[Any] | None, run: str) -> None:
        self._what = f'run "{run}": evaluation.metrics'
        tables = metrics_of({"metrics": written})
        self._metrics = {metric_name(one): _made(one, self._what) for one in tables}
        known = {name: mode_of(one) for name, one in self._metrics.items()}
        self.modes: dict[str, Mode] = {name: mode for name, mode in known.items() if mode}
        tell_kept_outputs(self._metrics)

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def update(self, outputs: Any, labels: torch.Tensor) -> None:
        """Add a batch.

        Args:
            outputs: what `forward` gave.
            labels: [B, ...].

        Raises:
            ConfigError: a metric does not take them.
        """
        for name, metric in self._metrics.items():
            try:
                metric.update(outputs, labels)
            except (RuntimeError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"{self._what}: {name} does not take forward's outputs {_shown(outputs)} and labels "
                    f"{_shown(labels)} ({str(error).splitlines()[0]}); give it arguments that fit, or name another "
                    "metric"
                ) from None

    def result(self) -> dict[str, float]:
        """Return the values by name.

        Raises:
            ConfigError: a metric gives several values.
        """
        return dict(self._values())

    def _values(self) -> Iterator[tuple[str, float]]:
        for name, metric in self._metrics.items():
            value = metric.compute()
            if not isinstance(value, torch.Tensor) or value.numel() != 1:
                raise ConfigError(
                    f"{self._what}: {name} gives {_shown(value)}, expected one number; have it average them (average: "
                    "macro), or name another metric"
                )
            yield name, float(value)


def tell_kept_outputs(metrics: Mapping[str, Metric]) -> None:
    """Print a line for each metric whose memory grows with the rows."""
    for name, metric in metrics.items():
        kept = [state for state, default in metric._defaults.items() if isinstance(default, list)]
        if kept:
            print(
                f"metric {name} ({type(metric).__name__}) keeps what it is given of every row ({', '.join(kept)}): its "
                "memory grows with the split",
                flush=True,
            )


def _made(table: Mapping[str, Any], what: str) -> Metric:
    kind = table["type"]
    cls = import_class(import_path(table), what)
    arguments = {key: value for key, value in table.items() if key not in ("type", "name")}
    try:
        metric = cls(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{what}: {kind} does not take {arguments} ({error}); change its arguments"
        ) from None
    if not isinstance(metric, Metric):
        raise ConfigError(
            f"{what}: {kind} gives a {type(metric).__name__}, expected a metric of torchmetrics; derive it from "
            "torchmetrics.Metric"
        )
    return metric


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"a {type(value).__name__}"
