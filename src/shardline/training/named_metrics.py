"""The torchmetrics metrics of `evaluation.metrics`, computed from a model's outputs and labels."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torchmetrics import Metric

from shardline.config.code_paths import import_path, metric_name, metrics_of
from shardline.core.construct import make_object
from shardline.core.errors import ConfigError
from shardline.core.metric_names import Mode
from shardline.core.objects import read_object
from shardline.training.headline import mode_of


class NamedMetrics:
    """The named metrics of one evaluation.

    Args:
        written: Value of `evaluation.metrics`.
        run: Name of the run, for errors.

    Attributes:
        modes: Known directions by metric, "max" if higher is better.

    Raises:
        ConfigError: A class is not a metric, or rejects its arguments.
    """

    def __init__(self, written: Sequence[Any] | None, run: str) -> None:
        self._what = f'run "{run}": evaluation.metrics'
        tables = enumerate(metrics_of({"metrics": written}))
        self._metrics = {metric_name(one): _made(one, i, f'run "{run}"') for i, one in tables}
        known = {name: mode_of(one) for name, one in self._metrics.items()}
        self.modes: dict[str, Mode] = {name: mode for name, mode in known.items() if mode}
        tell_kept_outputs(self._metrics)

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def update(self, outputs: Any, labels: torch.Tensor) -> None:
        """Add a batch.

        Args:
            outputs: Outputs of `forward`.
            labels: Labels [B, ...].

        Raises:
            ConfigError: A metric does not accept them.
        """
        for name, metric in self._metrics.items():
            try:
                metric.update(outputs, labels)
            except (RuntimeError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"{self._what}: {name} does not accept forward's outputs {_shown(outputs)} and labels "
                    f"{_shown(labels)} ({str(error).splitlines()[0]}); change the metric's arguments, or use another "
                    "metric"
                ) from None

    def result(self) -> dict[str, float]:
        """Return the values by name.

        Raises:
            ConfigError: A metric has several values.
        """
        return dict(self._values())

    def _values(self) -> Iterator[tuple[str, float]]:
        for name, metric in self._metrics.items():
            value = metric.compute()
            if not isinstance(value, torch.Tensor) or value.numel() != 1:
                raise ConfigError(
                    f"{self._what}: {name} returns {_shown(value)}, expected one number; average the values (average: "
                    "macro), or use another metric"
                )
            yield name, float(value)


def tell_kept_outputs(metrics: Mapping[str, Metric]) -> None:
    """Print a line for each metric whose memory grows with the rows."""
    for name, metric in metrics.items():
        kept = [state for state, default in metric._defaults.items() if isinstance(default, list)]
        if kept:
            print(
                f"metric {name} ({type(metric).__name__}) keeps values of every row ({', '.join(kept)}), so its memory "
                "grows with the split",
                flush=True,
            )


def _made(table: Mapping[str, Any], place: int, run: str) -> Metric:
    key, kind = f"evaluation.metrics.{place}", table["type"]
    written = {name: value for name, value in table.items() if name != "name"}
    named = read_object(written, key, expected="a class of torchmetrics or an import path")
    metric = make_object(named, run, shipped={kind: import_path(table)})
    if not isinstance(metric, Metric):
        raise ConfigError(
            f"{run}: {named.shown} is a {type(metric).__name__}, expected a torchmetrics metric; derive the class from "
            "torchmetrics.Metric"
        )
    return metric


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"a {type(value).__name__}"
