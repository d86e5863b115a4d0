"""The metrics that a model logs while it is tested, combined over blocks of rows in float64."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.data import extract_batch_size
from torchmetrics import Metric

from shardline.core.errors import ConfigError
from shardline.core.metric_names import Mode
from shardline.training.evaluation_ranks import EvaluationRanks
from shardline.training.headline import mode_of

_LOG = inspect.signature(pl.LightningModule.log)
_REDUCTIONS: dict[Any, str] = {
    name: kind
    for kind, reduce_fx in (("mean", torch.mean), ("sum", torch.sum), ("min", torch.min), ("max", torch.max))
    for name in (kind, reduce_fx)
} | {min: "min", max: "max", sum: "sum"}  # fmt: skip
_COMBINE: dict[str, Callable[[list[float]], float]] = {"sum": math.fsum, "min": min, "max": max}


class LoggedMetrics(Callback):
    """Records what a model logs while a Trainer tests it.

    Numbers that `test_step` logs are combined by their `reduce_fx`; the mean weights each block by
    `batch_size` or by its rows. Torchmetrics metrics are computed at the end, as Lightning does.

    Args:
        model: The model, whose `log` is wrapped until the end of `trainer.test`.
        what: Name of the step in messages.
        ranks: Ranks that test blocks of one split; they communicate after their last block.

    Attributes:
        modes: Known directions of the logged torchmetrics metrics, "max" if higher is better.
    """

    def __init__(self, model: pl.LightningModule, what: str, ranks: EvaluationRanks) -> None:
        self._what, self._ranks = what, ranks
        self._batch: Any = None
        self._in_step = False
        self._names: dict[str, str] = {}
        self._blocks: dict[str, list[tuple[torch.Tensor, float]]] = {}
        self.modes: dict[str, Mode] = {}
        self._log = model.log
        model.log = self._heard  # type: ignore[method-assign]

    def on_test_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, *_: Any
    ) -> None:
        """Keep the batch, whose size weights the logged numbers."""
        self._batch, self._in_step = batch, True

    def on_test_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Join the other ranks after the last block, before Lightning computes torchmetrics metrics."""
        if args[3] == int(trainer.num_test_batches[0]) - 1:
            self._ranks.join()

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the step: numbers that are logged from now on belong to no batch."""
        self._batch, self._in_step = None, False

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the model's own `log`."""
        del pl_module.log

    def result(self, logged: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of all ranks by name, in the order in which they were first logged.

        Args:
            logged: Result of `trainer.test` on this rank.

        Raises:
            ConfigError: Nothing was logged, or ranks logged different numbers for one epoch metric.
        """
        mine = {
            name: (kind, self._numbers(name) if kind else _of_lightning(logged, name))
            for name, kind in self._names.items()
        }
        ranks = self._ranks.gather(mine)
        names = dict.fromkeys(name for rank in ranks for name in rank)
        found = {
            name: self._combined(name, [rank[name] for rank in ranks if name in rank])
            for name in names
        }
        metrics = {name: value for name, value in found.items() if value is not None}
        if not metrics:
            raise ConfigError(
                f"{self._what} logs nothing, expected at least one metric; log metrics by self.log in test_step or "
                "on_test_epoch_end"
            )
        return metrics

    def _numbers(self, name: str) -> list[tuple[float, float]]:
        return [(float(value), weight) for value, weight in self._blocks[name]]

    def _combined(self, name: str, logged: list[tuple[str, Any]]) -> float | None:
        kind, first = logged[0]
        if kind:
            return _reduced(kind, [pair for _, pairs in logged for pair in pairs])
        values = [value for _, value in logged]
        if len({repr(value) for value in values}) > 1:
            raise ConfigError(
                f"{self._what}: on_test_epoch_end logs {name} as {' and '.join(map(str, values))} on different ranks, "
                "expected one number; log a torchmetrics metric, which is combined over ranks, or log in test_step"
            )
        value: float | None = first
        return value

    def _heard(self, *args: Any, **options: Any) -> None:
        given = _LOG.bind(None, *args, **options)
        given.apply_defaults()
        name, value = given.arguments["name"], given.arguments["value"]
        is_number = self._in_step and not isinstance(value, Metric)
        kind = _REDUCTIONS.get(given.arguments["reduce_fx"]) if is_number else ""
        if kind is None:
            raise ConfigError(
                f"{self._what} logs {name} with reduce_fx={given.arguments['reduce_fx']}, expected mean, sum, min or "
                "max; use one of these, or a torchmetrics metric"
            )
        self._log(*args, **options)
        if given.arguments["on_epoch"] is False:  # not a metric of the split
            return
        self._names.setdefault(name, kind)
        if isinstance(value, Metric) and (mode := mode_of(value)):
            self.modes[name] = mode
        if is_number:
            scalar = torch.as_tensor(value).detach().clone()
            self._blocks.setdefault(name, []).append((scalar, self._weight(given.arguments)))

    def _weight(self, given: Mapping[str, Any]) -> float:
        size = given["batch_size"]
        return float(extract_batch_size(self._batch) if size is None else size)


def _reduced(kind: str, pairs: list[tuple[float, float]]) -> float:
    if kind != "mean":
        return _COMBINE[kind]([value for value, _ in pairs])
    total = math.fsum(weight for _, weight in pairs)
    # fsum is exact, so the last bits depend neither on the blocks' order nor on their ranks
    return math.fsum(value * weight for value, weight in pairs) / total if total else math.nan


def _of_lightning(logged: Mapping[str, float], name: str) -> float | None:
    value = logged.get(name, logged.get(f"{name}_epoch"))
    return None if value is None else float(value)
