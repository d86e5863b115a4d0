"""What a model logs while it is tested, combined over blocks of rows in float64."""

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
from shardline.training.evaluation_ranks import EvaluationRanks
from shardline.training.headline import Mode, mode_of

_LOG = inspect.signature(pl.LightningModule.log)
_REDUCTIONS: dict[Any, str] = {
    name: kind
    for kind, reduce_fx in (("mean", torch.mean), ("sum", torch.sum), ("min", torch.min), ("max", torch.max))
    for name in (kind, reduce_fx)
} | {min: "min", max: "max", sum: "sum"}  # fmt: skip
_COMBINE: dict[str, Callable[[list[float]], float]] = {"sum": math.fsum, "min": min, "max": max}


class LoggedMetrics(Callback):
    """Listens to a model's `log` while a Trainer tests it.

    A number that `test_step` logs is combined by its `reduce_fx`: the mean weighs each block by
    `batch_size`, or by its rows. A metric of torchmetrics is computed at the end, as Lightning does.

    Args:
        model: the model, which is listened to until the end of `trainer.test`.
        what: what messages call it.
        ranks: those that test blocks of one split; they meet when all are tested.

    Attributes:
        modes: which end is better, of metrics of torchmetrics that know.
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
        """Note the block that is tested."""
        self._batch, self._in_step = batch, True

    def on_test_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Meet the other ranks after the last block, before Lightning computes metrics of torchmetrics."""
        if args[3] == int(trainer.num_test_batches[0]) - 1:
            self._ranks.join()

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note that all blocks were tested."""
        self._batch, self._in_step = None, False

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop listening."""
        del pl_module.log

    def result(self, logged: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of all ranks by name, in the order in which they were first logged.

        Args:
            logged: what `trainer.test` returned on this rank.

        Raises:
            ConfigError: nothing was logged, or another number on another rank.
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
                f"{self._what} logs nothing, expected one metric at least; log what is to be known of the model by "
                "self.log, in test_step or on_test_epoch_end"
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
                "expected one number; log a metric of torchmetrics, which is combined over ranks, or log in test_step"
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
                "max; use one of these, or a metric of torchmetrics"
            )
        self._log(*args, **options)
        if given.arguments["on_epoch"] is False:  # a number of the step alone
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
    # exact, so that neither the blocks' order nor their ranks decide the last bits
    return math.fsum(value * weight for value, weight in pairs) / total if total else math.nan


def _of_lightning(logged: Mapping[str, float], name: str) -> float | None:
    value = logged.get(name, logged.get(f"{name}_epoch"))
    return None if value is None else float(value)
