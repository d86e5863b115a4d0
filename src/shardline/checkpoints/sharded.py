"""Shards of a training checkpoint: each rank writes its own, and any number of ranks reads them.

A file `shard-00002-of-00004.safetensors` holds the parts of all sharded tensors that one rank
has, and in its header where in the whole tensor each part begins, in the form of torch's
`HuggingFaceStorageWriter`. So torch.distributed.checkpoint reads the shards back and splits them
again for the present ranks, and nothing is ever unpickled.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, empty

from shardline.checkpoints.folder import Digests, describe
from shardline.checkpoints.weights import plain_name
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import remedy_of, sync_file
from shardline.core.lightning_compat import State

# stands in `state.pt` where a sharded tensor was
_MARK = "shardline-shard:"
_OFFSETS = "DCP_SHARDING_INFO"  # the key that HuggingFaceStorageReader looks for


@dataclass(frozen=True)
class StateShards:
    """One rank's parts of the sharded tensors.

    Attributes:
        name: of the file.
        parts: each tensor's part; to be copied before the training continues.
        offsets: where in the whole tensor the part begins, in each dimension.
    """

    name: str
    parts: dict[str, torch.Tensor] = field(default_factory=dict)
    offsets: dict[str, list[int]] = field(default_factory=dict)

    def write(self, folder: Path) -> Digests:
        """Write the file, bring it to disk and return its size and digest; calls no other rank."""
        saved = {name: {"saved_offsets": offsets} for name, offsets in self.offsets.items()}
        path = folder / self.name
        save_file(self.parts, path, metadata={_OFFSETS: json.dumps(saved)})
        sync_file(path)
        return {self.name: describe(path)}


def take_shards(checkpoint: State, rank: int, world_size: int) -> tuple[Any, StateShards]:
    """Part a training checkpoint into what one rank writes for all, and this rank's shards.

    Args:
        checkpoint: as Lightning collects it; sharded tensors are DTensors.

    Returns:
        The checkpoint with a mark in the place of each sharded tensor; the shards, empty
        where nothing is sharded.

    Raises:
        ConfigError: a tensor is sharded otherwise than along its first dimension.
    """
    shards = StateShards(f"shard-{rank + 1:05d}-of-{world_size:05d}.safetensors")
    names: dict[tuple[int, torch.Size], str] = {}  # two names of one tensor, tied weights, are one

    def take(name: str, value: Any) -> Any:
        if not isinstance(value, DTensor):
            return value
        if value.placements != (Shard(0),):
            raise ConfigError(
                f"{name} is placed {value.placements}, and only {(Shard(0),)} can be saved; "
                "let configure_model shard along the first dimension, over all ranks"
            )
        part = value.to_local().detach()
        known = names.setdefault((part.data_ptr(), part.shape), name) if part.numel() else name
        if known == name:
            (chunk,) = value.__create_chunk_list__()  # type: ignore[no-untyped-call]
            shards.parts[name], shards.offsets[name] = part.contiguous(), [*chunk.offsets]
        return f"{_MARK}{known}"

    return _replace(checkpoint, take), shards


class Writers:
    """All ranks while they write one training checkpoint, in threads beside the training.

    They meet in a process group of their own, since the training's is in use meanwhile.
    """

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo")

    def write(self, shards: StateShards, folder: Path) -> Digests:
        """Write this rank's shards, and return those of all ranks when all are on disk.

        Args:
            folder: made by rank 0 before it calls this.

        Raises:
            DataError: on every rank, if one could not write; names rank and remedy.
        """
        dist.barrier(self._group)
        mine: Digests | str
        try:
            mine = shards.write(folder)
        except (OSError, SafetensorError) as error:
            mine = (
                f"rank {dist.get_rank()} could not write {folder / shards.name}: {_remedy(error)}"
            )
        gathered: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(gathered, mine, self._group)
        for one in gathered:
            if isinstance(one, str):
                raise DataError(one)
        return {name: record for one in gathered for name, record in one.items()}


def _remedy(error: Exception) -> str:
    if isinstance(error, OSError):
        return remedy_of(error)
    # safetensors passes the system's error on as text alone
    found = re.search(r"os error (\d+)", str(error))
    return remedy_of(OSError(int(found[1]), str(error))) if found else str(error)


class ShardReader(TorchCheckpointIO):
    """Reads what `take_shards` and `StateShards.write` have written, at any number of ranks."""

    def __init__(
        self, strategy: Any, check: Callable[[State, Path], None] = lambda *_: None
    ) -> None:
        """Read for a strategy.

        Args:
            check: gets the state, before anything is restored of it, and its folder.
        """
        super().__init__()
        self._strategy, self._check = strategy, check

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> State:
        """Return a training checkpoint with this rank's parts of the sharded tensors."""
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        self._check(state, Path(path).parent)
        whole: State = put_shards(
            state, Path(path).parent, lambda: self._strategy.device_mesh["data_parallel"]
        )
        return whole


def put_shards(checkpoint: State, folder: Path, mesh_of: Callable[[], DeviceMesh]) -> Any:
    """Put the sharded tensors back, cut for the ranks that there are now; called by all ranks.

    Args:
        checkpoint: as `take_shards` left it.
        folder: the training checkpoint's, with all its shards.
        mesh_of: gives the one-dimensional mesh of all ranks; asked where something is sharded.

    Raises:
        DataError: a tensor is in none of the shards.
    """
    names = set[str]()
    _replace(checkpoint, lambda _, value: names.add(_name_of(value)))
    if not (names := names - {""}):
        return checkpoint
    reader = HuggingFaceStorageReader(str(folder))
    known, mesh = reader.read_metadata().state_dict_metadata, mesh_of()
    if missing := sorted(names - known.keys()):
        raise DataError(
            f"training checkpoint {folder} has no shard of {missing[0]}; delete the folder to resume from the one "
            "before it"
        )
    tensors = {name: _room_for(known[name], mesh) for name in sorted(names)}
    load(dict(tensors), storage_reader=reader)
    return _replace(checkpoint, lambda _, value: tensors.get(_name_of(value), value))


def _name_of(value: Any) -> str:
    """Return the name of the tensor that a mark stands for, empty where there is none."""
    is_mark = isinstance(value, str) and value.startswith(_MARK)
    return value.removeprefix(_MARK) if is_mark else ""


def _room_for(stored: Any, mesh: DeviceMesh) -> torch.Tensor:
    assert isinstance(stored, TensorStorageMetadata)
    dtype = stored.properties.dtype
    return empty(stored.size, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])


def _replace(value: Any, change: Callable[[str, Any], Any], name: str = "") -> Any:
    """Return a tree of mappings and lists with each leaf changed; change gets its path and value."""
    prefix = f"{name}/" if name else ""
    if isinstance(value, dict):
        return {key: _replace(inner, change, f"{prefix}{key}") for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replace(inner, change, f"{prefix}{i}") for i, inner in enumerate(value))
    return change(name, value)


def gather_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of whole weights and buffers on the CPU, on rank 0 alone; called by all ranks.

    One tensor at a time is gathered on the devices, so that a model need not fit on one. Names are plain.
    """
    is_mine, weights = not dist.is_initialized() or dist.get_rank() == 0, {}
    for name, value in module.state_dict().items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if is_mine:
            weights[plain_name(name)] = whole.to("cpu", copy=True)
    return weights
