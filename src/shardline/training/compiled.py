"""Compile the parts of a model with `torch.compile`, without a trace in the names of weights."""

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, structs
from torch import nn
from torchmetrics import Metric

from shardline.config.settings.run_settings import Compile
from shardline.core.lightning_compat import is_compiled_module


def compile_model(model: nn.Module, given: bool | Compile) -> None:
    """Compile each module that is an attribute of a model, as `trainer.compile` says.

    The model itself is not compiled, since Lightning calls its steps through `forward`, and `self.log` is no
    part of a graph. A copy of a module, as averages of weights make it, is not compiled.
    """
    if given is False:
        return
    options = structs.asdict(given) if isinstance(given, Compile) else {}
    arguments: dict[str, Any] = {name: one for name, one in options.items() if one is not UNSET}
    for module in _parts(model):
        module.compile(**arguments)


def is_compiled(model: nn.Module) -> bool:
    """Return whether a part of a model is compiled, by Shardline or by the model itself."""
    return any(map(is_compiled_module, model.modules()))


def _parts(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _parts(child)
        elif not isinstance(child, Metric):
            yield child
