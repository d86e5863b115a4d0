"""Names of sealed weights, and fingerprints that detect changed weights."""

from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torchmetrics import Metric

Fingerprint = dict[str, bytes]

_COMPILED = "_orig_mod"  # prefix of names in a module compiled by `torch.compile`
_VALUES = 256  # values of a tensor in a fingerprint: an average or an exchange changes all of them


def plain_name(name: str) -> str:
    """Return the name of a weight without the prefixes of compiled modules."""
    return ".".join(part for part in name.split(".") if part != _COMPILED)


def load_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Load sealed weights into a model, which may be compiled in part."""
    own = {plain_name(name): name for name in model.state_dict()}
    model.load_state_dict({own.get(plain_name(key), key): value for key, value in weights.items()})


def watched_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights and buffers on this rank by plain name, without states of metrics."""
    metrics = tuple(f"{name}." for name, one in module.named_modules() if isinstance(one, Metric))
    return {
        plain_name(name): value.to_local() if isinstance(value, DTensor) else value
        for name, value in module.state_dict().items()
        if isinstance(value, torch.Tensor) and not name.startswith(metrics)
    }


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> Fingerprint:
    """Return evenly spaced values of each tensor as bytes, with one copy per device and type."""
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
    # an odd step: an even one could select values of a single column of a matrix
    step = (value.numel() // _VALUES) | 1
    return value.reshape(-1)[::step] if value.is_contiguous() else _of_memory(value, step)


def _of_memory(value: torch.Tensor, step: int) -> torch.Tensor:
    """Return every n-th value of a non-contiguous tensor, without a copy if its memory is dense."""
    span = 1 + sum((n - 1) * stride for n, stride in zip(value.shape, value.stride(), strict=True))
    if value.numel() == span:
        return value.as_strided((-(-span // step),), (step,), value.storage_offset())
    return value.flatten()[::step]


def changed(one: Fingerprint, other: Fingerprint, names: Iterable[str] = ()) -> list[str]:
    """Return the names of tensors that differ, among `names` or all names of the first fingerprint."""
    return [name for name in (names or one) if one.get(name) != other.get(name)]
