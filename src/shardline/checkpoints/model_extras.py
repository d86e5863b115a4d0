"""What a training changes in a model beside its `state_dict`.

Buffers that are not persistent, which parameters are trained, which modules are in evaluation mode, and,
where the model takes its optimiser steps itself, gradients that it may still be summing up.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypedDict

import pytorch_lightning as pl
import torch
from blake3 import blake3
from torch import nn
from torch.distributed.tensor import DTensor
from torchmetrics import Metric

from shardline.core.lightning_compat import buffers_of


class Extras(TypedDict):
    """What `state_dict` leaves out.

    Attributes:
        frozen: parameters that are not trained.
        evaluating: modules in evaluation mode.
        gradients: of a model that takes its optimiser steps itself.
    """

    buffers: dict[str, torch.Tensor | None]
    frozen: list[str]
    evaluating: list[str]
    gradients: dict[str, torch.Tensor]


def collect(module: pl.LightningModule) -> Extras:
    """Return what `state_dict` leaves out; tensors are the model's own, to be copied."""
    parameters = [] if module.automatic_optimization else module.named_parameters()
    # by all names of what has several: which one comes first may change from process to process
    all_parameters = module.named_parameters(remove_duplicate=False)
    all_modules = module.named_modules(remove_duplicate=False)
    return {
        "buffers": dict(hidden_buffers(module)),
        "frozen": [name for name, p in all_parameters if not p.requires_grad],
        "evaluating": [name for name, inner in all_modules if not inner.training],
        "gradients": {name: p.grad for name, p in parameters if p.grad is not None},
    }


def restore(module: pl.LightningModule, extras: Extras) -> list[str]:
    """Give the model what it had.

    Returns:
        A sentence for what could not be put back.
    """
    left = set_buffers(module, extras["buffers"])
    frozen, evaluating = set(extras["frozen"]), set(extras["evaluating"])
    for inner, names in _all_names(module.named_modules(remove_duplicate=False)):
        inner.training = evaluating.isdisjoint(names)
    for parameter, names in _all_names(module.named_parameters(remove_duplicate=False)):
        parameter.requires_grad_(frozen.isdisjoint(names))
        for name in names & extras["gradients"].keys():
            parameter.grad = extras["gradients"][name].to(parameter.device)
    return left


def _all_names(found: Iterable[tuple[str, Any]]) -> list[tuple[Any, set[str]]]:
    """Return each thing with all of its names."""
    names: dict[int, tuple[Any, set[str]]] = {}
    for name, value in found:
        names.setdefault(id(value), (value, set()))[1].add(name)
    return [*names.values()]


def set_buffers(module: nn.Module, buffers: Mapping[str, torch.Tensor | None]) -> list[str]:
    """Put buffers back, those too that the model makes only in its steps.

    Returns:
        A sentence for each whose module is not there.
    """
    left, device = [], next((p.device for p in module.parameters()), torch.device("cpu"))
    for path, value in buffers.items():
        owner_path, _, name = path.rpartition(".")
        try:
            owner = module.get_submodule(owner_path)
        except AttributeError:
            left.append(f"buffer {path} is not put back: the model has no module {owner_path} yet")
            continue
        known, persistent = buffers_of(owner).get(name, (None, False))
        if known is not None and value is not None and _form(known) == _form(value):
            known.data.copy_(value)  # others may refer to it
            continue
        there = None if value is None else value.to(device, copy=True)
        owner.register_buffer(name, there, persistent=persistent)
    return left


def _form(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def hidden_buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yield the buffers that `state_dict` leaves out, by path."""
    for path, inner in module.named_modules():
        for name, (value, persistent) in sorted(buffers_of(inner).items()):
            if not (persistent or isinstance(value, DTensor)):
                yield f"{path}.{name}" if path else name, value


def own_buffers(trainer: pl.Trainer, module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers of a module in which this rank differs from rank 0; each rank calls this.

    A state has those of rank 0. DDP makes buffers equal before each step, but for those that a model
    replaces (`self.mean = ...`).
    """
    if trainer.world_size == 1:
        return {}
    buffers = {
        name: value
        for name, value in module.named_buffers()
        if not isinstance(value, DTensor) and value.layout is torch.strided
    }
    mine = {name: _digest(value) for name, value in buffers.items()}
    first = trainer.strategy.broadcast(mine)
    return {name: value for name, value in buffers.items() if mine[name] != first.get(name)}


def _digest(tensor: torch.Tensor) -> str:
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return blake3(content.data).hexdigest()


def unsaved_tensors(module: nn.Module) -> list[str]:
    """Return the names of plain attributes that hold tensors, which no state has."""
    saved = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    found = []
    for path, inner in module.named_modules():
        if isinstance(inner, Metric):
            continue  # its state is saved
        own = {name for name, _ in inner.named_parameters(recurse=False, remove_duplicate=False)}
        for name, value in vars(inner).items():
            computed = {f"{name}_g", f"{name}_orig"} & own  # by a forward hook
            if name == "_example_input_array" or computed:
                continue
            if any(id(one) not in saved for one in _tensors(value)):
                found.append(f"{path}.{name}" if path else name)
    return found


def _tensors(value: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    inner = value.values() if isinstance(value, dict) else value
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple) and depth:
        for one in inner:
            yield from _tensors(one, depth - 1)
