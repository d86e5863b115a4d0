"""Calls of a model's `forward` with named tensors, and names of its outputs."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch

from shardline.core.errors import ConfigError
from shardline.data.collate import ColumnTuple
from shardline.training.models.classifier_base import Classifier

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Call:
    """Arguments of `forward`.

    Attributes:
        names: Names of the tensors, in order; columns if a batch is a dict.
        is_batch: Whether `forward` expects one dict.
        is_table: Whether batches are features and labels; `forward` then expects the features.
    """

    names: tuple[str, ...]
    is_batch: bool = False
    is_table: bool = False

    def __call__(self, model: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
        """Call the model with tensors in the order of `names`."""
        if self.is_batch:
            return model(dict(zip(self.names, tensors, strict=True)))
        return model(*tensors)

    def tensors(self, batch: Any) -> Tensors:
        """Return the tensors of a batch that `forward` reads, by name."""
        if self.is_table:
            return {"features": batch[0]}
        batch = batch.named if isinstance(batch, ColumnTuple) else batch
        return {name: batch[name] for name in self.names}


def find_call(model: pl.LightningModule, batch: Any) -> Call:
    """Find out how a model's `forward` is called with a batch.

    If a batch is a dict, `forward` gets the column in the model's attribute `column`, or the columns
    named like its parameters, or the features, or the whole dict.

    Raises:
        ConfigError: None of these ways works, or `forward` reads a value that is no tensor.
    """
    if isinstance(batch, ColumnTuple):
        first = next(iter(batch.named))
        _check_tensor(model, first, batch[0])
        return Call(names=(first,))
    if isinstance(batch, tuple) and batch and isinstance(batch[0], torch.Tensor):
        return Call(names=("features",), is_table=True)
    if not isinstance(batch, dict):
        raise ConfigError(
            f"{_name(model)} has batches of type {type(batch).__name__}, expected a dict of columns, or features "
            "and labels; change data.collate to return one of these, or the model cannot be exported"
        )
    wanted = _required(model)
    if isinstance(model, Classifier) and set(model.input_columns(batch)) <= batch.keys():
        found = Call(names=model.input_columns(batch))
        for name in found.names:
            _check_tensor(model, name, batch[name])
        return found
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
    """Return the names of the required parameters of `forward`."""
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in kinds and one.default is one.empty]


class _Reading(dict[str, object]):
    """A batch that records which columns are read."""

    def __init__(self, batch: Mapping[str, object]) -> None:
        super().__init__(batch)
        self.read: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:  # without this method, `**batch` would bypass __getitem__
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
        except Exception as error:  # the user's code may raise anything
            reason = f": {type(error).__name__}: {error}".splitlines()[0]
        if not reason and reading.read:
            return tuple(reading.read)
    raise ConfigError(
        f"{_name(model)} cannot be called with a batch of the columns {', '.join(map(str, batch))} (forward has the "
        f"parameters {', '.join(wanted) or 'none'}{reason}), so it cannot be exported; name the parameters "
        "of forward like the columns, or set the attribute `column` of the model to its only column"
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
            f"forward of {_name(model)} reads the column {name}, which is {found} in a batch, expected a tensor with a "
            "row for each sample; change data.eval_transform or data.collate to return one"
        )


def named_outputs(model: torch.nn.Module, result: Any) -> Tensors:
    """Return the outputs of `forward` by name: `outputs`, or `outputs.0`, ..., or the keys of a dict.

    Raises:
        ConfigError: An output is no tensor.
    """
    found = dict(_flat("", result))
    wrong = [name or "forward" for name, of in found.items() if not isinstance(of, torch.Tensor)]
    if wrong or not found:
        kind = type(found[wrong[0]] if wrong and wrong[0] in found else result).__name__
        raise ConfigError(
            f"forward of {_name(model)} returns a {kind}{f' as {wrong[0]}' if wrong else ''}, expected a tensor, or a "
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
