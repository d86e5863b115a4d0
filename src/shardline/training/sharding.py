"""Which parts of a model are sharded over the ranks, and gathered when they compute (FSDP2)."""

from collections import Counter
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard

from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import broadcast_buffers

# 40 MB in float32: far above what a network's latency costs, far below a GPU's memory
MIN_PARAMETERS = 10_000_000
# their children are never called by themselves, as in torch.distributed.fsdp.wrap
_WHOLE, _NEVER_CALLED = (nn.MultiheadAttention,), (nn.ModuleList, nn.ModuleDict)


class Root(nn.Module):
    """Holds a sharded LightningModule, so that a whole step runs within its forward.

    What no other unit gathers is gathered before `training_step` then, also where a step
    does not call the module's own `forward`.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.module = module
        self._group = group

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run what Lightning has put in the place of the module's `forward`."""
        self._take_buffers_of_rank_0()
        return self.module(*args, **kwargs)

    def _take_buffers_of_rank_0(self) -> None:
        """Give all ranks the same running statistics, as DDP does: one state is saved of them."""
        buffers = [buffer for buffer in self.module.buffers() if buffer.numel()]
        if buffers and self._group.size() > 1:
            broadcast_buffers(self._group, buffers)


def shard(module: nn.Module, mesh: DeviceMesh, min_parameters: int = MIN_PARAMETERS) -> Root:
    """Shard a model's parameters over the ranks, in units that are gathered one at a time.

    Gradients and sums are in the parameters' own type. A model that applied `fully_shard`
    to its submodules in `configure_model` keeps its own units.

    Args:
        mesh: one-dimensional mesh of all ranks.
        min_parameters: least size of a unit; what is smaller is gathered with its parent.

    Returns:
        The root to compute with; the module's own parameters are DTensors from now on.

    Raises:
        ConfigError: the model cannot be sharded; names the parameter or module and the remedy.
    """
    _check(module)
    root = Root(module, mesh.get_group())
    if not any(isinstance(part, FSDPModule) for part in module.modules()):
        for unit in find_units(module, min_parameters):
            fully_shard(unit, mesh=mesh)
    fully_shard(root, mesh=mesh)
    return root


def find_units(module: nn.Module, min_parameters: int) -> list[nn.Module]:
    """Return the submodules that are gathered by themselves, inner ones first.

    Those with at least `min_parameters` that are in no inner unit, as torch's
    `size_based_auto_wrap_policy` chooses. Tied parameters stay with the root, since a
    parameter can be in one unit only.
    """
    names = Counter(value for _, value in module.named_parameters(remove_duplicate=False))
    tied = {value for value, times in names.items() if times > 1}
    units: list[nn.Module] = []

    def left_of(part: nn.Module) -> set[nn.Parameter]:
        """Return a module's parameters that are in no unit."""
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
                f"strategy=fsdp: {name} is wrapped by FullyShardedDataParallel (FSDP1); leave sharding to the "
                "strategy, or apply torch.distributed.fsdp.fully_shard in configure_model"
            )
    for name, value in module.named_parameters():
        if value.ndim == 0:
            raise ConfigError(
                f"strategy=fsdp: parameter {name} is a scalar and cannot be sharded; give it the shape (1,)"
            )
        if isinstance(value, nn.UninitializedParameter):
            raise ConfigError(
                f"strategy=fsdp: parameter {name} of a lazy module has no shape yet; give the module its sizes"
            )
