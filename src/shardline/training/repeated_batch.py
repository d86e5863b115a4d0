"""One batch of the best validation, evaluated again by a fresh model from the weights that are to be sealed.

This finds what the validation depended on and no sealed model has: values in callbacks, in plain attributes, in
buffers that are not persistent.
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

# of the largest value: another processor or order of sums, never another model
_TOLERANCES = {"64-true": 1e-9, "32-true": 1e-3}
_OF_SHORT_NUMBERS = 5e-2


def repeat_batch(
    spec: RunSpec, settings: RunSettings, world: World, data: ShardDataModule, best: Path,
    record: FirstBatchRecord | None, *, is_recorded_here: bool, is_error: bool, new_trainer: Callable[..., pl.Trainer],
) -> SealedCheck | None:  # fmt: skip
    """Evaluate the first batch of rank 0 again, and compare; each rank calls this.

    Args:
        settings: of the run, on the ranks that are there.
        data: of the training that is over.
        best: file of the weights that are to be sealed.
        record: of the validation that they are of, see `FirstBatch`; None if there is none.
        is_recorded_here: by this process, so that all bits are compared where the training is deterministic.
        is_error: whether a difference ends the run.
        new_trainer: gives the Trainer of some callbacks, a logger and the steps between its records.

    Returns:
        What the provenance records, on rank 0.

    Raises:
        ConfigError: a fresh model gives other values, or does not take the weights.
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
            f"warning: the sealed weights are not compared with their validation: {reason}",
            flush=True,
        )
        return SealedCheck(is_repeated=False, reason=reason)
    exact = settings.deterministic and is_recorded_here
    tolerance = 0.0 if exact else _TOLERANCES.get(settings.precision, _OF_SHORT_NUMBERS)
    found = differences(record["values"], values, tolerance)
    if found:
        _report(spec, record["step"], found, tolerance, is_error=is_error)
    return SealedCheck(
        is_repeated=True, step=record["step"], tolerance=tolerance, differences=found
    )


def _reason(settings: RunSettings, world: World, record: FirstBatchRecord | None) -> str:
    """Return why the batch cannot be evaluated again, empty if it can."""
    if settings.strategy == "fsdp":
        return "strategy=fsdp: no rank holds a whole model"
    if not record:
        return "rank 0 had no batch in the best validation"
    if not record["values"]:
        return "validation_step neither logs nor returns anything for a batch"
    if record["world_size"] != world.world_size:
        return f"the best validation was on {record['world_size']} ranks, and there are {world.world_size}"
    return ""


def _evaluate(
    spec: RunSpec, settings: RunSettings, data: ShardDataModule, best: Path, record: FirstBatchRecord,
    new_trainer: Callable[..., pl.Trainer],
) -> tuple[Values, str]:  # fmt: skip
    """Return what came of the batch, or the reason why nothing did."""
    pl.seed_everything(settings.seed, workers=True, verbose=False)
    model = make_model(spec, data.manifest.schema)
    if settings.precision == "64-true":
        model.double()
    model.configure_callbacks = list  # type: ignore[method-assign]  # weights alone, nothing around them
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
    return {}, "no batch came"


def _report(
    spec: RunSpec, step: int, found: list[str], tolerance: float, *, is_error: bool
) -> None:
    within = f"within {tolerance:g} of the largest value" if tolerance else "bit for bit"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    sentence = (
        f'run "{spec.title}": a fresh model with the weights that are to be sealed does not give what was validated: '
        f"of the first batch of the validation at step {step}, {found[0]}{more}; expected the same {within}; keep what "
        "the validation depends on in parameters and buffers of the model, not in callbacks, plain attributes or "
        "buffers with persistent=False, or set runtime.check_sealed: warn to seal it as it is"
    )
    if is_error:
        raise ConfigError(sentence)
    print(f"warning: {sentence}", flush=True)


class _BatchDone(Exception):
    """The batch has been evaluated."""


class _Again(Callback):
    """Has a model evaluate one batch as the recorded one was."""

    def __init__(self, best: Path, record: FirstBatchRecord) -> None:
        self.values: Values = {}
        self._best, self._record = best, record
        self._first_batch = FirstBatch()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Come behind the model's own hook, which may exchange weights, and draw numbers."""
        after_hook(pl_module, "on_validation_epoch_start", lambda: self._begin(pl_module))

    def _begin(self, module: pl.LightningModule) -> None:
        try:
            load_weights(module, load_file(self._best))
        except RuntimeError as error:
            what = " ".join(str(error).split())
            raise ConfigError(
                f"the weights that are to be sealed do not fit a fresh model: {what}; make every parameter and buffer "
                "in the model's constructor, and have its state_dict hold all that load_state_dict expects"
            ) from None
        self._first_batch.resume(module, self._record)

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any
    ) -> None:
        """End here: what follows would synchronise metrics."""
        self.values = self._first_batch.values(trainer, pl_module, outputs)
        raise _BatchDone
