"""Shards of training checkpoints over real gloo ranks: written by some, read by others."""

import os
import resource
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from shardline.checkpoints.sharded import (
    StateShards,
    Writers,
    gather_weights,
    put_shards,
    take_shards,
)
from shardline.errors import DataError
from shardline.training.sharding import Root, shard
from tests.support.forked import SERVER


def on_ranks(size: int, work: Callable[[DeviceMesh, Path], None], folder: Path) -> None:
    """Run a function on real ranks; fails with the traceback of the first that failed."""
    store = folder / f"store-{len(list(folder.iterdir()))}"
    ranks = [
        SERVER.Process(target=_rank, args=(rank, size, store, work, folder)) for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    told = [path.read_text() for path in sorted(folder.glob("failed-*"))]
    assert [rank.exitcode for rank in ranks] == [0] * size, "\n".join(told)


def _rank(
    rank: int, size: int, store: Path, work: Callable[[DeviceMesh, Path], None], folder: Path
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        work(init_device_mesh("cpu", (size,)), folder)
    except BaseException:
        (folder / f"failed-{rank}").write_text(traceback.format_exc())
        os._exit(1)
    dist.destroy_process_group()


class Tied(nn.Module):
    """Sizes that no number of ranks divides, tied weights, running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.hidden = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU())
        self.back = nn.Linear(10, 6)
        self.head = nn.Linear(6, 7)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(2, 3)  # gets no gradient, so that it has no optimiser state

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.back(self.hidden(self.embed(tokens))))
        return logits


def make(mesh: DeviceMesh, seed: int) -> tuple[Root, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    root = shard(Tied(), mesh, min_parameters=60)
    return root, torch.optim.AdamW(root.parameters(), lr=0.1)


def step(root: Root, optimizer: torch.optim.Optimizer, number: int, mesh: DeviceMesh) -> None:
    """Take one step on this rank's part of a batch of 8."""
    rows = torch.randint(7, (8,), generator=torch.Generator().manual_seed(number))
    rows = rows.chunk(mesh.size())[mesh.get_rank()]
    nn.functional.cross_entropy(root(rows), rows).backward()
    nn.utils.clip_grad_norm_(root.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()


def whole(value: Any) -> Any:
    """Return a copy of a state with each sharded tensor gathered."""
    if isinstance(value, dict):
        return {key: whole(inner) for key, inner in value.items()}
    return (value.full_tensor() if isinstance(value, DTensor) else value).clone()


def state_of(root: Root, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"state_dict": root.module.state_dict(), "optimizer_states": [optimizer.state_dict()]}


def save(mesh: DeviceMesh, folder: Path) -> None:
    root, optimizer = make(mesh, seed=1)
    for number in range(3):
        step(root, optimizer, number, mesh)
    weights, state = gather_weights(root.module), whole(optimizer.state_dict()["state"])
    rest, shards = take_shards(state_of(root, optimizer), mesh.get_rank(), mesh.size())
    if mesh.get_rank() == 0:
        torch.save(rest, folder / "state.pt")
        torch.save({"weights": weights, "optimizer": state}, folder / "whole.pt")
    else:
        assert weights == {}, "only rank 0 holds the whole model"
    assert "state_dict/head.weight" not in shards.parts, "tied weights are written once"
    shards.write(folder)


def load_and_compare(mesh: DeviceMesh, folder: Path) -> None:
    root, optimizer = make(mesh, seed=2)
    rest = torch.load(folder / "state.pt", weights_only=True)
    state = put_shards(rest, folder, lambda: mesh)
    root.module.load_state_dict(state["state_dict"])
    optimizer.load_state_dict(state["optimizer_states"][0])
    weights, found = gather_weights(root.module), whole(optimizer.state_dict()["state"])
    wanted = torch.load(folder / "whole.pt", weights_only=True)
    assert_same(found, wanted["optimizer"])
    if mesh.get_rank() == 0:
        assert_same(weights, wanted["weights"])
        assert torch.equal(weights["head.weight"], weights["embed.weight"])
    step(root, optimizer, 3, mesh)  # what was loaded can be trained on


def assert_same(found: Any, wanted: Any) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        if isinstance(value, dict):
            assert_same(found[key], value)
        else:
            assert torch.equal(torch.as_tensor(found[key]), torch.as_tensor(value)), key


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4), (4, 2), (2, 2)])
def test_what_some_ranks_wrote_others_read_to_the_last_bit(tmp_path, before, after):
    on_ranks(before, save, tmp_path)
    files = sorted(tmp_path.glob("shard-*"))
    assert [path.name for path in files] == [
        f"shard-{rank + 1:05d}-of-{before:05d}.safetensors" for rank in range(before)
    ]
    on_ranks(after, load_and_compare, tmp_path)


def write_over_a_limit(mesh: DeviceMesh, folder: Path) -> None:
    """Rank 1 may write no file of more than 100 bytes."""
    shards = StateShards(f"shard-{mesh.get_rank()}", {"a": torch.zeros(1000)}, {"a": [0]})
    writers, (soft, hard) = Writers(), resource.getrlimit(resource.RLIMIT_FSIZE)
    if mesh.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    with pytest.raises(DataError, match="rank 1 cannot write .*shard-1: the file is larger than"):
        writers.write(shards, folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_rank_that_cannot_write_its_shard_is_named_on_all(tmp_path):
    on_ranks(2, write_over_a_limit, tmp_path)
