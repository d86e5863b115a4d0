"""Work that Lightning repeats at each step without need, 0.1 ms of a step of 1 ms.

Each part has a contract test in `tests/unit/core/test_lightning_compat.py`.
"""

import inspect
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType, SimpleNamespace
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultMetric
from pytorch_lightning.utilities import signature_utils
from torchmetrics import Metric

from shardline.core.dtypes import is_narrow

_MOVE = _ResultMetric.to
_HOOK = "_current_fx_name"


def spare_repeats() -> None:
    """Make Lightning skip work without effect, in all trainings of this process.

    - At each call of `self.log`, Lightning searches all fields of a metric for tensors to move, which takes as long
      as the rest of the call. A metric that moves computes in the default type from then on, which may have 16 bits.
    - At each step, it inspects the signature of `training_step` twice.
    - Around each hook, it sets the hook's name as an attribute of the model, which a module of torch compares with
      all its parameters, buffers and submodules.
    """
    _ResultMetric.to = _move_if_elsewhere  # type: ignore[method-assign,assignment]
    signature_utils.inspect = SimpleNamespace(getfullargspec=_arguments)  # type: ignore[attr-defined,assignment]
    pl.LightningModule.__setattr__ = _set_attribute  # type: ignore[method-assign,assignment]


def _move_if_elsewhere(metric: _ResultMetric, device: torch.device) -> _ResultMetric:
    value = vars(metric).get("value")
    if metric.is_tensor and isinstance(value, torch.Tensor) and value.device == device:
        return metric
    if (
        is_narrow(torch.get_default_dtype())
        and isinstance(value, Metric)
        and value.device == device
    ):
        return metric
    return _MOVE(metric, device)


def _arguments(hook: Callable[..., Any]) -> inspect.FullArgSpec:
    function = getattr(hook, "__func__", hook)
    return (
        _known_arguments(function)
        if type(function) is FunctionType
        else inspect.getfullargspec(hook)
    )


@lru_cache
def _known_arguments(function: FunctionType) -> inspect.FullArgSpec:
    return inspect.getfullargspec(function)


def _set_attribute(module: pl.LightningModule, name: str, value: Any) -> None:
    if name == _HOOK:
        vars(module)[name] = value
    else:
        super(pl.LightningModule, module).__setattr__(name, value)
