"""Try settings on a few steps of a run: a learning rate range test, and the memory of a global batch.

The range test follows Smith, 2017, "Cyclical Learning Rates for Training Neural Networks" (arXiv:1506.01186).
"""

import inspect
import math
import resource
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from msgspec.structs import replace
from pytorch_lightning.callbacks import Callback

from shardline.checkpoints.manifest import CheckpointPolicy
from shardline.config.schedules import fitting
from shardline.config.settings.run_settings import Trainer
from shardline.core.errors import ConfigError, Diverged
from shardline.core.files import write_json
from shardline.core.lightning_compat import is_accumulating
from shardline.core.machine import free_memory_bytes
from shardline.core.world import World
from shardline.records.base import encode
from shardline.records.found import FoundRates, MeasuredBatch
from shardline.training.fit import train
from shardline.training.rank_task import Find, RankTask
from shardline.training.stop_agreement import StepsDone

LOWEST, HIGHEST, STEPS = 1e-7, 10.0, 120
_MEMORY_STEPS = 3  # optimisers allocate their state in the first
_KEPT = 0.9  # of the smoothed loss in each step
_WORSE = 4.0  # times the best loss: the training has diverged
_WARMUP, _TAIL = 10, 3  # steps without a meaning for the suggestion
_ENDS = ("min_epochs", "max_steps", "min_steps", "val_check_interval")
_ARGUMENTS = ("lr", "learning_rate")


def find(task: RankTask, action: Find, world: World) -> None:
    """Try settings as one rank; rank 0 writes the result.

    Raises:
        ConfigError: The training step returns no loss.
    """
    settings = task.run.settings
    num_steps = STEPS if action.what == "lr" else _MEMORY_STEPS
    plain = Trainer()
    ends = {name: getattr(plain, name) for name in _ENDS}
    small = replace(
        settings,
        callbacks=[],
        trainer=replace(
            # no validation: an epoch has one step or more
            settings.trainer, max_epochs=max(num_steps + 1, settings.trainer.max_epochs),
            validate_every_epochs=1 << 30, **ends,
        ),
        schedule=fitting(settings.schedule, num_steps),
        divergence=replace(settings.divergence, policy="stop", max_loss=None),
        early_stopping=replace(settings.early_stopping, patience=0),
    )  # fmt: skip
    runtime = replace(
        task.runtime, checkpoint=CheckpointPolicy(every_steps=0, every_min=0.0), ledger=False, watch_reads="off",
        callbacks=[],
    )  # fmt: skip
    task = replace(task, run=replace(task.run, settings=small), runtime=runtime)
    test: _RangeTest | _Memory = _RangeTest() if action.what == "lr" else _Memory()
    with suppress(StepsDone, Diverged):
        train(task, world, [test])
    result = test.result(task)
    if world.rank == 0:
        write_json(action.output, encode(result))


class _RangeTest(Callback):
    """Raises the learning rate from step to step, and records the loss."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._sum: torch.Tensor | None = None
        self._module: pl.LightningModule | None = None
        self._ratios: dict[int, list[float]] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the learning rate of each step of each optimiser."""
        self._module = pl_module
        if pl_module.automatic_optimization:
            trainer.strategy.lr_scheduler_configs = []
        for optimizer in trainer.optimizers:
            rates = [float(one.get("initial_lr", one["lr"])) for one in optimizer.param_groups]
            self._ratios[id(optimizer)] = [rate / (max(rates) or 1.0) for rate in rates]
            optimizer.register_step_pre_hook(self._set_rate)

    def _set_rate(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        ratios = self._ratios[id(optimizer)]
        for group, ratio in zip(optimizer.param_groups, ratios, strict=False):
            group["lr"] = rate_of(len(self._losses)) * ratio

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any
    ) -> None:
        """Record the loss, and end the test after the last step or a much worse loss."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor):
            # Lightning has divided the loss by the number of accumulated batches
            self._sum = loss.detach().double() + (0.0 if self._sum is None else self._sum)
        if is_accumulating(trainer):
            return
        if self._sum is None:
            raise ConfigError(
                "training_step returns no loss, which the range test needs; return the loss, also where the model "
                "takes its steps itself"
            )
        value = float(trainer.strategy.reduce(self._sum, reduce_op="mean"))
        self._sum = None
        if not math.isfinite(value):
            raise StepsDone
        self._losses.append(value)
        smooth = smoothed(self._losses)
        is_worse = len(smooth) > _WARMUP and smooth[-1] > _WORSE * min(smooth)
        if is_worse or len(smooth) >= STEPS:
            raise StepsDone

    def result(self, task: RankTask) -> FoundRates:
        """Return the curve, and the rate for the setting that the run reads."""
        assert self._module is not None
        settings, losses = task.run.settings, smoothed(self._losses)
        rates = [rate_of(step) for step in range(len(losses))]
        cls = type(self._module)
        key, factor = "optim.lr", 1
        if cls.configure_optimizers is not pl.LightningModule.configure_optimizers:
            known = inspect.signature(cls).parameters
            key = next((f"model_args.{name}" for name in _ARGUMENTS if name in known), "")
        elif settings.optim.scale_lr:
            factor = settings.nodes * settings.devices
        suggested = steepest(rates, losses)
        return FoundRates(
            rates=rates, losses=losses, key=key,
            suggested=None if suggested is None else float(f"{suggested / factor:.2g}"),
        )  # fmt: skip


def rate_of(step: int) -> float:
    """Return the learning rate of a step of the range test."""
    return float(LOWEST * (HIGHEST / LOWEST) ** (step / (STEPS - 1)))


def smoothed(losses: Sequence[float]) -> list[float]:
    """Return the exponential moving average of losses, without the bias of its start."""
    found, average = [], 0.0
    for number, loss in enumerate(losses, 1):
        average = _KEPT * average + (1 - _KEPT) * loss
        found.append(average / (1 - _KEPT**number))
    return found


def steepest(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the rate at which the loss falls fastest over the logarithm of the rate; None if it never falls."""
    last = len(losses) - _TAIL
    slopes = {step: losses[step + 1] - losses[step - 1] for step in range(_WARMUP, last)}
    best = min(slopes, key=lambda step: slopes[step], default=None)
    return None if best is None or slopes[best] >= 0 else rates[best]


class _Memory(Callback):
    """Ends a training after a few steps, and measures the memory of all ranks."""

    def __init__(self) -> None:
        self._measured = (0, 0, 0)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Measure after the last step."""
        if trainer.global_step < _MEMORY_STEPS:
            return
        peak, limit = _memory(trainer)
        found: list[Any] = [(peak, limit)] * trainer.world_size
        if trainer.world_size > 1:
            dist.all_gather_object(found, (peak, limit))
        batches = trainer.datamodule.loader  # type: ignore[attr-defined]
        self._measured = max(one for one, _ in found), min(one for _, one in found), len(batches)
        raise StepsDone

    def result(self, task: RankTask) -> MeasuredBatch:
        """Return the memory of the rank that needs most."""
        settings, (peak, limit, batches) = task.run.settings, self._measured
        if not peak:
            raise Diverged(
                f'run "{task.run.title}": the loss of the first {_MEMORY_STEPS} steps is not finite; lower optim.lr'
            )
        return MeasuredBatch(
            batch=settings.global_batch, peak_bytes=peak, limit_bytes=limit,
            rows=batches // settings.trainer.accumulate * settings.global_batch,
        )  # fmt: skip


def _memory(trainer: pl.Trainer) -> tuple[int, int]:
    """Return the largest memory of this rank, and the memory that it can use, in bytes."""
    device = trainer.strategy.root_device
    if device.type == "cuda":
        peak = torch.cuda.max_memory_reserved(device)
        free, _ = torch.cuda.mem_get_info(device)
        # the rest belongs to libraries and other programs
        return peak, free + torch.cuda.memory_reserved(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    local = max(1, trainer.world_size // trainer.num_nodes)
    return peak, peak + free_memory_bytes() // local
