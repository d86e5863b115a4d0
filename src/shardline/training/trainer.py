"""Make Lightning's Trainer of one rank, with every option set explicitly."""

import logging
import warnings
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import lightning_fabric
import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.strategies import Strategy

from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import new_trainer
from shardline.core.world import World
from shardline.data.datamodule import model_dtype
from shardline.launch.device import resolve_accelerator
from shardline.training.precision import WideMetrics, keep_inputs
from shardline.training.strategies import SteadyDDPStrategy, SteadyFSDPStrategy


class WorldEnvironment(ClusterEnvironment):
    """Gives Lightning this rank's place in the job, so that it does not read variables."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    @property
    def creates_processes_externally(self) -> bool:
        """Whether a launcher starts the ranks; always true."""
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
        """Return False: Lightning never selects this environment by itself."""
        return False

    def world_size(self) -> int:
        """Return the number of ranks."""
        return self._world.world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing: the preflight check has verified the geometry."""

    def global_rank(self) -> int:
        """Return this rank."""
        return self._world.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing, as in `set_world_size`."""

    def local_rank(self) -> int:
        """Return the rank on this node."""
        return self._world.local_rank

    def node_rank(self) -> int:
        """Return the index of this node."""
        return self._world.node_rank


_STEP_HOOKS = (
    "on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step", "on_train_batch_end",
)  # fmt: skip


class LeanSteps(Callback):
    """Removes empty hooks of callbacks, so that Lightning calls only useful hooks in a step.

    An empty hook costs about 3 us, and a step has about fifty of them. Lightning skips hooks that are
    not functions.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the hooks that callbacks, including the model's own, inherit from `Callback`."""
        for callback in trainer.callbacks:  # type: ignore[attr-defined]  # not declared there
            for name in _STEP_HOOKS:
                is_empty = getattr(type(callback), name) is getattr(Callback, name)
                if is_empty and name not in vars(callback):
                    setattr(callback, name, None)


def make_trainer(
    settings: RunSettings, world: World, callbacks: list[Callback], logger: Logger,
    log_every_steps: int, *, timeout_s: float, is_grouped: bool = False, num_epochs: int | None = None,
    observed: Mapping[str, Any] = MappingProxyType({}),
) -> pl.Trainer:  # fmt: skip
    """Make the Trainer of this rank.

    Args:
        timeout_s: Timeout of the ranks' collective operations, in seconds.
        is_grouped: Use the strategy of several ranks even on one rank.
        num_epochs: Number of epochs; default: `trainer.max_epochs`.
        observed: Arguments of the Trainer that change no result, see `observers`.

    Raises:
        ConfigError: A setting needs GPUs, and there are none.
    """
    given = settings.trainer
    quieten_lightning()
    accelerator = resolve_accelerator(settings.accelerator, devices=settings.devices)
    if given.sync_batchnorm and accelerator == "cpu" and world.world_size > 1:
        raise ConfigError(
            "trainer.sync_batchnorm=true needs GPUs, since torch.nn.SyncBatchNorm does not run on CPUs; drop it, or "
            "use machines with GPUs"
        )
    strategy = make_strategy(settings, world, accelerator, timeout_s, is_grouped=is_grouped)
    trainer = new_trainer(
        accelerator=accelerator,
        devices=settings.devices,
        num_nodes=settings.nodes,
        strategy=strategy,
        # without a strategy, Lightning would look for a scheduler's variables
        plugins=[WorldEnvironment(world)] if isinstance(strategy, str) else None,
        precision=settings.precision,
        max_epochs=given.max_epochs if num_epochs is None else num_epochs,
        min_epochs=given.min_epochs or None,
        min_steps=given.min_steps or None,
        accumulate_grad_batches=given.accumulate,
        gradient_clip_val=given.gradient_clip or None,
        gradient_clip_algorithm=given.gradient_clip_algorithm if given.gradient_clip else None,
        check_val_every_n_epoch=given.validate_every_epochs,
        # partitions differ in length, and so may the last epoch: each epoch needs a new loader
        reload_dataloaders_every_n_epochs=int(
            settings.data.epoch == "partition" or given.max_steps > 0
        ),
        deterministic=settings.deterministic,
        benchmark=given.benchmark or None,
        inference_mode=given.inference_mode,
        sync_batchnorm=given.sync_batchnorm,
        callbacks=[
            *callbacks,
            LeanSteps(),
            *([WideMetrics()] if model_dtype(settings.precision) != torch.float32 else []),
        ],
        logger=logger,
        log_every_n_steps=log_every_steps,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        **observed,
    )
    keep_inputs(trainer, settings.precision)
    return trainer


def make_strategy(
    settings: RunSettings, world: World, accelerator: str, timeout_s: float, *, is_grouped: bool = False
) -> Strategy | str:  # fmt: skip
    """Make the Lightning strategy; "auto" for a single rank without sharding, unless `is_grouped`."""
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
        static_graph=settings.ddp.static_graph,
    )


def quieten_lightning() -> None:
    """Silence Lightning's hints that do not apply to Shardline."""
    for name in (pl.__name__, lightning_fabric.__name__):  # of either package
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*isinstance.treespec.*",
        ".*exists and is not empty.*",
        ".*is already saved during checkpointing.*",  # training checkpoints have no hyperparameters
        ".*smaller than the logging interval.*",
        ".*`srun` command is available.*",  # the profile's launcher starts the ranks
        # batches end with scalars (`{name}.mean_count`); Lightning correctly uses the first column's size
        ".*`batch_size` from an ambiguous collection.*",
    ):
        warnings.filterwarnings("ignore", message)
