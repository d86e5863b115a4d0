"""Names of sealed weights, and a fingerprint that tells whether weights have changed."""

from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torchmetrics import Metric

Fingerprint = dict[str, bytes]

_COMPILED = "_orig_mod"  # what `torch.compile` puts before the names of a module
_VALUES = 256  # of a tensor: an average or an exchange changes them all


def plain_name(name: str) -> str:
    """Return the name of a weight as the model has it where no part of it is compiled."""
    return ".".join(part for part in name.split(".") if part != _COMPILED)


def load_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Load sealed weights into a model of which parts may be compiled."""
    own = {plain_name(name): name for name in model.state_dict()}
    model.load_state_dict({own.get(plain_name(key), key): value for key, value in weights.items()})


def watched_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return this rank's share of what would be sealed, by plain name, without the states of metrics."""
    metrics = tuple(f"{name}." for name, one in module.named_modules() if isinstance(one, Metric))
    return {
        plain_name(name): value.to_local() if isinstance(value, DTensor) else value
        for name, value in module.state_dict().items()
        if isinstance(value, torch.Tensor) and not name.startswith(metrics)
    }


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> Fingerprint:
    """Return some values of each tensor, spread evenly, as bytes; one copy from each device."""
    groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, value in tensors.items():
        if value.layout is torch.strided and not value.is_meta:
            groups.setdefault((value.device, value.dtype), []).append(name)
    found: Fingerprint = {}
    for names in groups.values():
        parts = [_spread(tensors[name].detach()) for name in names]
        content = torch.cat(parts).cpu().contiguous().view(torch.uint8).numpy().tobytes()
        size, at = tensors[names[0]].element_size(), 0
        for name, part in zip(names, parts, strict=True):
            end = at + size * part.numel()
            found[name], at = content[at:end], end
    return found


def _spread(value: torch.Tensor) -> torch.Tensor:
    # an odd step, or it would meet a column of a matrix alone
    step = (value.numel() // _VALUES) | 1
    return value.reshape(-1)[::step] if value.is_contiguous() else _of_memory(value, step)


def _of_memory(value: torch.Tensor, step: int) -> torch.Tensor:
    """Return values of a tensor that is transposed or expanded; without a copy where its memory is dense."""
    span = 1 + sum((n - 1) * stride for n, stride in zip(value.shape, value.stride(), strict=True))
    if value.numel() == span:
        return value.as_strided((-(-span // step),), (step,), value.storage_offset())
    return value.flatten()[::step]


def changed(one: Fingerprint, other: Fingerprint, names: Iterable[str] = ()) -> list[str]:
    """Return the names of tensors that differ, among those given, or among all of the first."""
    return [name for name in (names or one) if one.get(name) != other.get(name)]
