"""Training one run on one rank, from `run.json` to sealed weights."""

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, EarlyStopping
from pytorch_lightning.utilities.model_helpers import is_overridden
from safetensors.torch import load_file, save

from shardline.checkpoints.best import BestCheckpoint
from shardline.checkpoints.callback import LastCheckpoint
from shardline.config.geometry import settings_at
from shardline.core.errors import ConfigError, Diverged, name_in_messages
from shardline.core.files import write_bytes
from shardline.core.world import World
from shardline.data.datamodule import ShardDataModule
from shardline.data.integrity import Policy
from shardline.data.ledger import SampleLedger
from shardline.launch.device import resolve_accelerator
from shardline.training.agreement import Agreement
from shardline.training.divergence import GoBack, LossWatch, check_policy, intervene
from shardline.training.heartbeat import Heartbeat
from shardline.training.interventions import Plan, read_plan
from shardline.training.metrics import JsonLinesLogger, PlainProgress
from shardline.training.model import make_model
from shardline.training.optim import attach_optimizer
from shardline.training.steps import Steps, StepSeeds
from shardline.training.stop_agreement import AgreedStop
from shardline.training.trainer import make_trainer


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the work is done; none of it changes a result.

    Attributes:
        verify: when a shard is held against its digest: `off`, `first` or `always`.
        log_every_steps: optimiser steps between two metric records.
        best_kept: best weights kept; the best of them is sealed.
        set_by_row: settings that the run's own row sets; refused where the model ignores them.
        collective_timeout_s: seconds after which torch ends a rank that waits for its peers.
        save_every_steps: optimiser steps between two training checkpoints; 0 for never.
        save_every_s: seconds between two training checkpoints; 0 for never.
        checkpoints_kept: training checkpoints that stay.
        is_synchronous: wait for the disk at each save.
        ledger: write which rows each step consumed.
    """

    verify: Policy
    log_every_steps: int
    best_kept: int
    set_by_row: tuple[str, ...] = ()
    collective_timeout_s: float = 1800.0
    save_every_steps: int = 0
    save_every_s: float = 0.0
    checkpoints_kept: int = 2
    is_synchronous: bool = False
    ledger: bool = False


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training ended with.

    Attributes:
        best: file of the weights that are sealed.
        best_score: its value of the monitored metric.
        resumed_step: optimiser step that this attempt resumed from last, 0 for none.
        interventions: what was done where the training diverged, see `interventions.Intervention`.
    """

    best: Path
    best_score: float | None
    steps: int
    epochs: int
    stopped_early: bool
    resumed_step: int
    checkpoint_s: float
    interventions: list[dict[str, Any]] = field(default_factory=list)


def train(
    spec: Mapping[str, Any], world: World, options: Options, *, manifest: Path, shards: Path, work: Path,
    callbacks: Sequence[Callback] = (),
) -> Trained:  # fmt: skip
    """Train a run to its end, from its last training checkpoint where there is one.

    Args:
        spec: the run's `run.json`.
        manifest: sealed manifest of the dataset.
        shards: folder of the dataset's shards in the store.
        work: the run's folder in the store; holds training checkpoints and metrics.
        callbacks: measure the training and change nothing in it.

    Raises:
        ConfigError, DataError, LaunchError: see the messages.
    """
    saver = LastCheckpoint(
        work / "checkpoints",
        identity=spec["identity"],
        every_steps=options.save_every_steps,
        every_s=options.save_every_s,
        keep=options.checkpoints_kept,
        is_synchronous=options.is_synchronous,
    )
    logger, agreement = JsonLinesLogger(work / "metrics.jsonl"), Agreement()
    callbacks = [
        *callbacks,
        Heartbeat(),
        PlainProgress(),
        *([SampleLedger(work / "ledger", world)] if options.ledger else []),
        AgreedStop(world, saver, agreement),
    ]
    plan = read_plan(work, spec["identity"])
    while True:
        try:
            return _fit(
                spec, world, options, plan=plan, manifest=manifest, shards=shards, work=work,
                logger=logger, saver=saver, agreement=agreement, callbacks=callbacks,
            )  # fmt: skip
        except GoBack as error:
            trouble = error.trouble
        gc.collect()  # the model that went wrong, before there is another
        plan = intervene(spec, world, plan, trouble, work, saver)


def _fit(
    spec: Mapping[str, Any], world: World, options: Options, *, plan: Plan, manifest: Path,
    shards: Path, work: Path, logger: JsonLinesLogger, saver: LastCheckpoint, agreement: Agreement,
    callbacks: Sequence[Callback],
) -> Trained:  # fmt: skip
    """Train until the end, or until the training has to go back; see `train`.

    Raises:
        GoBack: a step is bad.
    """
    settings = settings_at(
        spec["settings"],
        run=name_in_messages(spec),
        nodes=world.num_nodes,
        devices=world.local_world_size,
    )
    pl.seed_everything(settings["seed"], workers=True, verbose=False)
    pin = resolve_accelerator(settings) == "gpu"
    here = {**spec, "settings": settings}
    data = ShardDataModule(here, manifest, shards, world, verify=options.verify, pin=pin)
    model = make_model(spec, data.manifest["schema"])
    if settings["precision"] == "64-true":
        model.double()  # Lightning does it after a state is restored, which would round its weights
    attach_optimizer(model, spec, total_steps=data.total_steps, set_by_row=options.set_by_row)
    _check_validates(settings, model)
    check_policy(settings, model, name_in_messages(spec))
    best = BestCheckpoint(
        work / "checkpoints", saver.keep_best, **settings["checkpoint"], top_k=options.best_kept
    )
    seeds = StepSeeds(settings["seed"], world.rank, settings["trainer"]["accumulate"])
    watch = LossWatch(settings["divergence"]["max_loss"], agreement)
    saver.may_save, saver.rewind = watch.may_save, logger.rewind
    # the saver comes first: between two epochs nothing may have happened before it
    callbacks = [
        saver, seeds, Steps(plan), watch, *callbacks, *_early_stopping(settings), best,
    ]  # fmt: skip
    trainer = make_trainer(
        settings, world, callbacks, logger, options.log_every_steps, options.collective_timeout_s
    )
    state = saver.resume_from(trainer, best)
    resumed_step = saver.step_saved()
    if state is None:
        logger.rewind(0)
    trainer.fit(model, datamodule=data, ckpt_path=state, weights_only=True)
    return replace(_summary(trainer, best, saver, resumed_step), interventions=plan.to_json())


def _summary(
    trainer: pl.Trainer, best: BestCheckpoint, saver: LastCheckpoint, resumed_step: int
) -> Trained:
    if not best.best_model_path:
        raise ConfigError(
            f"checkpoint.monitor={best.monitor} was never logged, so no weights can be chosen; "
            f"the model logged {', '.join(sorted(trainer.callback_metrics)) or 'nothing'}"
        )
    score = None if best.best_model_score is None else float(best.best_model_score)
    if score is not None and not math.isfinite(score):  # what Lightning makes of NaN
        raise Diverged(
            f"checkpoint.monitor={best.monitor} was never a finite number, so no weights can be chosen; lower "
            "optim.lr, set trainer.gradient_clip, or look at the model's validation_step"
        )
    return Trained(
        best=Path(best.best_model_path),
        best_score=score,
        steps=trainer.global_step,
        epochs=trainer.current_epoch,
        stopped_early=trainer.current_epoch < (trainer.max_epochs or 0),
        resumed_step=resumed_step,
        checkpoint_s=saver.seconds,
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
            check_on_train_epoch_end=False,
        )
    ]


def seal_model(trained: Trained, spec: Mapping[str, Any], path: Path) -> None:
    """Write the best weights as safetensors, all or nothing.

    Raises:
        Diverged: a weight is NaN or infinite.
    """
    weights = load_file(trained.best)
    for name, value in weights.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise Diverged(
                f'run "{name_in_messages(spec)}": weight {name} is NaN or infinite; lower optim.lr or set '
                "trainer.gradient_clip"
            )
    # one key of metadata: safetensors writes several in no fixed order
    weights = {name: value.clone().contiguous() for name, value in sorted(weights.items())}
    write_bytes(path, save(weights, metadata={"identity": spec["identity"]}))
