"""Check a model before its data is built: train one step on two rows, on the CPU.

The check runs the same code as a training: construct, train a step, validate, save a training checkpoint, resume from
it in a second model, train another step and seal. Then the sealed weights are evaluated.
"""

import math
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from msgspec.structs import replace
from pytorch_lightning.callbacks import Callback
from safetensors.torch import save_file

from shardline.checkpoints.folder import list_saved
from shardline.checkpoints.manifest import CheckpointPolicy
from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.config.schedules import fitting
from shardline.config.settings.run_settings import Data, RunSettings
from shardline.core.errors import ConfigError, DataError, ShardlineError
from shardline.core.suggest import did_you_mean
from shardline.core.world import World
from shardline.data.classes import weights_of_classes
from shardline.data.dataset import read_manifest
from shardline.training.check_errors import sort_error
from shardline.training.checked_rows import (
    Known,
    NotReadableError,
    build_rows,
    limit_memory,
    read_once,
)
from shardline.training.evaluate import evaluate
from shardline.training.fit import check_manual, seal_model, train
from shardline.training.model import make_model
from shardline.training.optim import has_own_optimizer
from shardline.training.rank_task import Check, ModelResult, RankTask, write_result
from shardline.training.stop_agreement import StepsDone
from shardline.training.strategies import SteadyDDPStrategy
from shardline.training.uncounted_check import compare

_STEP = "does a training step on two rows"
_STEPS = 1000  # length of the training for schedules, at least; only two steps are done
_ROWS = 2


def check_models(tasks: Sequence[RankTask], world: World) -> None:
    """Check each model, and write its result as soon as it is checked."""
    known: Known = {}
    for number, task in enumerate(tasks):
        assert isinstance(task.action, Check)
        if number == 0:  # libraries have mapped their memory by now
            limit_memory(task.action.memory_bytes)
        write_result(task.action.output, check_model(task, task.action, world, known))


def check_model(
    task: RankTask, action: Check, world: World, known: Known | None = None
) -> ModelResult:
    """Check a model on the first rows of its datasets.

    Args:
        known: Rows that were read for other models; new rows are added.
    """
    found, known = ModelResult(), {} if known is None else known
    task = _with_base(task)
    try:
        pack = task.run.settings.data.pack
        read = [read_once(one, pack, known) for one in action.sources]
        found.inferred = {
            one.name: rows.inferred for one, rows in zip(action.sources, read, strict=True)
        }
        with TemporaryDirectory(dir=task.work) as folder:
            places = [
                build_rows(one, rows, pack, Path(folder) / str(number))
                for number, (one, rows) in enumerate(zip(action.sources, read, strict=True))
            ]
            _Trial(task, action, world, places, Path(folder)).check(found)
        found.num_rows = read[0].num_rows if len(read) == 1 else None
    except NotReadableError as error:
        name = task.run.model or task.run.model_class
        found.not_checked.append(f"model={name} was not checked: {error}")
    except (ShardlineError, MemoryError) as error:
        doing, is_elsewhere = "reads its first rows", action.is_elsewhere
        sort_error(error, task.run, doing, found, is_elsewhere=is_elsewhere)
    return found


def _with_base(task: RankTask) -> RankTask:
    """Return the task with the weights to compare; none of a run that is not trained yet."""
    init = task.run.init
    if init is not None and init.source == "run":
        # the sealed weights have the names of every state
        given = init if init.state == "best" else replace(init, part="")
        return replace(task, run=replace(task.run, init=given if init.file.exists() else None))
    return task


class _Trial:
    """Trains the model of one check.

    Args:
        places: Datasets of a few rows with the schemas of the run's datasets, see `data.first_rows`.
        folder: Folder for temporary files.
    """

    def __init__(
        self, task: RankTask, action: Check, world: World, places: Sequence[DatasetPlace], folder: Path
    ) -> None:  # fmt: skip
        settings = task.run.settings
        self._asked, self._action, self._world = task.run, action, world
        self._is_grouped = settings.strategy == "ddp" and settings.nodes * settings.devices > 1
        self._folder = folder
        runtime = replace(
            task.runtime, checkpoint=CheckpointPolicy(asynchronous=False), log_every_steps=1,
            ledger=False, verify="off", watch_reads="off", hang_timeout_s=0.0, profiler="off",
            detect_anomaly=False, model_summary=False,
        )  # fmt: skip
        self._task = replace(
            task,
            run=replace(task.run, settings=_on_two_rows(settings)),
            datasets=tuple(places),
            work=folder / "training",
            runtime=runtime,
            geometry=None,
        )

    def check(self, found: ModelResult) -> None:
        """Add problems, and checks that this machine cannot do, to the result."""
        watch, doing = _Watch(self._asked, found), _STEP
        try:
            weights = self._asked.settings.data.class_weights
            weights_of_classes(weights, read_manifest(self._task.datasets[0].manifest))
            with suppress(StepsDone):
                self._train(watch)
            watch.check_trained()
            if found.problems:
                return
            doing = "is saved and loaded back"
            found.state_bytes = list_saved(self._task.work / "checkpoints")[0].bytes
            watch.num_epochs += 1
            trained = self._train(watch)
            sealed = self._folder / "model.safetensors"
            seal_model(trained, self._task.run, sealed)
            self._leave()
            doing = "trains with runtime.callbacks"
            self._compare_callbacks(found)
            doing = "is evaluated"
            self._evaluate(sealed, has_test_step=self._action.has_test_step)
        except Exception as error:
            self._leave()
            wrong = self._wrong_outputs(watch.model) if doing == _STEP else None
            if doing == _STEP and make_model.__name__ in _functions(error):
                doing = "is constructed"
            is_elsewhere = self._action.is_elsewhere
            sort_error(wrong or error, self._asked, doing, found, is_elsewhere=is_elsewhere)
        finally:
            self._leave()
        # the folder is temporary: its path tells a user nothing
        place = re.compile(rf" {re.escape(str(self._folder))}\S*")
        found.problems = [place.sub("", sentence) for sentence in found.problems]

    def _train(self, watch: "_Watch") -> Any:
        return train(
            self._task,
            self._world,
            [watch],
            set_by_row=self._action.set_by_row,
            is_grouped=self._is_grouped,
        )

    def _compare_callbacks(self, found: ModelResult) -> None:
        """Add a sentence for each callback of `runtime.callbacks` that changes a result."""
        number = count()

        def train_with(callbacks: Sequence[Any], watch: Callback) -> None:
            runtime = replace(self._task.runtime, callbacks=[*callbacks])
            task = replace(
                self._task, work=self._folder / f"compared-{next(number)}", runtime=runtime
            )
            with suppress(StepsDone):
                train(task, self._world, [watch], is_grouped=self._is_grouped)
            self._leave()

        if listed := self._task.runtime.callbacks:
            problems, not_checked = compare(train_with, listed)
            found.problems += problems
            found.not_checked += not_checked

    def _leave(self) -> None:
        """End the process group of the training; the evaluation needs none."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _evaluate(self, weights: Path, *, has_test_step: bool) -> None:
        evaluate(
            self._task.run,
            model_file=weights,
            datasets=self._task.datasets,
            verify="off",
            has_test_step=has_test_step,
        )

    def _wrong_outputs(self, model: pl.LightningModule | None) -> DataError | None:
        """Evaluate the model after a failed training step, and return an error about its outputs.

        Too few outputs for the labels are an IndexError in the loss, which does not name the cause.
        """
        if self._action.has_test_step or model is None:
            return None
        file = self._folder / "untrained.safetensors"
        try:
            weights = {name: one.clone().contiguous() for name, one in model.state_dict().items()}
            save_file(weights, file)
            self._evaluate(file, has_test_step=False)
        except DataError as error:
            return error
        except Exception:
            return None
        return None


def _on_two_rows(settings: RunSettings) -> RunSettings:
    """Return the settings for one CPU rank whose epoch and global batch are two rows."""
    data, trainer = settings.data, settings.trainer
    weights = "balanced" if isinstance(data.class_weights, dict) else data.class_weights
    small: Data = replace(
        data, streams=1, epoch="pass", partition_shards=1, workers=0, epoch_samples=None, class_weights=weights
    )  # fmt: skip
    return replace(
        settings,
        global_batch=_ROWS,
        nodes=1,
        devices=1,
        accelerator="cpu",
        data=small,
        trainer=replace(
            trainer,
            accumulate=1,
            validate_every_epochs=1,
            max_epochs=max(_STEPS, trainer.max_epochs),
            min_epochs=0,
            max_steps=-1,
            min_steps=0,
            val_check_interval=1.0,
            limit_train_batches=1.0,
            limit_val_batches=1.0,
            overfit_batches=0,
            sync_batchnorm=False,
        ),
        schedule=fitting(settings.schedule, _STEPS),
        # the loss of two rows may be larger than that of a batch
        divergence=replace(settings.divergence, max_loss=None),
    )


class _Watch(Callback):
    """Ends a training after its first epochs, and makes checks that a training does not make.

    Attributes:
        num_epochs: 1: interrupt the training after the first epoch; 2: end it after the second.
        model: The model, once `setup` was called.
    """

    def __init__(self, run: RunSpec, found: ModelResult) -> None:
        self._run, self._found = run, found
        self._name = run.model or run.model_class
        self._has_loss = False
        self.num_epochs = 1
        self.model: pl.LightningModule | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Record the model and its size."""
        check_manual(self._run.settings, pl_module)
        if self.model is None:
            self.model, self._found.weights_bytes = pl_module, _bytes_of(pl_module)
            self._found.own_optimizer = has_own_optimizer(pl_module)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Interrupt the training once the first epoch is saved."""
        if trainer.current_epoch >= self.num_epochs:
            raise StepsDone

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor
    ) -> None:
        """Reject a loss that is not a finite scalar."""
        self._has_loss = True
        if loss.numel() != 1:
            raise ConfigError(
                f"model={self._name}: training_step returned a loss of shape {list(loss.shape)}, expected a scalar; "
                "reduce it, for example with .mean()"
            )
        if not math.isfinite(value := float(loss.detach())):
            raise ConfigError(
                f"model={self._name}: training_step returned the loss {value} for the first {_ROWS} rows, expected a "
                "finite number; look for a logarithm or a division by zero in the model, and for rows that are all "
                "masked"
            )

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Reject a step without a loss or, for several ranks, without a gradient for each parameter."""
        self.check_trained()
        if isinstance(trainer.strategy, SteadyDDPStrategy):
            trainer.strategy.check_gradients()

    def check_trained(self) -> None:
        """Reject a training step that returns no loss."""
        if not (self._has_loss or self._found.problems):
            raise ConfigError(
                f"model={self._name}: training_step returned no loss for the first {_ROWS} rows, expected a scalar; "
                "return it, or call manual_backward where automatic_optimization is False"
            )

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report all monitored metrics that are not logged; end the second training."""
        schedules = trainer.lr_scheduler_configs
        plateaus = [one for one in schedules if one.reduce_on_plateau and one.strict]
        key = "schedule.monitor" if self._run.settings.schedule.monitor else "lr_scheduler.monitor"
        watched = {key: str(plateaus[0].monitor)} if plateaus else {}
        self._found.problems += _unlogged(
            self._run.settings, watched, sorted(trainer.callback_metrics)
        )
        if self._found.problems:
            raise StepsDone
        trainer.should_stop = trainer.should_stop or self.num_epochs > 1


def _unlogged(settings: RunSettings, watched: dict[str, str], names: list[str]) -> Iterator[str]:
    """Yield a sentence for each monitored metric that is not logged.

    Args:
        watched: Metrics that schedules monitor, by their setting in messages.
        names: Metrics that are logged when a validation ends.
    """
    wanted = {"checkpoint.monitor": settings.checkpoint.monitor}
    if settings.early_stopping.patience:
        wanted["early_stopping.monitor"] = settings.early_stopping.monitor
    wanted |= watched
    for metric in dict.fromkeys(wanted.values()):
        if metric in names:
            continue
        keys = " and ".join(key for key, named in wanted.items() if named == metric)
        remedy = "call self.log in validation_step"
        if names:
            nearest = did_you_mean(metric, names, otherwise="name one of these", cutoff=0.5)
            remedy = (
                f"{nearest} Or log it in validation_step"
                if "?" in nearest
                else f"{nearest}, or log it in validation_step"
            )
        yield (
            f"{keys}={metric} is not logged by the model's validation, which logs {', '.join(names) or 'nothing'}; "
            f"{remedy}"
        )


def _functions(error: Exception) -> set[str]:
    return {frame.name for frame in traceback.extract_tb(error.__traceback__)}


def _bytes_of(model: torch.nn.Module) -> int:
    tensors = [one for one in model.state_dict().values() if isinstance(one, torch.Tensor)]
    return sum(one.numel() * one.element_size() for one in tensors)
