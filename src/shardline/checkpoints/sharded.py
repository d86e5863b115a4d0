"""Shards of a training checkpoint: each rank writes its own, and any number of ranks can read them.

A file `shard-00002-of-00004.safetensors` contains one rank's parts of all sharded tensors. Its
header has the offset of each part in the whole tensor, in the format of torch's
`HuggingFaceStorageWriter`. torch.distributed.checkpoint reads the shards and splits them for the
present ranks, without unpickling anything.
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

from shardline.checkpoints.folder import describe
from shardline.checkpoints.manifest import Digests
from shardline.checkpoints.weights import plain_name
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import remedy_of, sync_file
from shardline.core.lightning_compat import State

# placeholder for a sharded tensor in `state.pt`
_MARK = "shardline-shard:"
_OFFSETS = "DCP_SHARDING_INFO"  # the key that HuggingFaceStorageReader looks for


@dataclass(frozen=True)
class StateShards:
    """Parts of the sharded tensors on one rank.

    Attributes:
        name: Name of the file.
        parts: Part of each tensor. Copy it before the training continues.
        offsets: Offset of each part in the whole tensor, in each dimension.
    """

    name: str
    parts: dict[str, torch.Tensor] = field(default_factory=dict)
    offsets: dict[str, list[int]] = field(default_factory=dict)

    def write(self, folder: Path) -> Digests:
        """Write the file, sync it to disk and return its size and digest, without communication."""
        saved = {name: {"saved_offsets": offsets} for name, offsets in self.offsets.items()}
        path = folder / self.name
        save_file(self.parts, path, metadata={_OFFSETS: json.dumps(saved)})
        sync_file(path)
        return {self.name: describe(path)}


def take_shards(checkpoint: State, rank: int, world_size: int) -> tuple[Any, StateShards]:
    """Split a training checkpoint into the common part that rank 0 writes, and the shards of this rank.

    Args:
        checkpoint: Checkpoint from Lightning, with DTensors for sharded tensors.

    Returns:
        The checkpoint with a placeholder for each sharded tensor; and the shards, empty
        if no tensor is sharded.

    Raises:
        ConfigError: A tensor is not sharded along its first dimension.
    """
    shards = StateShards(f"shard-{rank + 1:05d}-of-{world_size:05d}.safetensors")
    names: dict[tuple[int, torch.Size], str] = {}  # tied weights have several names and one part

    def take(name: str, value: Any) -> Any:
        if not isinstance(value, DTensor):
            return value
        if value.placements != (Shard(0),):
            raise ConfigError(
                f"{name} is sharded as {value.placements}, expected {(Shard(0),)}; "
                "shard it along the first dimension, over all ranks, in configure_model"
            )
        part = value.to_local().detach()
        known = names.setdefault((part.data_ptr(), part.shape), name) if part.numel() else name
        if known == name:
            (chunk,) = value.__create_chunk_list__()  # type: ignore[no-untyped-call]
            shards.parts[name], shards.offsets[name] = part.contiguous(), [*chunk.offsets]
        return f"{_MARK}{known}"

    return _replace(checkpoint, take), shards


class Writers:
    """Collective writing of a training checkpoint by all ranks, in threads beside the training.

    The ranks use a separate process group, since the training uses its own at the same time.
    """

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo")

    def write(self, shards: StateShards, folder: Path) -> Digests:
        """Write the shards of this rank, and return the digests of all ranks' shards once they are on disk.

        Args:
            shards: Shards of this rank.
            folder: Folder of the checkpoint. Rank 0 makes it before this call.

        Raises:
            DataError: A rank could not write. Raised on every rank, with rank and remedy.
        """
        dist.barrier(self._group)
        mine: Digests | str
        try:
            mine = shards.write(folder)
        except (OSError, SafetensorError) as error:
            mine = f"rank {dist.get_rank()} cannot write {folder / shards.name}: {_remedy(error)}"
        gathered: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(gathered, mine, self._group)
        for one in gathered:
            if isinstance(one, str):
                raise DataError(one)
        return {name: record for one in gathered for name, record in one.items()}


def _remedy(error: Exception) -> str:
    if isinstance(error, OSError):
        return remedy_of(error)
    # safetensors reports the error of the operating system only as text
    found = re.search(r"os error (\d+)", str(error))
    return remedy_of(OSError(int(found[1]), str(error))) if found else str(error)


class ShardReader(TorchCheckpointIO):
    """Reader of training checkpoints with shards, for any number of ranks."""

    def __init__(
        self, strategy: Any, check: Callable[[State, Path], None] = lambda *_: None
    ) -> None:
        """Make a reader for a strategy.

        Args:
            strategy: Lightning strategy of the training.
            check: Called with the state and its folder, before anything is restored.
        """
        super().__init__()
        self._strategy, self._check = strategy, check

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> State:
        """Return a training checkpoint with the parts of sharded tensors for this rank."""
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        self._check(state, Path(path).parent)
        whole: State = put_shards(
            state, Path(path).parent, lambda: self._strategy.device_mesh["data_parallel"]
        )
        return whole


def put_shards(checkpoint: State, folder: Path, mesh_of: Callable[[], DeviceMesh]) -> Any:
    """Read the sharded tensors, split for the present ranks. All ranks call this.

    Args:
        checkpoint: Checkpoint with placeholders, from `take_shards`.
        folder: Folder of the training checkpoint, with all shards.
        mesh_of: Function that returns the one-dimensional mesh of all ranks. Called only for sharded tensors.

    Raises:
        DataError: A tensor is missing in the shards.
    """
    names = set[str]()
    _replace(checkpoint, lambda _, value: names.add(_name_of(value)))
    if not (names := names - {""}):
        return checkpoint
    reader = HuggingFaceStorageReader(str(folder))
    known, mesh = reader.read_metadata().state_dict_metadata, mesh_of()
    if missing := sorted(names - known.keys()):
        raise DataError(
            f"training checkpoint {folder} has no shard of {missing[0]}; delete the folder to resume from the previous "
            "checkpoint"
        )
    tensors = {name: _room_for(known[name], mesh) for name in sorted(names)}
    load(dict(tensors), storage_reader=reader)
    return _replace(checkpoint, lambda _, value: tensors.get(_name_of(value), value))


def whole_tensors(checkpoint: Any, folder: Path) -> Any:
    """Read the sharded tensors in a part of a training checkpoint, whole and without other ranks.

    Args:
        checkpoint: Part of a checkpoint, with placeholders from `take_shards`.
        folder: Folder of the training checkpoint, with all shards.
    """
    names = set[str]()
    _replace(checkpoint, lambda _, value: names.add(_name_of(value)))
    if not (names := names - {""}):
        return checkpoint
    reader = HuggingFaceStorageReader(str(folder))
    known: dict[str, Any] = reader.read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(known[name].size, dtype=known[name].properties.dtype)
        for name in sorted(names)
    }
    load(dict(tensors), storage_reader=reader, no_dist=True)
    return _replace(checkpoint, lambda _, value: tensors.get(_name_of(value), value))


def _name_of(value: Any) -> str:
    """Return the tensor name in a placeholder, empty for any other value."""
    is_mark = isinstance(value, str) and value.startswith(_MARK)
    return value.removeprefix(_MARK) if is_mark else ""


def _room_for(stored: Any, mesh: DeviceMesh) -> torch.Tensor:
    assert isinstance(stored, TensorStorageMetadata)
    dtype = stored.properties.dtype
    return empty(stored.size, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])


def _replace(value: Any, change: Callable[[str, Any], Any], name: str = "") -> Any:
    """Return nested dicts and lists with `change(path, value)` applied to each leaf."""
    prefix = f"{name}/" if name else ""
    if isinstance(value, dict):
        return {key: _replace(inner, change, f"{prefix}{key}") for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replace(inner, change, f"{prefix}{i}") for i, inner in enumerate(value))
    return change(name, value)


def gather_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of the whole weights and buffers on the CPU, by plain name, on rank 0. All ranks call this.

    Tensors are gathered one at a time, so the model need not fit on one device.
    """
    is_mine, weights = not dist.is_initialized() or dist.get_rank() == 0, {}
    for name, value in module.state_dict().items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if is_mine:
            weights[plain_name(name)] = whole.to("cpu", copy=True)
    return weights
