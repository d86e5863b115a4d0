"""Evaluate one batch of the best validation again, by a fresh model with the weights that will be sealed.

A difference shows that the validation used values that sealed weights do not contain, such as values in callbacks, in
plain attributes or in buffers that are not persistent.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch.distributed as dist
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers.logger import DummyLogger
from safetensors.torch import load_file

from shardline.checkpoints.boundaries import after_hook
from shardline.checkpoints.first_batch import FirstBatch, FirstBatchRecord, Values, differences
from shardline.checkpoints.weights import load_weights
from shardline.config.resolved import RunSpec
from shardline.config.settings.run_settings import RunSettings
from shardline.core.error_texts import short_traceback
from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import ignore_signals, set_place
from shardline.core.world import World
from shardline.data.datamodule import ShardDataModule
from shardline.records.measured import SealedCheck
from shardline.training.model import make_model
from shardline.training.precision import round_weights

# relative to the largest value: allows for another processor or order of sums, not another model
_TOLERANCES = {"64-true": 1e-9, "32-true": 1e-3}
_OF_SHORT_NUMBERS = 5e-2


def repeat_batch(
    spec: RunSpec, settings: RunSettings, world: World, data: ShardDataModule, best: Path,
    record: FirstBatchRecord | None, *, is_exact: bool, is_error: bool, new_trainer: Callable[..., pl.Trainer],
) -> SealedCheck | None:  # fmt: skip
    """Evaluate the first batch of rank 0 again and compare the values; each rank must call this.

    Args:
        settings: The run's settings for the actual number of ranks.
        data: Data module of the ended training.
        best: File of the weights that will be sealed.
        record: First batch of the validation of these weights, see `FirstBatch`; None if there is none.
        is_exact: Whether a deterministic training must be bit-identical, since this process made the record.
        is_error: Whether a difference raises an error.
        new_trainer: Function that makes a Trainer from callbacks, a logger and the steps between records.

    Returns:
        The result for the provenance on rank 0, None on other ranks.

    Raises:
        ConfigError: A fresh model returns other values, or the weights do not fit it.
    """
    reason = _reason(settings, world, record)
    if world.world_size > 1:
        shared: list[Any] = [reason, record]
        dist.broadcast_object_list(shared)
        reason, record = shared
    if reason or not record:
        return SealedCheck(is_repeated=False, reason=reason)
    values, reason = _evaluate(spec, settings, data, best, record, new_trainer)
    if world.rank:
        return None
    if reason:
        print(
            f"warning: the sealed weights were not compared with their validation: {reason}",
            flush=True,
        )
        return SealedCheck(is_repeated=False, reason=reason)
    exact = settings.deterministic and is_exact
    tolerance = 0.0 if exact else _TOLERANCES.get(settings.precision, _OF_SHORT_NUMBERS)
    found = differences(record["values"], values, tolerance)
    if found:
        _report(spec, record["step"], found, tolerance, is_error=is_error)
    return SealedCheck(
        is_repeated=True, step=record["step"], tolerance=tolerance, differences=found
    )


def _reason(settings: RunSettings, world: World, record: FirstBatchRecord | None) -> str:
    """Return why the batch cannot be evaluated again; empty if it can."""
    if settings.strategy == "fsdp":
        return "strategy=fsdp: no rank has a whole model"
    if not record:
        return "rank 0 had no batch in the best validation"
    if not record["values"]:
        return "validation_step neither logs nor returns anything for a batch"
    if record["world_size"] != world.world_size:
        return f"the best validation ran on {record['world_size']} ranks, and now there are {world.world_size}"
    return ""


def _evaluate(
    spec: RunSpec, settings: RunSettings, data: ShardDataModule, best: Path, record: FirstBatchRecord,
    new_trainer: Callable[..., pl.Trainer],
) -> tuple[Values, str]:  # fmt: skip
    """Return the values of the batch, or the reason why there are none."""
    pl.seed_everything(settings.seed, workers=True, verbose=False)
    model = make_model(spec, data.manifest.schema)
    round_weights(model, settings.precision)
    model.configure_callbacks = list  # type: ignore[method-assign]  # weights alone, no callbacks
    again = _Again(best, record)
    trainer = new_trainer([again], DummyLogger(), 1)
    ignore_signals(trainer)
    set_place(trainer, epoch=record["epoch"], step=record["step"])
    try:
        trainer.validate(model, datamodule=data, verbose=False)
    except _BatchDone:
        return again.values, ""
    except ConfigError:
        raise
    except Exception as error:
        return (
            {},
            f"a fresh model fails in its validation: {short_traceback(error).splitlines()[0]}",
        )
    return {}, "the validation had no batch"


def _report(
    spec: RunSpec, step: int, found: list[str], tolerance: float, *, is_error: bool
) -> None:
    within = f"within {tolerance:g} of the largest value" if tolerance else "bit for bit"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    sentence = (
        f'run "{spec.title}": a fresh model with the best weights does not repeat its validation: in the first batch '
        f"of the validation at step {step}, {found[0]}{more}; expected the same {within}; keep all values that the "
        "validation uses in parameters and persistent buffers of the model, not in callbacks or plain attributes, or "
        "set runtime.check_sealed: warn to seal the weights as they are"
    )
    if is_error:
        raise ConfigError(sentence)
    print(f"warning: {sentence}", flush=True)


class _BatchDone(Exception):
    """The batch was evaluated, and the validation can end."""


class _Again(Callback):
    """Restores weights and random state before a validation, and ends it after the first batch."""

    def __init__(self, best: Path, record: FirstBatchRecord) -> None:
        self.values: Values = {}
        self._best, self._record = best, record
        self._first_batch = FirstBatch()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Act after the model's own hook, which may exchange weights or draw random numbers."""
        after_hook(pl_module, "on_validation_epoch_start", lambda: self._begin(pl_module))

    def _begin(self, module: pl.LightningModule) -> None:
        try:
            load_weights(module, load_file(self._best))
        except RuntimeError as error:
            what = " ".join(str(error).split())
            raise ConfigError(
                f"the best weights do not fit a fresh model: {what}; create all parameters and buffers in the "
                "model's constructor, and return everything from state_dict that load_state_dict expects"
            ) from None
        self._first_batch.resume(module, self._record)

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any
    ) -> None:
        """End the validation before Lightning synchronises metrics with other ranks."""
        self.values = self._first_batch.values(trainer, pl_module, outputs)
        raise _BatchDone
