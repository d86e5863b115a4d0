"""Watches a training's loss, without waiting for it, and goes back where it is bad.

The loss stays on its device. At the end of each optimiser step the ranks begin to agree on the
worst of it, and look at what they agreed on one step later, or before a validation or a save:
all of them at the same step.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Callback

from shardline.errors import ConfigError
from shardline.interventions import Plan, Trouble, write_plan
from shardline.launch.world import World
from shardline.stepping import LEFT_OUT

if TYPE_CHECKING:
    # handed in by the caller: how a training is saved is no part of a run's identity
    from shardline.checkpoints.saver import LastCheckpoint


class GoBack(Exception):
    """Raised on all ranks at the same step, once a step is known to be bad."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.place)
        self.trouble = trouble


@dataclass(frozen=True)
class _Reading:
    """What the ranks agree on of one step.

    Attributes:
        own: this rank's worst loss; NaN goes before all others.
        largest: that of all ranks, infinity in the place of NaN; on the CPU, once `wait` has returned.
    """

    step: int
    epoch: int
    lr: float | None
    own: torch.Tensor
    largest: torch.Tensor
    wait: Callable[[], object]


class LossWatch(Callback):
    """Raises `GoBack` where the training loss is bad on any rank, or the weights are.

    Comes before all callbacks that save: a state whose own step is bad is not saved.

    Args:
        max_loss: a loss above it is bad; None: only one that is NaN or infinite is.
    """

    def __init__(self, max_loss: float | None) -> None:
        self._max_loss = max_loss
        self._worst: torch.Tensor | None = None
        self._pending: _Reading | None = None
        self._lr: float | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Have the optimisers tell their learning rate, which schedules have changed when a step ends."""
        for optimizer in trainer.optimizers:
            optimizer.register_step_pre_hook(self._note_lr)

    def _note_lr(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._lr = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any
    ) -> None:
        """Take in a batch's loss; at a step's end look at that of the step before."""
        told = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        loss = None if LEFT_OUT in told else told.get("loss")
        if isinstance(loss, torch.Tensor):
            # Lightning has divided it for the sum over the parts
            whole = loss.detach().float() * trainer.accumulate_grad_batches
            seen = torch.nan_to_num(whole, nan=math.nan, posinf=math.inf, neginf=math.inf)
            self._worst = seen if self._worst is None else torch.maximum(self._worst, seen)
        if trainer.fit_loop._should_accumulate():
            return
        self.look()
        worst, self._worst = self._worst, None
        if worst is not None:
            self._pending = self._agree(trainer, worst)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Choose among good weights only."""
        self._check_all(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End an epoch with good weights only."""
        self._check_all(trainer)

    def look(self) -> None:
        """Wait for what the ranks agree on of the last step.

        Raises:
            GoBack: it is bad; on all ranks.
        """
        reading, self._pending = self._pending, None
        if reading is None:
            return
        reading.wait()
        if not self._is_bad(float(reading.largest)):
            return
        losses: list[Any] = [float(reading.own)]
        if dist.is_initialized():
            losses = [None] * dist.get_world_size()
            dist.all_gather_object(losses, float(reading.own))
        rank, loss = max(
            ((rank, loss) for rank, loss in enumerate(losses) if self._is_bad(loss)),
            key=lambda found: (math.isnan(found[1]), found[1]),
        )
        lr = None if reading.lr is None else float(reading.lr)
        cause = f"the training loss is {self._name(loss)}"
        raise GoBack(Trouble(step=reading.step, epoch=reading.epoch, rank=rank, cause=cause, lr=lr))

    def may_save(self, trainer: pl.Trainer) -> bool:
        """Return whether the present state is good; asked by all ranks, at a step's end.

        Weights that are bad after a good loss are not acted upon in mid-epoch: the next loss
        tells, at the same step however often states are saved.

        Raises:
            GoBack: the last loss is bad.
        """
        self.look()
        return self._has_good_weights(trainer)

    def _check_all(self, trainer: pl.Trainer) -> None:
        self.look()
        if not self._has_good_weights(trainer):
            lr = None if self._lr is None else float(self._lr)
            raise GoBack(
                Trouble(
                    step=trainer.global_step,
                    epoch=trainer.current_epoch,
                    rank=0,
                    cause="weights are NaN or infinite",
                    lr=lr,
                )
            )

    def _is_bad(self, loss: float) -> bool:
        limit = math.inf if self._max_loss is None else self._max_loss
        return not math.isfinite(loss) or loss > limit

    def _name(self, loss: float) -> str:
        if not math.isfinite(loss):
            return "NaN" if math.isnan(loss) else "infinite"
        return f"{loss:.6g}, above divergence.max_loss={self._max_loss:g}"

    def _agree(self, trainer: pl.Trainer, own: torch.Tensor) -> _Reading:
        """Begin to agree with the other ranks, and wait for nothing."""
        largest = torch.nan_to_num(own, nan=math.inf, posinf=math.inf)
        work = None
        if trainer.world_size > 1:
            work = dist.all_reduce(largest, dist.ReduceOp.MAX, async_op=True)
        wait: Callable[[], object] = work.wait if work else lambda: None
        if largest.is_cuda:
            wait()  # has the device wait, not this program
            on_device = largest
            largest = torch.empty(on_device.shape, dtype=on_device.dtype, pin_memory=True)
            largest.copy_(on_device, non_blocking=True)
            arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
            wait = arrived.synchronize
        return _Reading(trainer.global_step, trainer.current_epoch, self._lr, own, largest, wait)

    def _has_good_weights(self, trainer: pl.Trainer) -> bool:
        # of weights that are sharded, what this rank holds
        held = [getattr(p, "to_local", p.detach)() for p in trainer.lightning_module.parameters()]
        if not held:
            return True
        good = torch.stack([torch.isfinite(part).all() for part in held]).all().int()
        if trainer.world_size > 1:  # each rank may hold a part of them alone
            dist.all_reduce(good, dist.ReduceOp.MIN)
        return bool(good)


def check_policy(settings: Mapping[str, Any], model: pl.LightningModule, name: str) -> None:
    """Refuse what a model that takes its optimiser steps itself cannot follow.

    Raises:
        ConfigError: names the run, the setting and the remedy.
    """
    if model.automatic_optimization:
        return
    policy = settings["divergence"]["policy"]
    for key, value, remedy in (
        ("divergence.policy", policy if policy != "stop" else "", "stop"),
        ("elastic", "true" if settings["elastic"] else "", "false"),
    ):
        if value:
            raise ConfigError(
                f'run "{name}": {key}={value}, but {type(model).__name__} takes its optimiser steps itself '
                f"(automatic_optimization=False); use {key}={remedy}"
            )


def intervene(
    spec: Mapping[str, Any], world: World, plan: Plan, trouble: Trouble, work: Path,
    saver: "LastCheckpoint",
) -> Plan:  # fmt: skip
    """Decide what is done about a bad step, and bring that to disk before anything else happens.

    Later training checkpoints go first: they were made before the decision. A kill in between
    then only lets the same trouble be seen again.

    Args:
        spec: the run's `run.json`.
        work: the run's folder in the store.
        saver: keeps the training checkpoints.

    Returns:
        How each step is done from now on, the same on all ranks.

    Raises:
        Diverged: the training ends; names step, epoch, loss, learning rate, the last good
            training checkpoint and the remedies.
    """
    settings = spec["settings"]["divergence"]
    plan = plan.extended(trouble, settings, _remedy(saver.last_step()), spec["name"])
    done = plan.interventions[-1]
    if world.rank == 0:
        saver.discard_from(done.first)
        write_plan(work, spec["identity"], plan)
        count = f"{len(plan.interventions)} of {settings['limit']} interventions"
        print(f"{done} ({count}); going back to step {saver.last_step()}", flush=True)
    if world.world_size > 1:
        dist.barrier()
    return plan


def _remedy(step: int) -> str:
    good = (
        f"the last good training checkpoint is that of step {step}"
        if step
        else ("there is no training checkpoint from before")
    )
    return (
        f"{good}; look at that step's samples, lower optim.lr, set trainer.gradient_clip, or have "
        "divergence.policy skip such steps or lower the learning rate"
    )
