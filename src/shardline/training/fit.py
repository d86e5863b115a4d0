"""Train a run on one rank, from its settings to sealed weights."""

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, EarlyStopping
from pytorch_lightning.utilities.model_helpers import is_overridden
from safetensors.torch import load_file, save

from shardline.checkpoints.best import BestCheckpoint, ValidatedWeights
from shardline.checkpoints.boundaries import Milestones
from shardline.checkpoints.manager import CheckpointManager
from shardline.checkpoints.weights import plain_name
from shardline.config.resolved import ActualGeometry, RunSpec, settings_on
from shardline.config.settings.run_settings import Checkpoint, RunSettings
from shardline.config.settings.run_settings import EarlyStopping as EarlyStoppingSettings
from shardline.core.errors import ConfigError, Diverged
from shardline.core.files import write_bytes
from shardline.core.world import World
from shardline.data.datamodule import ShardDataModule
from shardline.data.ledger import SampleLedger
from shardline.launch.device import resolve_accelerator
from shardline.records.measured import ConsumedSteps, Intervention, SealedCheck
from shardline.records.trainings import PackedSamples
from shardline.training.callbacks import attach_callbacks
from shardline.training.compiled import compile_model, is_compiled
from shardline.training.consumed import Consumed
from shardline.training.divergence import LossWatch, RollbackRequired, check_policy, intervene
from shardline.training.heartbeat import Heartbeat
from shardline.training.init_weights import attach_init
from shardline.training.interventions import read_plan
from shardline.training.length import LengthBound, check_continued
from shardline.training.metrics_file import JsonLinesLogger
from shardline.training.model import make_model
from shardline.training.models.classifier_base import Classifier
from shardline.training.observed import ModelSummary, observers
from shardline.training.optim import attach_optimizer, has_own_optimizer
from shardline.training.optimizer_steps import OptimizerSteps, StepSeeds
from shardline.training.parameters import freeze_parameters
from shardline.training.plain_progress import PlainProgress
from shardline.training.precision import round_weights
from shardline.training.rank_task import Find, RankTask, Train
from shardline.training.repeated_batch import repeat_batch
from shardline.training.step_all_reduce import StepAllReduce
from shardline.training.stop_agreement import AgreedStop
from shardline.training.trainer import make_trainer
from shardline.training.validation_places import plan_validations

_TORCH_TIMEOUT_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Result of a training.

    Attributes:
        best: File of the best weights, which are sealed.
        best_score: Value of the monitored metric with these weights.
        resumed_step: Optimiser step from which this attempt last resumed; 0 for none.
        parameters: Names of the parameters in `best`, which contains buffers too.
        is_compiled: Whether a part of the model was compiled.
        packs: Counts of packed samples; None if samples are rows.
        interventions: Interventions after divergence.
        unsaved: Values that began again when this training resumed, see `LengthBound.lost`.
        sealed_check: Result of evaluating the sealed weights again, on rank 0.
    """

    best: Path
    best_score: float | None
    steps: int
    epochs: int
    stopped_early: bool
    resumed_step: int
    parameters: frozenset[str] = frozenset()
    is_compiled: bool = False
    packs: PackedSamples | None = None
    consumed: ConsumedSteps | None = None
    checkpoint_s: float = 0.0
    interventions: tuple[Intervention, ...] = ()
    own_optimizer: bool = False
    unsaved: tuple[str, ...] = ()
    sealed_check: SealedCheck | None = None


def train(
    task: RankTask, world: World, callbacks: Sequence[Callback] = (), *, set_by_row: Sequence[str] = (),
    is_grouped: bool = False,
) -> Trained:  # fmt: skip
    """Train a run to its end, from its last training checkpoint if there is one.

    Args:
        callbacks: Callbacks that only measure the training.
        set_by_row: Settings in the run's own row; rejected if the model ignores them.
        is_grouped: Use the strategy of several ranks even on one rank.

    Raises:
        ConfigError, DataError, LaunchError: See the messages.
    """
    here = ActualGeometry(nodes=world.num_nodes, devices=world.local_world_size)
    spec, runtime = task.run, task.runtime
    settings = settings_on(spec.settings, here, run=spec.title)
    saved, policy = task.work / "checkpoints", runtime.checkpoint
    chosen = settings.checkpoint
    logger, agreement = JsonLinesLogger(task.work / "metrics.jsonl"), StepAllReduce()
    # the watchdog's diagnosis must come before torch's timeout, whose error names no cause
    timeout_s = max(_TORCH_TIMEOUT_S, 2 * runtime.hang_timeout_s)
    new_trainer = partial(make_trainer, settings, world, timeout_s=timeout_s, is_grouped=is_grouped)
    attempt = task.action.attempt if isinstance(task.action, Train) else 0
    plan, seconds = read_plan(task.work, spec.identity), 0.0
    while True:
        watch = LossWatch(settings.divergence.max_loss, agreement)
        validated = ValidatedWeights()
        best = BestCheckpoint(
            saved, validated, monitor=chosen.monitor, mode=chosen.mode, top_k=policy.keep_best
        )
        bound = LengthBound()
        manager = CheckpointManager(
            saved, spec.identity, policy, best, may_save=watch.may_save, records=logger,
            milestones=milestones_of(chosen), bound=bound.of_state, is_last_to_continue=bound.is_before_cut,
        )  # fmt: skip
        around = [
            *callbacks,
            Heartbeat(),
            PlainProgress(),
            *([SampleLedger(task.work / "ledger", world)] if runtime.ledger else []),
            *([ModelSummary()] if runtime.model_summary else []),
            AgreedStop(world, manager, agreement),
            *_early_stopping(settings.early_stopping),
        ]
        # the manager comes first: between two epochs it must act before all other callbacks
        seeds = StepSeeds(settings.seed, world.rank, settings.trainer.accumulate)
        ordered = [manager, validated, seeds, OptimizerSteps(plan), watch, bound, *around, best]
        try:
            trainer, resumed_step, packs, consumed = _fit(
                task,
                settings,
                world,
                set_by_row,
                manager,
                partial(new_trainer, observed=observers(runtime, task.work, attempt)),
                logger,
                ordered,
                bound,
            )
        except RollbackRequired as error:
            trouble = error.trouble
        else:
            trained = replace(
                _summary(trainer, best, resumed_step),
                packs=packs, consumed=consumed, checkpoint_s=seconds + manager.seconds,
                interventions=plan.interventions,
                unsaved=tuple(bound.lost) if trainer.global_step > resumed_step else (),
            )  # fmt: skip
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            logger.trainer = None
            del trainer
            gc.collect()  # free the trained model before another is made
            check = repeat_batch(
                spec, settings, world, data, trained.best, best.records.get(trained.best.name),
                # only the same code gives the same bits, and a fresh model may not be compiled
                is_exact=trained.best.name in best.recorded_here and not trained.is_compiled,
                is_error=runtime.check_sealed == "error",
                new_trainer=new_trainer,
            )  # fmt: skip
            return replace(trained, sealed_check=check)
        seconds += manager.seconds
        logger.trainer = None
        gc.collect()  # free the diverged model before another is made
        plan = intervene(spec, world, plan, trouble, task.work)


def _fit(
    task: RankTask, settings: RunSettings, world: World, set_by_row: Sequence[str],
    manager: CheckpointManager, new_trainer: Callable[..., pl.Trainer], logger: JsonLinesLogger,
    callbacks: list[Callback], bound: LengthBound,
) -> tuple[pl.Trainer, int, PackedSamples | None, ConsumedSteps]:  # fmt: skip
    """Train to the end; return the trainer, the resumed optimiser step, the packs and the steps.

    Args:
        settings: The run's settings for the actual number of ranks.

    Raises:
        RollbackRequired: A step is bad, and the training must go back.
    """
    spec = task.run
    pl.seed_everything(settings.seed, workers=True, verbose=False)
    pin = resolve_accelerator(settings.accelerator, devices=settings.devices) == "gpu"
    data = ShardDataModule(
        settings, task.datasets, world,
        verify=task.runtime.verify, pin=pin,
    )  # fmt: skip
    model = make_model(spec, data.manifest.schema)
    round_weights(model, settings.precision)
    if isinstance(model, Classifier) and model.scales_targets:
        model.set_target_scale(data.label_statistics.mean, data.label_statistics.std)
    freeze_parameters(model, settings.freeze, f'run "{spec.title}"')
    attach_optimizer(
        model,
        spec,
        num_epochs=data.num_epochs,
        total_steps=lambda: data.horizon(settings.schedule),
        set_by_row=set_by_row,
    )
    check_validates(settings, model)
    check_manual(settings, model)
    compile_model(model, settings.trainer.compile)
    check_policy(settings, model, spec.title)
    consumed = Consumed(data, data.num_epochs, f'run "{spec.title}"')
    trainer = logger.trainer = new_trainer(
        [*callbacks, consumed],
        logger=logger,
        log_every_steps=task.runtime.log_every_steps,
        num_epochs=data.num_epochs,
    )
    bound.data, bound.places = data, plan_validations(trainer, settings, data, spec.title)
    if world.rank == 0:
        check_continued(task.work, settings, data, has_schedule=not has_own_optimizer(model))
    state = manager.resume_from(trainer)
    resumed_step = manager.step_saved()
    if state is None:
        attach_init(
            model, spec, task.work, look=manager.look_before_loading, is_first=world.rank == 0,
            is_verified=isinstance(task.action, Train),
        )  # fmt: skip
    if isinstance(task.action, Find):  # the settings are tried alone
        model.configure_callbacks = list  # type: ignore[method-assign]
    attach_callbacks(model, spec, task.runtime.callbacks, task.work, is_new=state is None)
    trainer.fit(model, datamodule=data, ckpt_path=state, weights_only=True)
    return trainer, resumed_step, data.packs, consumed.result(trainer)


def _summary(trainer: pl.Trainer, best: BestCheckpoint, resumed_step: int) -> Trained:
    if not best.best_model_path:
        raise ConfigError(
            f"checkpoint.monitor={best.monitor} was never logged, so no weights can be chosen; set it to a metric that "
            f"the model logs ({', '.join(sorted(trainer.callback_metrics)) or 'none so far'})"
        )
    score = None if best.best_model_score is None else float(best.best_model_score)
    if score is not None and not math.isfinite(score):  # what Lightning makes of NaN
        raise Diverged(
            f"checkpoint.monitor={best.monitor} was never finite, so no weights can be chosen; lower "
            "optim.lr, set trainer.gradient_clip, or check the model's validation_step"
        )
    return Trained(
        best=Path(best.best_model_path),
        best_score=score,
        steps=trainer.global_step,
        epochs=trainer.current_epoch,
        stopped_early=trainer.current_epoch < (trainer.max_epochs or 0),
        resumed_step=resumed_step,
        is_compiled=is_compiled(trainer.lightning_module),
        own_optimizer=has_own_optimizer(trainer.lightning_module),
        parameters=frozenset(
            plain_name(name)
            for name, _ in trainer.lightning_module.named_parameters(remove_duplicate=False)
        ),
    )


def milestones_of(settings: Checkpoint) -> Milestones:
    """Return the milestones of a run."""
    given = settings.milestones
    if isinstance(given, list):
        return Milestones(epochs=frozenset(given))
    return Milestones(steps=frozenset(given.steps))


def check_validates(settings: RunSettings, model: pl.LightningModule) -> None:
    """Reject a model without a `validation_step`, since validation chooses the weights."""
    if not is_overridden("validation_step", model):
        raise ConfigError(
            f"{type(model).__name__} has no validation_step, so checkpoint.monitor="
            f"{settings.checkpoint.monitor} cannot be measured; add a validation_step that logs this metric"
        )


def check_manual(settings: RunSettings, model: pl.LightningModule) -> None:
    """Reject settings of optimiser steps that a model with manual optimisation takes itself."""
    trainer = settings.trainer
    if model.automatic_optimization:
        return
    if trainer.gradient_clip:
        raise ConfigError(
            f"trainer.gradient_clip={trainer.gradient_clip:g} has no effect on {type(model).__name__}, which takes its "
            "optimiser steps itself (automatic_optimization is False); call self.clip_gradients in training_step, and "
            "set trainer.gradient_clip to 0"
        )
    if trainer.accumulate > 1:
        raise ConfigError(
            f"trainer.accumulate={trainer.accumulate} has no effect on {type(model).__name__}, which takes its "
            "optimiser steps itself (automatic_optimization is False); accumulate in training_step, and set "
            "trainer.accumulate to 1"
        )


def _early_stopping(stopping: EarlyStoppingSettings) -> list[Callback]:
    if not stopping.patience:
        return []
    return [
        EarlyStopping(
            monitor=stopping.monitor,
            mode=stopping.mode,
            patience=stopping.patience,
            min_delta=stopping.min_delta,
            stopping_threshold=stopping.stopping_threshold,
            check_finite=True,
            check_on_train_epoch_end=False,
        )
    ]


def seal_model(trained: Trained, spec: RunSpec, path: Path) -> None:
    """Write the best weights as safetensors, all or nothing.

    Raises:
        Diverged: A weight is NaN or infinite.
    """
    seal_weights(load_file(trained.best), spec, path)


def seal_weights(weights: Mapping[str, torch.Tensor], spec: RunSpec, path: Path) -> None:
    """Write weights as safetensors, all or nothing; see `seal_model`."""
    for name, value in weights.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise Diverged(
                f'run "{spec.title}": weight {name} is NaN or infinite; lower optim.lr or set '
                "trainer.gradient_clip"
            )
    # only one key of metadata: safetensors does not write several keys in a fixed order
    sealed = {name: value.clone().contiguous() for name, value in sorted(weights.items())}
    write_bytes(path, save(sealed, metadata={"identity": spec.identity}))
