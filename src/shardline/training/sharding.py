"""Shard a model's parameters over the ranks, in units that are gathered to compute (FSDP2)."""

from collections import Counter
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard

from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import broadcast_buffers

# 40 MB in float32: large compared with network latency, small compared with GPU memory
MIN_PARAMETERS = 10_000_000
# modules whose children, or which themselves, are never called, as in torch.distributed.fsdp.wrap
_WHOLE, _NEVER_CALLED = (nn.MultiheadAttention,), (nn.ModuleList, nn.ModuleDict)


class Root(nn.Module):
    """The root unit around a LightningModule, within whose `forward` a whole step runs.

    So parameters in no other unit are gathered before `training_step`, even if the step does not
    call the module's own `forward`.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.module = module
        self._group = group

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step by which Lightning has replaced the module's `forward`."""
        self._take_buffers_of_rank_0()
        return self.module(*args, **kwargs)

    def _take_buffers_of_rank_0(self) -> None:
        """Copy running statistics from rank 0 to all ranks, as DDP does, since one copy is saved."""
        buffers = [buffer for buffer in self.module.buffers() if buffer.numel()]
        if buffers and self._group.size() > 1:
            broadcast_buffers(self._group, buffers)


def shard(module: nn.Module, mesh: DeviceMesh, min_parameters: int = MIN_PARAMETERS) -> Root:
    """Shard a model's parameters over the ranks, in units that are gathered one at a time.

    Gradients are reduced in the parameters' own type. A model that applies `fully_shard` to its
    submodules in `configure_model` keeps its own units.

    Args:
        module: Model to shard; its parameters become DTensors.
        mesh: One-dimensional mesh of all ranks.
        min_parameters: Least number of parameters of a unit; smaller modules are gathered with
            their parent.

    Returns:
        The root module to call.

    Raises:
        ConfigError: The model cannot be sharded; the message names the parameter or module.
    """
    _check(module)
    root = Root(module, mesh.get_group())
    if not any(isinstance(part, FSDPModule) for part in module.modules()):
        for unit in find_units(module, min_parameters):
            fully_shard(unit, mesh=mesh)
    fully_shard(root, mesh=mesh)
    return root


def find_units(module: nn.Module, min_parameters: int) -> list[nn.Module]:
    """Return the submodules that become units, inner ones first.

    A unit has at least `min_parameters` that are in no inner unit, as in torch's
    `size_based_auto_wrap_policy`. Tied parameters stay in the root, since a parameter can be in
    only one unit.
    """
    names = Counter(value for _, value in module.named_parameters(remove_duplicate=False))
    tied = {value for value, times in names.items() if times > 1}
    units: list[nn.Module] = []

    def left_of(part: nn.Module) -> set[nn.Parameter]:
        """Return the parameters of a module that are in no unit, and collect its units."""
        is_whole = isinstance(part, _WHOLE)
        left = set(part.parameters(recurse=is_whole))
        for child in () if is_whole else part.children():
            left |= left_of(child)
        size = sum(value.numel() for value in left)
        is_unit = part is not module and not isinstance(part, _NEVER_CALLED)
        if is_unit and size >= min_parameters and left.isdisjoint(tied):
            units.append(part)
            return set()
        return left

    left_of(module)
    return units


def _check(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, FullyShardedDataParallel):
            raise ConfigError(
                f"strategy=fsdp: {name} is wrapped by FullyShardedDataParallel (FSDP1), expected FSDP2; remove the "
                "wrapper, or apply torch.distributed.fsdp.fully_shard in configure_model"
            )
    for name, value in module.named_parameters():
        if value.ndim == 0:
            raise ConfigError(
                f"strategy=fsdp: parameter {name} is a scalar, which cannot be sharded; give it the shape (1,)"
            )
        if isinstance(value, nn.UninitializedParameter):
            raise ConfigError(
                f"strategy=fsdp: parameter {name} of a lazy module has no shape yet; use a module with explicit sizes"
            )
