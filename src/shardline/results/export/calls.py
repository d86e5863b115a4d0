"""How a model's `forward` is called with a batch, and what it gives, as named tensors."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch

from shardline.core.errors import ConfigError

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Call:
    """What `forward` is called with.

    Attributes:
        names: of the tensors that it reads, in their order; columns of a batch that is a dict.
        is_batch: whether it takes them as one dict by name.
        is_table: whether batches are features and labels, of which it takes the features.
    """

    names: tuple[str, ...]
    is_batch: bool = False
    is_table: bool = False

    def __call__(self, model: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
        """Return what the model gives for tensors in the order of `names`."""
        if self.is_batch:
            return model(dict(zip(self.names, tensors, strict=True)))
        return model(*tensors)

    def tensors(self, batch: Any) -> Tensors:
        """Return what `forward` reads of a batch, by name."""
        if self.is_table:
            return {"features": batch[0]}
        return {name: batch[name] for name in self.names}


def find_call(model: pl.LightningModule, batch: Any) -> Call:
    """Return how a model's `forward` is called with a batch, as an evaluation does where it calls it.

    Of a batch that is a dict by column, `forward` takes the column that the model's attribute
    `column` names; or those that its parameters are named after; or the features; or the dict.

    Raises:
        ConfigError: it can be called in none of these ways, or reads what is no tensor.
    """
    if isinstance(batch, tuple) and batch and isinstance(batch[0], torch.Tensor):
        return Call(names=("features",), is_table=True)
    if not isinstance(batch, dict):
        raise ConfigError(
            f"{_name(model)} has batches of the type {type(batch).__name__}, expected a dict by column, or features "
            "and labels; only models of these can be exported, so let data.collate give one of them"
        )
    wanted = _required(model)
    column = getattr(model, "column", None)
    if isinstance(column, str) and column in batch and len(wanted) == 1:
        found = Call(names=(column,))
    elif wanted and set(wanted) <= batch.keys():
        found = Call(names=tuple(wanted))
    elif "features" in batch and len(wanted) == 1:
        found = Call(names=("features",))
    else:
        found = Call(names=_read_by(model, batch, wanted), is_batch=True)
    for name in found.names:
        _check_tensor(model, name, batch[name])
    return found


def _required(model: pl.LightningModule) -> list[str]:
    """Return the names of the parameters that `forward` must be given."""
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in kinds and one.default is one.empty]


class _Reading(dict[str, object]):
    """A batch that notes which columns are read."""

    def __init__(self, batch: Mapping[str, object]) -> None:
        super().__init__(batch)
        self.read: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:  # without it, `**batch` would read past __getitem__
        return super().__iter__()

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        self.read[name] = None
        return value

    def get(self, name: str, default: Any = None) -> Any:
        value = super().get(name, default)
        self.read |= dict.fromkeys([name] if name in self else [])
        return value

    def items(self) -> Any:
        self.read |= dict.fromkeys(self)
        return super().items()

    def values(self) -> Any:
        self.read |= dict.fromkeys(self)
        return super().values()


def _read_by(
    model: pl.LightningModule, batch: Mapping[str, object], wanted: Sequence[str]
) -> tuple[str, ...]:
    reading, reason = _Reading(batch), ""
    if len(wanted) == 1:
        try:
            with torch.inference_mode():
                model(reading)
        except Exception as error:  # whatever the user's code raises of a dict
            reason = f": {type(error).__name__}: {error}".splitlines()[0]
        if not reason and reading.read:
            return tuple(reading.read)
    raise ConfigError(
        f"{_name(model)} cannot be called with a batch of the columns {', '.join(map(str, batch))} (forward takes "
        f"{', '.join(wanted) or 'nothing'}{reason}), so it cannot be exported; name forward's parameters after the "
        "columns that it takes, or name its one column in an attribute `column` of the model"
    )


def _check_tensor(model: pl.LightningModule, name: str, value: Any) -> None:
    found = ""
    if not isinstance(value, torch.Tensor):
        found = f"a {type(value).__name__}"
    elif value.is_nested:
        found = "a nested tensor"
    elif not value.ndim:
        found = "one number of the whole batch"
    if found:
        raise ConfigError(
            f"forward of {_name(model)} takes the column {name}, which is {found} in a batch, expected a tensor with a "
            "row for each sample; let data.eval_transform and data.collate make one of it"
        )


def named_outputs(model: torch.nn.Module, result: Any) -> Tensors:
    """Return what `forward` gives as tensors by name: `outputs`, or `outputs.0`, ..., or a dict's own names.

    Raises:
        ConfigError: it gives something else.
    """
    found = dict(_flat("", result))
    wrong = [name or "forward" for name, of in found.items() if not isinstance(of, torch.Tensor)]
    if wrong or not found:
        kind = type(found[wrong[0]] if wrong and wrong[0] in found else result).__name__
        raise ConfigError(
            f"forward of {_name(model)} gives a {kind}{f' as {wrong[0]}' if wrong else ''}, expected a tensor, or a "
            "list or dict of tensors; only these can be exported"
        )
    return {name or "outputs": of for name, of in found.items()}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, of in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), of)
    elif isinstance(value, list | tuple):
        for place, of in enumerate(value):
            yield from _flat(f"{name or 'outputs'}.{place}", of)
    elif value is not None:
        yield name, value


def _name(model: torch.nn.Module) -> str:
    return f"{type(model).__module__}:{type(model).__qualname__}"
