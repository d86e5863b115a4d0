"""State of a model that its `state_dict` does not contain.

Non-persistent buffers, which parameters are trained, which modules are in evaluation mode, and, with
manual optimization, gradients that the model may still accumulate.
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
    """State of a model outside of its `state_dict`.

    Attributes:
        buffers: Non-persistent buffers by path.
        frozen: Names of parameters that are not trained.
        evaluating: Paths of modules in evaluation mode.
        gradients: Gradients by name, for a model with manual optimization.
    """

    buffers: dict[str, torch.Tensor | None]
    frozen: list[str]
    evaluating: list[str]
    gradients: dict[str, torch.Tensor]


def collect(module: pl.LightningModule) -> Extras:
    """Return the state outside of `state_dict`. Its tensors are those of the model, not copies."""
    parameters = [] if module.automatic_optimization else module.named_parameters()
    # all names of shared objects: which name comes first may differ between processes
    all_parameters = module.named_parameters(remove_duplicate=False)
    all_modules = module.named_modules(remove_duplicate=False)
    return {
        "buffers": dict(hidden_buffers(module)),
        "frozen": [name for name, p in all_parameters if not p.requires_grad],
        "evaluating": [name for name, inner in all_modules if not inner.training],
        "gradients": {name: p.grad for name, p in parameters if p.grad is not None},
    }


def restore(module: pl.LightningModule, extras: Extras) -> list[str]:
    """Restore the state outside of `state_dict`.

    Returns:
        A sentence for each part that could not be restored.
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
    """Return each object with all of its names."""
    names: dict[int, tuple[Any, set[str]]] = {}
    for name, value in found:
        names.setdefault(id(value), (value, set()))[1].add(name)
    return [*names.values()]


def set_buffers(module: nn.Module, buffers: Mapping[str, torch.Tensor | None]) -> list[str]:
    """Restore buffers, and register those that the model does not have yet.

    Returns:
        A sentence for each buffer without a module.
    """
    left, device = [], next((p.device for p in module.parameters()), torch.device("cpu"))
    for path, value in buffers.items():
        owner_path, _, name = path.rpartition(".")
        try:
            owner = module.get_submodule(owner_path)
        except AttributeError:
            left.append(f"buffer {path} is not restored: the model has no module {owner_path} yet")
            continue
        known, persistent = buffers_of(owner).get(name, (None, False))
        if known is not None and value is not None and _form(known) == _form(value):
            known.data.copy_(value)  # in place, since other objects may refer to the buffer
            continue
        there = None if value is None else value.to(device, copy=True)
        owner.register_buffer(name, there, persistent=persistent)
    return left


def _form(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def hidden_buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yield the non-persistent buffers by path."""
    for path, inner in module.named_modules():
        for name, (value, persistent) in sorted(buffers_of(inner).items()):
            if not (persistent or isinstance(value, DTensor)):
                yield f"{path}.{name}" if path else name, value


def own_buffers(trainer: pl.Trainer, module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that differ between this rank and rank 0. Each rank calls this.

    A saved state has the buffers of rank 0. DDP synchronizes buffers before each step, except
    buffers that the model replaces (`self.mean = ...`).
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
    """Return the names of plain attributes with tensors, which are not saved."""
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
