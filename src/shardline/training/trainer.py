"""Lightning's Trainer for one rank, with nothing left for it to guess."""

import logging
import warnings
from datetime import timedelta

import pytorch_lightning as pl
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.strategies import Strategy
from torchmetrics import Metric

from shardline.config.settings.run_settings import RunSettings
from shardline.core.lightning_compat import new_trainer, spare_moves
from shardline.core.world import World
from shardline.launch.device import resolve_accelerator
from shardline.training.strategies import SteadyDDPStrategy, SteadyFSDPStrategy


class WorldEnvironment(ClusterEnvironment):
    """Tells Lightning this process's place, so that it never guesses from variables."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    @property
    def creates_processes_externally(self) -> bool:
        """Ranks are started by a launcher, never by Lightning."""
        return True

    @property
    def main_address(self) -> str:
        """Address of rank 0."""
        return self._world.master_addr

    @property
    def main_port(self) -> int:
        """Port of rank 0."""
        return self._world.master_port

    @staticmethod
    def detect() -> bool:
        """Never chosen automatically."""
        return False

    def world_size(self) -> int:
        """Number of ranks."""
        return self._world.world_size

    def set_world_size(self, size: int) -> None:
        """Ignore Lightning's own count; the geometry is checked before."""

    def global_rank(self) -> int:
        """This rank."""
        return self._world.rank

    def set_global_rank(self, rank: int) -> None:
        """Ignore Lightning's own count."""

    def local_rank(self) -> int:
        """Place on this node."""
        return self._world.local_rank

    def node_rank(self) -> int:
        """Place of this node."""
        return self._world.node_rank


_STEP_HOOKS = (
    "on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step", "on_train_batch_end",
)  # fmt: skip


class LeanSteps(Callback):
    """Has Lightning call only those callbacks at a step that do something there.

    It skips a hook that is no function; each call of an empty one costs some 3 us, and there are
    some fifty of them in a step.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take away the hooks that each callback has from its base class, the model's own callbacks' too."""
        for callback in trainer.callbacks:  # type: ignore[attr-defined]  # not declared there
            for name in _STEP_HOOKS:
                is_empty = getattr(type(callback), name) is getattr(Callback, name)
                if is_empty and name not in vars(callback):
                    setattr(callback, name, None)


class DoubleMetrics(Callback):
    """Has metrics compute in 64 bits from the first batch on.

    A metric computes in the type that was the default when it was moved last. Lightning moves it with the model,
    and again when it has logged its first batch in 64 bits. So the first batches of an attempt had another last bit.
    """

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Come behind the move to the device."""
        with trainer.precision_plugin.forward_context():
            for metric in (one for one in pl_module.modules() if isinstance(one, Metric)):
                metric.to(metric.device)

    on_validation_start = on_fit_start  # of a Trainer that only validates


def make_trainer(
    settings: RunSettings, world: World, callbacks: list[Callback], logger: Logger,
    log_every_steps: int, *, timeout_s: float, is_grouped: bool = False,
) -> pl.Trainer:  # fmt: skip
    """Return the Trainer of this rank, with nothing left for Lightning to guess.

    Args:
        timeout_s: of the ranks' collective operations.
        is_grouped: give one rank the strategy of several, in a process group of its own.
    """
    quieten_lightning()
    spare_moves()
    accelerator = resolve_accelerator(settings.accelerator, devices=settings.devices)
    strategy = make_strategy(settings, world, accelerator, timeout_s, is_grouped=is_grouped)
    return new_trainer(
        accelerator=accelerator,
        devices=settings.devices,
        num_nodes=settings.nodes,
        strategy=strategy,
        # one rank without a strategy: Lightning would look for a scheduler's variables
        plugins=[WorldEnvironment(world)] if isinstance(strategy, str) else None,
        precision=settings.precision,
        max_epochs=settings.trainer.max_epochs,
        accumulate_grad_batches=settings.trainer.accumulate,
        gradient_clip_val=settings.trainer.gradient_clip or None,
        check_val_every_n_epoch=settings.trainer.validate_every_epochs,
        # partitions differ in length, so each epoch's is asked for
        reload_dataloaders_every_n_epochs=int(settings.data.epoch == "partition"),
        deterministic=settings.deterministic,
        callbacks=[
            *callbacks,
            LeanSteps(),
            *([DoubleMetrics()] if settings.precision == "64-true" else []),
        ],
        logger=logger,
        log_every_n_steps=log_every_steps,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def make_strategy(
    settings: RunSettings, world: World, accelerator: str, timeout_s: float, *, is_grouped: bool = False
) -> Strategy | str:  # fmt: skip
    """Return the Lightning strategy; a world of one without sharding needs none, unless it is to be grouped."""
    environment, backend = WorldEnvironment(world), "gloo" if accelerator == "cpu" else "nccl"
    timeout = timedelta(seconds=timeout_s)
    if settings.strategy == "fsdp":
        return SteadyFSDPStrategy(environment, backend, timeout)
    if world.world_size == 1 and not is_grouped:
        return "auto"
    return SteadyDDPStrategy(
        cluster_environment=environment,
        process_group_backend=backend,
        timeout=timeout,
        find_unused_parameters=settings.ddp.find_unused_parameters,
    )


def quieten_lightning() -> None:
    """Silence hints that do not apply: loading is ours, and the trainer is fully set."""
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*isinstance.treespec.*",
        ".*exists and is not empty.*",
        ".*smaller than the logging interval.*",
        # a batch has scalars, `{name}.mean_count`, behind its columns; the first column's size is right
        ".*`batch_size` from an ambiguous collection.*",
    ):
        warnings.filterwarnings("ignore", message)
