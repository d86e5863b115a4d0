"""The callbacks of a run: those that the model returns from `configure_callbacks` and those of the settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning import callbacks as lightning
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.model_helpers import is_overridden

from shardline.checkpoints.arrangement import is_uncounted, set_uncounted
from shardline.checkpoints.own_checkpoints import use_work_folder
from shardline.config.callbacks import (
    CALLBACKS,
    LIGHTNING_CALLBACKS,
    RUNTIME_CALLBACKS,
    read_callbacks,
)
from shardline.config.resolved import RunSpec
from shardline.config.settings.run_settings import RunSettings, Trainer
from shardline.core.construct import make_object
from shardline.core.errors import ConfigError

_FINDS = "changes the run while it trains, so its result would depend on the machine"
_REFUSED = {
    lightning.LearningRateFinder: (
        f"{_FINDS}; remove it, run `shardline find lr RUN`, and set optim.lr to a rate that the command prints"
    ),
    lightning.BatchSizeFinder: (
        f"{_FINDS}; remove it, run `shardline find batch RUN`, and set global_batch to the number that the command "
        "prints"
    ),
    lightning.ProgressBar: (
        "draws a bar, which logs of jobs cannot show; remove it, since Shardline prints a line of progress every two "
        "seconds"
    ),
    lightning.ModelPruning: (
        "renames the parameters while it trains, so sealed weights would not fit the model; remove it, and prune the "
        "sealed model"
    ),
    lightning.SpikeDetection: (
        "skips batches by a file of its own, which no identity contains; remove it, and set divergence.max_loss and "
        "divergence.policy"
    ),
    lightning.BasePredictionWriter: (
        "acts only in Trainer.predict, which Shardline does not call; remove it, and list the run under `predictions` "
        "in the config"
    ),
}  # fmt: skip


_OF_STEPS = ("max_steps", "min_steps", "val_check_interval")
_RUNTIME = {  # end a training, or change its steps or weights by their purpose
    lightning.BaseFinetuning, lightning.EarlyStopping, lightning.GradientAccumulationScheduler,
    lightning.StochasticWeightAveraging, lightning.WeightAveraging,
}  # fmt: skip


def attach_callbacks(
    model: pl.LightningModule, spec: RunSpec, runtime: Sequence[Any], work: Path, *, is_new: bool
) -> None:
    """Let Lightning train a model with all callbacks of its run.

    Lightning removes callbacks of a Trainer whose class the model's callbacks have too, without a message. So the
    model's callbacks are added here.

    Args:
        model: Model before its training.
        spec: Run, whose `callbacks` come after the model's.
        runtime: Value of `runtime.callbacks`, which come last.
        work: Work folder of the run.
        is_new: Whether the training starts from the beginning.
    """
    hook = model.configure_callbacks

    def configure_callbacks() -> list[Callback]:
        returned: Any = hook()
        found = [returned] if isinstance(returned, Callback) else [*(returned or [])]
        found += make_callbacks(spec.settings.callbacks, CALLBACKS, spec.title)
        uncounted = make_callbacks(runtime, RUNTIME_CALLBACKS, spec.title)
        for one in uncounted:
            set_uncounted(one)
        trainer: Any = model.trainer
        for problem in problems_of([*found, *uncounted], trainer.callbacks, spec.settings):
            raise ConfigError(problem)
        found += uncounted
        for one in found:
            if isinstance(one, lightning.ModelCheckpoint):
                use_work_folder(one, work, is_new=is_new)
            if isinstance(one, lightning.GradientAccumulationScheduler):
                trainer.datamodule.batches_per_step = one.get_accumulate_grad_batches
        # Lightning calls callbacks that save last
        together = [*trainer.callbacks, *found]
        trainer.callbacks = sorted(together, key=lambda one: isinstance(one, lightning.Checkpoint))
        return []

    model.configure_callbacks = configure_callbacks  # type: ignore[method-assign]


def make_callbacks(written: Sequence[Any], key: str, title: str) -> list[Callback]:
    """Make the callbacks of a setting.

    Args:
        written: Value of the setting.
        key: Dotted key of the setting.
        title: Run, for messages.

    Raises:
        ConfigError: An object cannot be made, or is no callback.
    """
    made, where = [], f'run "{title}"'
    for named in read_callbacks(written, key, where):
        if named.path == LIGHTNING_CALLBACKS["GradientAccumulationScheduler"]:
            named = replace(named, arguments=_with_epochs(named.arguments))
        one = make_object(named, where)
        if not isinstance(one, Callback):
            raise ConfigError(
                f"{where}: {named.shown} makes an object of {type(one).__name__}, expected a callback; derive its "
                "class from Callback of Lightning"
            )
        made.append(one)
    return made


def _with_epochs(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with numbers as keys, which a config cannot have."""
    factors = arguments.get("scheduling")
    if not isinstance(factors, Mapping):
        return dict(arguments)
    return {
        **arguments,
        "scheduling": {
            int(epoch) if str(epoch).isdecimal() else epoch: one for epoch, one in factors.items()
        },
    }


def problems_of(
    found: Sequence[Any], ours: Sequence[Callback], settings: RunSettings
) -> Iterator[str]:
    """Yield a sentence for each callback that cannot be right here.

    Args:
        found: Callbacks of the run.
        ours: Shardline's callbacks.
    """
    for one in found:
        if not isinstance(one, Callback):
            yield f"configure_callbacks returns an object of {_named(one)}, expected callbacks of Lightning; derive it"
        elif reason := _reason(one, settings):
            yield f"the callback {_named(one)} {reason}"
        elif is_uncounted(one) and isinstance(one, tuple(_RUNTIME)):
            yield (
                f"the callback {_named(one)} of runtime.callbacks changes the result, expected none that does; list it "
                "under `callbacks` of the run, which count in the identity"
            )
    keys = {one.state_key: one for one in ours if _has_state(one)}
    for one in filter(_has_state, found):
        if one.state_key in keys and isinstance(one, lightning.EarlyStopping):
            yield (
                f"the callback {_named(one)} watches {one.monitor}, and so does early_stopping.monitor or another "
                "callback, expected one of them; set early_stopping.patience: 0, or remove the callback"
            )
        elif one.state_key in keys:
            yield (
                f"two callbacks have the state_key {one.state_key}, so a training checkpoint would contain the state "
                f"of only one; give {_named(one)} a property state_key with another value for each"
            )
        keys[one.state_key] = one


def _reason(one: Callback, settings: RunSettings) -> str:
    """Return why a callback cannot be right, and what to do; empty if it can."""
    for cls, reason in _REFUSED.items():
        if isinstance(one, cls):
            return reason
    if isinstance(one, lightning.Timer) and one.time_remaining() is not None:
        return (
            "ends the training after a time, so its result would depend on the machine; remove its duration, and set "
            "trainer.max_epochs"
        )
    if isinstance(one, lightning.GradientAccumulationScheduler):
        return _reason_of_accumulation(settings)
    return _reason_of_saving(one, settings) if isinstance(one, lightning.Checkpoint) else ""


def _reason_of_accumulation(settings: RunSettings) -> str:
    accumulate = settings.trainer.accumulate
    if accumulate > 1 or settings.elastic:
        key = "elastic=true" if settings.elastic else f"trainer.accumulate={accumulate}"
        return (
            f"sums gradients over whole global batches, and {key} splits a global batch; remove {key}, or remove the "
            "callback and choose a larger global_batch"
        )
    plain = Trainer()
    for name in _OF_STEPS:
        if getattr(settings.trainer, name) != getattr(plain, name):
            return (
                f"changes how many batches a step has, and trainer.{name} counts steps; remove trainer.{name}, or "
                "remove the callback"
            )
    return ""


def _reason_of_saving(one: Callback, settings: RunSettings) -> str:
    if not isinstance(one, lightning.ModelCheckpoint):
        return (
            "saves training checkpoints, as Shardline already does; remove it and set runtime.checkpoint, or use "
            "ModelCheckpoint for files of your own"
        )
    if settings.strategy == "fsdp":
        return "saves whole weights, and strategy=fsdp shards them; remove it, or set strategy: ddp"
    if one.save_on_exception:
        return (
            "has save_on_exception=True, but a rank that failed cannot save with the others; set it to False, since "
            "runtime.checkpoint keeps the last state"
        )
    return ""


def _has_state(one: Callback) -> bool:
    return is_overridden("state_dict", instance=one, parent=Callback)


def _named(one: object) -> str:
    return type(one).__name__
