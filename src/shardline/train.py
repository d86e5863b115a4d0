"""Training one run on one rank, from `run.json` to sealed weights."""

import hashlib
import logging
import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, Strategy
from pytorch_lightning.utilities.model_helpers import is_overridden
from safetensors.torch import save

from shardline.checkpointing import LastCheckpoint, best_checkpoint, load_weights
from shardline.datamodule import ShardDataModule
from shardline.errors import ConfigError, LaunchError
from shardline.files import write_bytes
from shardline.launch import World
from shardline.metrics import JsonLinesLogger, PlainProgress
from shardline.modelling import make_model
from shardline.optim import attach_optimizer


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


class StepSeeds(Callback):
    """Seeds every batch from (seed, epoch, batch, rank).

    Randomness in a step is then a function of where the step is, and a resumed
    training draws what an uninterrupted one draws.
    """

    def __init__(self, seed: int, rank: int) -> None:
        self._seed, self._rank = seed, rank

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed Python, NumPy and torch for one batch."""
        text = f"{self._seed}/{trainer.current_epoch}/{batch_idx}/{self._rank}"
        value = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
        random.seed(value)
        np.random.seed(value)
        torch.manual_seed(value)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training ended with.

    Attributes:
        best: training checkpoint whose weights are sealed.
        best_score: its value of the monitored metric.
        resumed_step: optimiser step that this attempt resumed from, 0 for none.
    """

    best: Path
    best_score: float | None
    steps: int
    epochs: int
    stopped_early: bool
    resumed_step: int
    device: str
    checkpoint_s: float


def train(
    spec: Mapping[str, Any], world: World, *, manifest: Path, shards: Path, work: Path,
    num_workers: int = 0, log_every_steps: int = 10,
) -> Trained:  # fmt: skip
    """Train a run to its end, from its last training checkpoint where there is one.

    Args:
        spec: the run's `run.json`.
        manifest: sealed manifest of the dataset.
        shards: folder of the dataset's shards in the store.
        work: the run's folder in the store; holds training checkpoints and metrics.

    Raises:
        ConfigError, DataError, LaunchError: see the messages.
    """
    settings = spec["settings"]
    _quieten_lightning()
    pl.seed_everything(settings["seed"], workers=True, verbose=False)
    data = ShardDataModule(
        spec,
        manifest,
        shards,
        rank=world.rank,
        world_size=world.world_size,
        num_workers=num_workers,
    )
    model = make_model(spec, data.train.manifest["schema"])
    steps_per_epoch = len(data.loader) // settings["trainer"]["accumulate"]
    attach_optimizer(model, spec, total_steps=steps_per_epoch * settings["trainer"]["max_epochs"])
    _check_validates(settings, model)
    logger = JsonLinesLogger(work / "metrics.jsonl")
    checkpoints = work / "checkpoints"
    best = best_checkpoint(
        checkpoints, **{key: settings["checkpoint"][key] for key in ("monitor", "mode", "top_k")}
    )
    last = LastCheckpoint(checkpoints, settings["checkpoint"]["every_steps"])
    callbacks = [StepSeeds(settings["seed"], world.rank), PlainProgress(), best, last]
    trainer = make_trainer(
        settings, world, [*callbacks, *_early_stopping(settings)], logger, log_every_steps
    )
    resumed_step = last.step_saved()
    if world.rank == 0:
        start = f"resuming from step {resumed_step}" if resumed_step else "starting"
        print(
            f"{start}: {world.world_size} ranks on {world.num_nodes} nodes ({world.launcher}), "
            f"{type(trainer.accelerator).__name__}, {steps_per_epoch} steps an epoch",
            flush=True,
        )
    logger.rewind(resumed_step)
    trainer.fit(
        model, datamodule=data, ckpt_path=last.path if resumed_step else None, weights_only=True
    )
    return _summary(trainer, best, last, resumed_step)


def _summary(
    trainer: pl.Trainer, best: ModelCheckpoint, last: LastCheckpoint, resumed_step: int
) -> Trained:
    if not best.best_model_path:
        raise ConfigError(
            f"checkpoint.monitor={best.monitor} was never logged, so no weights can be chosen; "
            f"the model logged {', '.join(sorted(trainer.callback_metrics)) or 'nothing'}"
        )
    score = None if best.best_model_score is None else float(best.best_model_score)
    return Trained(
        best=Path(best.best_model_path),
        best_score=score,
        steps=trainer.global_step,
        epochs=trainer.current_epoch,
        stopped_early=trainer.current_epoch < (trainer.max_epochs or 0),
        resumed_step=resumed_step,
        device=str(trainer.strategy.root_device),
        checkpoint_s=last.seconds,
    )


def _check_validates(settings: Mapping[str, Any], model: pl.LightningModule) -> None:
    """Refuse a model that never validates: nothing could choose its weights."""
    if not is_overridden("validation_step", model):
        raise ConfigError(
            f"{type(model).__name__} has no validation_step, so checkpoint.monitor="
            f"{settings['checkpoint']['monitor']} cannot be measured; add one that logs it"
        )


def _early_stopping(settings: Mapping[str, Any]) -> list[Callback]:
    stopping = settings["early_stopping"]
    if not stopping["patience"]:
        return []
    return [
        EarlyStopping(
            monitor=stopping["monitor"],
            mode=stopping["mode"],
            patience=stopping["patience"],
            min_delta=stopping["min_delta"],
            stopping_threshold=stopping["stopping_threshold"],
            check_finite=True,
        )
    ]


def make_trainer(
    settings: Mapping[str, Any], world: World, callbacks: list[Callback], logger: JsonLinesLogger,
    log_every_steps: int,
) -> pl.Trainer:  # fmt: skip
    """Return the Trainer of this rank, with nothing left for Lightning to guess."""
    accelerator = resolve_accelerator(settings)
    return pl.Trainer(
        accelerator=accelerator,
        devices=settings["devices"],
        num_nodes=settings["nodes"],
        strategy=make_strategy(settings, world, accelerator),
        precision=settings["precision"],
        max_epochs=settings["trainer"]["max_epochs"],
        accumulate_grad_batches=settings["trainer"]["accumulate"],
        gradient_clip_val=settings["trainer"]["gradient_clip"] or None,
        check_val_every_n_epoch=settings["trainer"]["validate_every_epochs"],
        deterministic=settings["deterministic"],
        callbacks=callbacks,
        logger=logger,
        log_every_n_steps=log_every_steps,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def resolve_accelerator(settings: Mapping[str, Any]) -> str:
    """Return `gpu` or `cpu` for this machine.

    Raises:
        LaunchError: the run asks for GPUs that are not there.
    """
    wanted, gpus = settings["accelerator"], torch.cuda.device_count()
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        if settings["strategy"] == "fsdp":
            raise LaunchError(
                "strategy=fsdp needs GPUs and this machine shows none; use strategy=ddp"
            )
        return "cpu"
    if gpus < settings["devices"]:
        raise LaunchError(
            f"devices={settings['devices']}, but this machine shows {gpus} GPUs; "
            "use fewer devices, or accelerator=cpu"
        )
    return "gpu"


def make_strategy(settings: Mapping[str, Any], world: World, accelerator: str) -> Strategy | str:
    """Return the Lightning strategy; a world of one without sharding needs none."""
    environment = WorldEnvironment(world)
    if settings["strategy"] == "fsdp":
        return FSDPStrategy(cluster_environment=environment, state_dict_type="full")
    if world.world_size == 1:
        return "auto"
    backend = "gloo" if accelerator == "cpu" else "nccl"
    return DDPStrategy(cluster_environment=environment, process_group_backend=backend)


def seal_model(trained: Trained, spec: Mapping[str, Any], path: Path) -> None:
    """Write the best weights as safetensors, all or nothing.

    Raises:
        ConfigError: a weight is NaN or infinite.
    """
    weights = load_weights(trained.best)
    for name, value in weights.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ConfigError(
                f'run "{spec["name"]}": weight {name} is NaN or infinite; lower optim.lr or set trainer.gradient_clip'
            )
    # one key of metadata: safetensors writes several in no fixed order
    weights = {name: value.clone().contiguous() for name, value in sorted(weights.items())}
    write_bytes(path, save(weights, metadata={"identity": spec["identity"]}))


def _quieten_lightning() -> None:
    """Silence hints that do not apply: loading is ours, and the trainer is fully set."""
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (".*does not have many workers.*", ".*isinstance.treespec.*"):
        warnings.filterwarnings("ignore", message)
