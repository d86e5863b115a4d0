"""A model, checked by one real training step on two rows, on the CPU.

Everything is made by what a training uses: the data module over a dataset of the source's first
rows, the model, its optimiser and schedule. The step is followed by a validation, the training's
state is saved and loaded into another model, which does a step, and the sealed weights are evaluated.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_utilities.core.apply_func import apply_to_collection
from msgspec.structs import replace
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from safetensors.torch import save_file

from shardline.checkpoints.averaging import check_averaging
from shardline.checkpoints.sharded import gather_weights
from shardline.config.run_spec import DatasetPlace, RunSpec
from shardline.config.settings.run import Data, RunSettings
from shardline.core.errors import ConfigError, DataError
from shardline.core.lightning_compat import dump_state, new_trainer
from shardline.core.suggest import did_you_mean
from shardline.core.world import World
from shardline.data.classes import weights_of_classes
from shardline.data.collate import Batch
from shardline.data.datamodule import ShardDataModule
from shardline.training.check_errors import sort_error
from shardline.training.check_spec import ModelResult
from shardline.training.divergence import check_policy
from shardline.training.evaluate import evaluate
from shardline.training.fit import check_validates
from shardline.training.metrics import JsonLinesLogger
from shardline.training.model import make_model
from shardline.training.optim import attach_optimizer
from shardline.training.quiet import quieten_lightning
from shardline.training.strategies import SteadyDDPStrategy
from shardline.training.trainer import WorldEnvironment

_WORLD = World(
    rank=0, local_rank=0, world_size=1, local_world_size=1, master_addr="localhost", master_port=0, launcher="none"
)  # fmt: skip
_STEP = "does a training step on two rows"
_STEPS = 1000  # of an epoch, as schedules see it; one step is done
_ROWS = 2


def check_model(
    spec: RunSpec, places: Sequence[DatasetPlace], folder: Path, *,
    set_by_row: Sequence[str] = (), has_test_step: bool = False, is_elsewhere: bool = False,
) -> ModelResult:  # fmt: skip
    """Check a run's model.

    Args:
        places: datasets of a few rows with the schemas of the run's, see `data.first_rows`.
        folder: for what is written meanwhile.
        set_by_row: settings that the run's own row sets.
        has_test_step: whether its evaluation is by `test_step`.
        is_elsewhere: whether jobs have packages of their own.

    Returns:
        What is wrong, and what could not be checked on this machine.
    """
    found = ModelResult()
    trial = _Trial(spec, places, folder, set_by_row)
    doing, model = "is constructed", None
    try:
        data = trial.data()
        weights_of_classes(spec.settings.data.class_weights, data.manifest)
        model = trial.model(data)
        found.weights_bytes = _bytes_of(model)
        doing = _STEP
        watch = trial.fit(model, data)
        found.problems += _monitors(spec.settings, watch)
        doing = "is saved and loaded back"
        found.state_bytes = trial.resume(watch)
        trial.leave()
        doing = "is evaluated"
        trial.evaluate(watch.weights, has_test_step=has_test_step)
    except Exception as error:
        # too few outputs for the labels: an IndexError of the loss tells nobody
        wrong = trial.wrong_outputs(model) if doing == _STEP and not has_test_step else None
        sort_error(wrong or error, spec, doing, found, is_elsewhere=is_elsewhere)
    finally:
        trial.leave()
    return found


def _on_two_rows(settings: RunSettings) -> RunSettings:
    """Return the settings with which two rows are a global batch of one rank on the CPU."""
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
        strategy="ddp",
        elastic=False,
        precision="64-true" if settings.precision == "64-true" else "32-true",
        data=small,
        trainer=replace(trainer, accumulate=1, validate_every_epochs=1),
    )


class _Trial:
    """Makes and trains the models of one check."""

    def __init__(
        self, spec: RunSpec, places: Sequence[DatasetPlace], folder: Path, set_by_row: Sequence[str]
    ) -> None:
        settings = spec.settings
        self._spec = replace(spec, settings=_on_two_rows(settings))
        self._places, self._folder = places, folder
        self._set_by_row = set_by_row
        self._is_sharded = settings.strategy == "fsdp"
        self._is_ddp = settings.strategy == "ddp" and settings.nodes * settings.devices > 1
        quieten_lightning()

    def data(self) -> "_TwoRows":
        pl.seed_everything(self._spec.settings.seed, workers=True, verbose=False)
        return _TwoRows(self._spec.settings, self._places, _WORLD, verify="off")

    def model(self, data: ShardDataModule) -> pl.LightningModule:
        spec = self._spec
        model = make_model(spec, data.manifest["schema"])
        if spec.settings.precision == "64-true":
            model.double()
        steps = _STEPS * spec.settings.trainer.max_epochs
        attach_optimizer(model, spec, total_steps=steps, set_by_row=self._set_by_row)
        check_validates(spec.settings, model)
        check_policy(spec.settings, model, spec.title)
        return model

    def fit(self, model: pl.LightningModule, data: ShardDataModule) -> "_Watch":
        watch = self._watch()
        self._trainer(watch).fit(model, datamodule=data)
        watch.check_trained()
        return watch

    def resume(self, watch: "_Watch") -> int:
        """Load the state into another model that does a step; returns the size of the state."""
        file, data = self._folder / "state.ckpt", self.data()
        torch.save(watch.state, file)
        again = self._watch()
        self._trainer(again).fit(
            self.model(data), datamodule=data, ckpt_path=file, weights_only=True
        )
        return file.stat().st_size

    def leave(self) -> None:
        """End the process group of the training, which an evaluation does without."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def evaluate(self, weights: Mapping[str, torch.Tensor], *, has_test_step: bool) -> None:
        file, spec = self._folder / "model.safetensors", self._spec
        save_file({key: one.clone().contiguous() for key, one in weights.items()}, file)
        evaluate(
            spec,
            model_file=file,
            datasets=self._places,
            verify="off",
            has_test_step=has_test_step,
        )

    def wrong_outputs(self, model: pl.LightningModule | None) -> DataError | None:
        """Return the error of an evaluation that refuses the outputs of a model, trained or not."""
        try:
            self.evaluate(model.state_dict() if model else {}, has_test_step=False)
        except DataError as error:
            return error
        except Exception:
            return None
        return None

    def _watch(self) -> "_Watch":
        return _Watch(self._spec, is_sharded=self._is_sharded)

    def _trainer(self, watch: "_Watch") -> pl.Trainer:
        settings = self._spec.settings
        return new_trainer(
            accelerator="cpu", devices=1, precision=settings.precision,
            max_epochs=settings.trainer.max_epochs, val_check_interval=1,
            gradient_clip_val=settings.trainer.gradient_clip or None,
            deterministic=settings.deterministic, num_sanity_val_steps=0,
            # a ModelCheckpoint that saves nothing, or Lightning adds one that does
            callbacks=[watch, ModelCheckpoint(dirpath=self._folder, save_top_k=0)],
            logger=JsonLinesLogger(self._folder / "metrics.jsonl"), log_every_n_steps=1,
            default_root_dir=self._folder, **self._strategy(),
            use_distributed_sampler=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip

    def _strategy(self) -> dict[str, Any]:
        """Return the strategy of the run as Trainer takes it: DDP of one rank refuses what several would."""
        if not self._is_ddp:
            return {"plugins": [LightningEnvironment()]}
        if not dist.is_initialized():
            store = dist.HashStore()  # type: ignore[attr-defined]  # not in its stub
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        unused = self._spec.settings.ddp.find_unused_parameters
        return {
            "strategy": SteadyDDPStrategy(
                cluster_environment=WorldEnvironment(_WORLD), process_group_backend="gloo",
                find_unused_parameters=unused,
            )
        }  # fmt: skip


class _TwoRows(ShardDataModule):
    """Data of a run whose only training batch comes again and again, so that schedules see a long epoch."""

    def train_dataloader(self) -> Any:
        """Return the batches."""
        return _Repeated(super().train_dataloader())


class _Repeated:
    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return _STEPS

    def __iter__(self) -> Iterator[Batch]:
        first = next(iter(self._batches))
        for _ in range(_STEPS):
            yield first


class _Watch(Callback):
    """Ends a training after its first step and validation, and keeps what is to be known of them.

    Attributes:
        logged: metrics that are known when the validation ends, as what chooses weights sees them.
        monitors: what schedules watch, by what messages call it.
        state: the training's state then.
        weights: the model's.
    """

    def __init__(self, spec: RunSpec, *, is_sharded: bool) -> None:
        self._is_sharded = is_sharded
        self._model = spec.model or spec.model_class
        self.logged: set[str] = set()
        self.monitors: dict[str, str] = {}
        self.state: dict[str, Any] = {}
        self.weights: dict[str, torch.Tensor] = {}
        self._has_loss = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse callbacks of the model's that a training would refuse."""
        check_averaging(trainer.callbacks, pl_module, is_sharded=self._is_sharded)  # type: ignore[attr-defined]

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor
    ) -> None:
        """Refuse a loss that is no finite number."""
        self._has_loss = True
        if loss.numel() != 1:
            raise ConfigError(
                f"model={self._model}: training_step returned a loss of shape {list(loss.shape)}, expected a scalar; "
                "reduce it, for instance by .mean()"
            )
        if not math.isfinite(value := float(loss.detach())):
            raise ConfigError(
                f"model={self._model}: training_step returned the loss {value} for the first {_ROWS} rows, expected a "
                "finite number; look for a logarithm or a division by zero in the model, and for rows that are all "
                "masked"
            )

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Refuse a step that leaves out parameters, where several ranks need the gradients of all."""
        if isinstance(trainer.strategy, SteadyDDPStrategy):
            trainer.strategy.check_gradients()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep what the validation has logged, and the state."""
        if not self.state:
            self.logged = set(trainer.callback_metrics)
            schedules = trainer.lr_scheduler_configs
            plateaus = [one for one in schedules if one.reduce_on_plateau and one.strict]
            if plateaus:
                self.monitors = {"lr_scheduler.monitor": str(plateaus[0].monitor)}
            # its tables are callbacks' own, which go on to change them
            self.state = apply_to_collection(dump_state(trainer), torch.Tensor, lambda one: one)
            self.weights = gather_weights(pl_module)
        trainer.should_stop = True

    def check_trained(self) -> None:
        """Refuse a training step that trains nothing."""
        if not self._has_loss:
            raise ConfigError(
                f"model={self._model}: training_step returned no loss for the first {_ROWS} rows, expected a scalar; "
                "return it, or call manual_backward where automatic_optimization is False"
            )


def _monitors(settings: RunSettings, watch: _Watch) -> Iterator[str]:
    """Yield what is watched and never logged."""
    wanted = {"checkpoint.monitor": settings.checkpoint.monitor}
    if settings.early_stopping.patience:
        wanted["early_stopping.monitor"] = settings.early_stopping.monitor
    wanted |= watch.monitors
    names = sorted(watch.logged)
    for metric in dict.fromkeys(wanted.values()):
        if metric in watch.logged:
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


def _bytes_of(model: torch.nn.Module) -> int:
    tensors = [one for one in model.state_dict().values() if isinstance(one, torch.Tensor)]
    return sum(one.numel() * one.element_size() for one in tensors)
