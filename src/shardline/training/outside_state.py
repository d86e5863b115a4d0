"""Values of the user's code that change while it trains, and that no training checkpoint contains.

A resumed training has their first values again, so a longer training that continued it would have other bits than one
from step 0.
"""

import random
import sys
import sysconfig
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import count
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from blake3 import blake3
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import nn
from torch.distributed.tensor import DTensor
from torchmetrics import Metric

from shardline.checkpoints.arrangement import is_uncounted
from shardline.checkpoints.model_extras import unsaved_tensors

_SAVED = {  # by torch, Lightning, torchmetrics and Shardline
    "torch", "torchmetrics", "pytorch_lightning", "lightning", "lightning_fabric", "shardline", "shardline_io",
}  # fmt: skip
_DEPTH = 6
_MOST_ITEMS = 10_000  # of each value, with all that is in it
_MOST_BYTES = 1 << 26  # of each tensor or array
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, count, range)
_OF_SCHEDULES = {"_opt_called", "_step_count"}  # attributes that torch gives an optimiser
_CODE = (type, FunctionType, ModuleType)


class OutsideState:
    """Notes the values at the beginning of a training, and names those that have changed since.

    Code that has `on_save_checkpoint`, `state_dict` or `get_extra_state` of its own saves what it needs. Modules and
    objects of installed packages are not looked into: their attributes cache settings, as those of transformers do.

    Args:
        trainer: Trainer whose training begins.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer, self._first = trainer, _values(trainer)

    def changed(self) -> list[str]:
        """Return the names of values that have changed, sorted."""
        first, now = self._first, _values(self._trainer)
        names = first.keys() | now.keys()
        return sorted(name for name in names if first.get(name) != now.get(name))

    def plain_tensors(self) -> set[str]:
        """Return the names of tensors that are plain attributes of the model or of its modules."""
        model = self._trainer.lightning_module
        return {f"{type(model).__name__}.{name}" for name in unsaved_tensors(model)}


def _values(trainer: pl.Trainer) -> dict[str, Any]:
    """Return a description of each value by name."""
    model = trainer.lightning_module
    saved = {id(one) for one in (*model.parameters(), *model.buffers())}
    owners = [*_owners(trainer)]
    kinds = [type(model), *(type(owner) for _, owner, _ in owners)]
    classes = dict.fromkeys(cls for kind in kinds for cls in kind.__mro__)
    groups: list[tuple[str, Any, Container[str]]] = [
        *owners,
        *((cls.__name__, cls, ()) for cls in classes if _is_own(cls.__module__)),
        *((one.__name__, one, ()) for one in _reached(cls.__module__ for cls in classes)),
    ]
    found = defaultdict[str, list[Any]](list)  # an attribute may hide that of its class
    for name, owner, hidden in groups:
        for key, value in [*vars(owner).items()]:
            if key not in hidden and not key.startswith("__") and not isinstance(value, _CODE):
                found[f"{name}.{key}"].append(_Look(saved).shown(value))
    return found


def _owners(trainer: pl.Trainer) -> Iterator[tuple[str, Any, Container[str]]]:
    """Yield objects whose attributes nothing saves: name, object and names of attributes that do not count."""
    model, title = trainer.lightning_module, type(trainer.lightning_module).__name__
    if not is_overridden("on_save_checkpoint", model) and _root(type(model)) not in _SAVED:
        yield title, model, _hidden(pl.LightningModule) | _computed(model)
    for path, part in model.named_modules():
        is_saved = isinstance(part, Metric) or is_overridden("get_extra_state", part, nn.Module)
        is_own = _is_own(type(part).__module__) or _root(type(part)) == _root(type(model))
        if part is not model and not is_saved and is_own and _root(type(part)) not in _SAVED:
            yield f"{title}.{path}", part, _hidden(nn.Module) | _computed(part)
    for one in trainer.callbacks:  # type: ignore[attr-defined]  # not declared there
        names = ("state_dict", "on_save_checkpoint")
        is_saved = any(is_overridden(name, one, Callback) for name in names)
        if not is_saved and not is_uncounted(one) and _root(type(one)) not in _SAVED:
            yield type(one).__name__, one, ()
    for optimizer in trainer.optimizers:
        if _root(type(optimizer)) not in _SAVED:
            base = vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))]))
            yield type(optimizer).__name__, optimizer, base.keys() | _OF_SCHEDULES


@cache
def _hidden(cls: type[nn.Module]) -> frozenset[str]:
    return frozenset(vars(cls()))


def _computed(module: nn.Module) -> set[str]:
    """Return the attributes that a hook of torch computes from parameters, as the normalisation of weights does."""
    own = [name for name, _ in module.named_parameters(recurse=False, remove_duplicate=False)]
    return {name.removesuffix(end) for end in ("_g", "_orig") for name in own if name.endswith(end)}


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _reached(names: Iterable[str]) -> list[ModuleType]:
    """Return the user's modules among these, and those whose functions, classes or names they use."""
    found: dict[str, ModuleType] = {}
    left = [*names]
    while left:
        name = left.pop()
        module = sys.modules.get(name)
        if name in found or module is None or not _is_own(name):
            continue
        found[name] = module
        for value in [*vars(module).values()]:
            if isinstance(value, ModuleType):
                left.append(value.__name__)
            elif isinstance(value, _CODE):
                left.append(value.__module__)
    return [*found.values()]


@cache
def _is_own(name: str) -> bool:
    """Return whether a module is the user's, and not an installed one."""
    file = str(getattr(sys.modules.get(name), "__file__", None) or "")
    is_installed = any(file.startswith(sysconfig.get_path(one)) for one in ("purelib", "platlib"))
    in_python = file.startswith(sysconfig.get_path("stdlib"))
    return bool(file) and not (is_installed or in_python or name.partition(".")[0] in _SAVED)


class _Look:
    """Describes a value, so that descriptions differ where the value has changed, as far as it can be seen.

    Args:
        saved: Ids of tensors that training checkpoints contain.
    """

    def __init__(self, saved: set[int]) -> None:
        self._saved, self._left = saved, _MOST_ITEMS

    def shown(self, value: Any, depth: int = _DEPTH) -> Any:
        """Return a description that compares by value."""
        self._left -= 1
        if id(value) in self._saved or self._left < 0:
            return ""
        with suppress(Exception):  # of the user's methods, or of a tensor without bytes
            return self._shown(value, depth)
        return type(value).__qualname__

    def _shown(self, value: Any, depth: int) -> Any:
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, torch.Tensor):
            return _of_tensor(value)
        if isinstance(value, np.ndarray):
            return _of_array(value)
        if (state := _state_of(value)) is not None:
            return repr(state)
        inner = _parts_of(value)
        if inner is None or depth == 0:
            return type(value).__qualname__
        return len(inner), [self.shown(one, depth - 1) for one in inner[:_MOST_ITEMS]]


def _parts_of(value: Any) -> list[Any] | None:
    """Return the values in a container or object; None if it is neither."""
    if isinstance(value, Mapping):
        return [*value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple | deque):
        return [*value]
    if isinstance(value, nn.Module):  # that the model does not register, or the model itself
        return [*value.named_parameters(), *value.named_buffers()]
    attributes = getattr(value, "__dict__", None)
    is_own = _is_own(type(value).__module__)
    if isinstance(value, _CODE) or not is_own or not isinstance(attributes, dict):
        return None
    return [*attributes.items()]


def _of_tensor(value: torch.Tensor) -> Any:
    form = str(value.dtype), tuple(value.shape)
    if isinstance(value, DTensor) or value.is_meta or value.layout != torch.strided:
        return form
    few = value.detach().reshape(-1)[: _MOST_BYTES // value.element_size()]
    return form, blake3(few.cpu().contiguous().view(torch.uint8).numpy().data).hexdigest()


def _of_array(value: np.ndarray) -> Any:
    if value.dtype.hasobject:
        return repr(value)
    content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)[:_MOST_BYTES]
    return str(value.dtype), value.shape, blake3(content.data).hexdigest()


def _state_of(value: Any) -> Any:
    """Return the state of a random generator; None for other values."""
    match value:
        case random.Random():
            return value.getstate()
        case np.random.Generator():
            return value.bit_generator.state
        case np.random.RandomState():
            return value.get_state(legacy=False)
        case torch.Generator():
            return value.get_state().tolist()
    return None
