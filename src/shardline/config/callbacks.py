"""Callbacks that settings name: Lightning's by their name, others by import path, in any spelling of `core.objects`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardline.core.errors import ConfigError
from shardline.core.objects import NamedObject, read_object, without_paths

CALLBACKS, RUNTIME_CALLBACKS = "callbacks", "runtime.callbacks"  # keys of the settings
_MODULE = "pytorch_lightning.callbacks"
_NAMES = (
    "BackboneFinetuning", "BaseFinetuning", "BasePredictionWriter", "BatchSizeFinder", "Callback", "Checkpoint",
    "DeviceStatsMonitor", "EMAWeightAveraging", "EarlyStopping", "GradientAccumulationScheduler", "LambdaCallback",
    "LearningRateFinder", "LearningRateMonitor", "ModelCheckpoint", "ModelPruning", "ModelSummary",
    "OnExceptionCheckpoint", "ProgressBar", "RichModelSummary", "RichProgressBar", "SpikeDetection",
    "StochasticWeightAveraging", "TQDMProgressBar", "ThroughputMonitor", "Timer", "WeightAveraging",
)  # fmt: skip
LIGHTNING_CALLBACKS = {name: f"{_MODULE}:{name}" for name in _NAMES}
_EXPECTED = "a callback of Lightning or an import path such as mypkg.callbacks:EMA"
# both packages have the same callbacks
_SAME = (
    f"{_MODULE}:",
    f"{_MODULE}.",
    "lightning.pytorch.callbacks:",
    "lightning.pytorch.callbacks.",
)


def read_callbacks(written: Sequence[Any], key: str, where: str) -> list[NamedObject]:
    """Return the callbacks of a setting, with an import path in place of a name.

    Args:
        written: Value of the setting.
        key: Dotted key of the setting.
        where: Start of messages.

    Raises:
        ConfigError: An entry names no callback, or mixes spellings.
    """
    found = []
    for place, value in enumerate(written):
        try:
            named = read_object(value, f"{key}.{place}", expected=_EXPECTED)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        name = named.path
        for begin in _SAME:
            name = name.removeprefix(begin)
        found.append(replace(named, path=LIGHTNING_CALLBACKS.get(name, named.path)))
    return found


def counted_callbacks(written: Sequence[Any]) -> list[Any]:
    """Return callbacks for an identity document: without import paths, whose code counts."""
    return [without_paths(one) for one in read_callbacks(written, CALLBACKS, "")]
