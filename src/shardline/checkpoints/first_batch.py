"""Record of a validation's first batch, to check that the sealed weights reproduce it."""

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

import pytorch_lightning as pl
import torch
from torchmetrics import Metric

from shardline.checkpoints.ranks import random_numbers, restore_random_numbers
from shardline.core.lightning_compat import State, results_of, updates_of

Values = dict[str, torch.Tensor]

_VALUES = 64  # evenly spaced values of a tensor


class FirstBatchRecord(TypedDict):
    """State before a validation's first batch, and values computed from the batch, on this rank."""

    epoch: int
    step: int
    world_size: int
    random: State
    values: Values


class FirstBatch:
    """Recorder of random states and results of the first batch, on each rank.

    Attributes:
        record: Record of the last validation; None if it had no batch.
    """

    def __init__(self) -> None:
        self.record: FirstBatchRecord | None = None
        self._random: State = {}
        self._idle: set[str] = set()

    def begin(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Record the random generators, after the hooks before the first batch."""
        self.record, self._random = None, random_numbers()
        self._idle = {name for name, one in _metrics(module) if not updates_of(one)}

    def resume(self, module: pl.LightningModule, record: FirstBatchRecord) -> None:
        """Restore the random generators of a recorded batch."""
        restore_random_numbers(dict(record["random"]))
        self._idle = {name for name, one in _metrics(module) if not updates_of(one)}

    def end(self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any) -> None:
        """Record the results of the batch: returned and logged values, and states of metrics."""
        self.record = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "world_size": trainer.world_size,
            "random": self._random,
            "values": self.values(trainer, module, outputs),
        }

    def values(self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any) -> Values:
        """Return evenly spaced values of all results of the batch, by name."""
        found = {"output": outputs}
        for key, result in results_of(trainer).items():
            if result.is_tensor:
                found[key] = result.value
        for name, metric in _metrics(module):
            if name in self._idle and updates_of(metric):  # others contain training batches
                found[name] = dict(metric.metric_state)
        return {path: _spread(value) for path, value in _tensors(found)}


def differences(mine: Values, its: Values, tolerance: float) -> list[str]:
    """Return a sentence for each value that differs.

    Args:
        mine: Recorded values by name; `its` are the recomputed ones.
        tolerance: Allowed difference, relative to the largest recorded value; 0 for equality.
    """
    return [
        f"{name} was {_shown(mine.get(name))} and is {_shown(its.get(name))}"
        for name in dict.fromkeys((*mine, *its))
        if not _is_same(mine.get(name), its.get(name), tolerance)
    ]


def _is_same(mine: torch.Tensor | None, its: torch.Tensor | None, tolerance: float) -> bool:
    if mine is None or its is None or mine.shape != its.shape:
        return False
    if not tolerance:
        return bool(torch.equal(mine.nan_to_num(), its.nan_to_num()))
    scale = float(mine.abs().nan_to_num().max()) if mine.numel() else 0.0
    # a count may be off by one, for example if the scores of two classes are almost equal
    allowed = tolerance * max(scale, 1.0)
    return bool(torch.allclose(mine, its, rtol=0.0, atol=allowed, equal_nan=True))


def _shown(value: torch.Tensor | None) -> str:
    if value is None:
        return "not there"
    return ", ".join(f"{one:.6g}" for one in value.flatten()[:3].tolist()) or "empty"


def _metrics(module: pl.LightningModule) -> Iterator[tuple[str, Metric]]:
    return ((name, one) for name, one in module.named_modules() if isinstance(one, Metric))


def _spread(value: torch.Tensor) -> torch.Tensor:
    flat = value.detach().flatten()
    flat = flat[:: (flat.numel() // _VALUES) | 1]
    return (flat.real if flat.is_complex() else flat).to("cpu", torch.float64, copy=True)


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors and numbers of nested mappings and lists, by path."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, int | float):
        yield path, torch.tensor(value)
    elif isinstance(value, Mapping | list | tuple):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in pairs:
            yield from _tensors(inner, f"{path}/{key}" if path else str(key))
