"""The ranks that evaluate one model: their devices, and how rank 0 gathers their results."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from shardline.core.world import World
from shardline.launch.device import resolve_accelerator
from shardline.training.row_scores import Columns
from shardline_io.order.blocks import BlockOrder


@dataclass(frozen=True, kw_only=True)
class EvaluationRanks:
    """The ranks that have at least one block to evaluate.

    Attributes:
        rank: This rank.
        size: Number of ranks with a block.
        device: Device of this rank.
        world: This rank's place in the job; None if no launcher started the process.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    world: World | None = None

    @classmethod
    def of(cls, world: World | None, accelerator: str, num_blocks: int) -> "EvaluationRanks":
        """Return the ranks that have a block; this rank must be one of them.

        Args:
            world: This rank's place in the job; None for one process on the CPU.
            accelerator: The run's setting `accelerator`.
            num_blocks: Number of blocks of all ranks together.

        Raises:
            LaunchError: There are fewer GPUs than ranks.
        """
        if world is None:
            return cls()
        kind = resolve_accelerator(accelerator, devices=world.local_world_size)
        device = torch.device("cpu" if kind == "cpu" else f"cuda:{world.local_rank}")
        if kind == "gpu":
            torch.cuda.set_device(device)
            torch.backends.cudnn.allow_tf32 = False  # as on the CPU, whole float32
            torch.backends.cudnn.deterministic = True
        return cls(
            rank=world.rank, size=min(world.world_size, num_blocks), device=device, world=world
        )

    def join(self) -> None:
        """Form the process group if there are several ranks."""
        if self.size == 1 or self.world is None or dist.is_initialized():
            return
        os.environ["MASTER_ADDR"] = self.world.master_addr
        os.environ["MASTER_PORT"] = str(self.world.master_port)
        backend = "gloo" if self.device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, init_method="env://", rank=self.rank, world_size=self.size)

    def gather(self, mine: Any) -> list[Any]:
        """Return the objects of all ranks, by rank; call `join` first."""
        if self.size == 1:
            return [mine]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine)
        return found

    def in_order(self, own: Iterator[Columns], order: BlockOrder) -> Iterator[Columns]:
        """Yield the columns of all ranks' blocks in block order on rank 0, nothing on other ranks.

        Args:
            own: Columns [n] or [n, k] of this rank's blocks; float64 must represent all values exactly.
            order: Block order of this rank.
        """
        if self.size == 1:
            yield from own
            return
        for start in range(0, order.num_blocks, self.size):
            blocks = np.arange(start, min(start + self.size, order.num_blocks))
            firsts, lasts = order.bounds(blocks)
            sizes = (lasts - firsts).tolist()
            columns = next(own, None)
            if start == 0:
                assert columns is not None
                kinds = {n: (of.dtype, of.shape[1:]) for n, of in columns.items()}
                widths = [math.prod(shape) for _, shape in kinds.values()]
                width, ends = sum(widths), np.cumsum(widths)
            sent = torch.zeros(max(sizes), width, dtype=torch.float64)
            if columns is not None:
                flat = [of.reshape(len(of), -1).astype(np.float64) for of in columns.values()]
                rows = np.concatenate(flat, axis=1)
                sent[: len(rows)] = torch.from_numpy(rows)
            for size, block in zip(sizes, self._collect(sent), strict=False):
                table = block[:size].numpy()
                yield {
                    name: np.ascontiguousarray(values.reshape(size, *shape), dtype=dtype)
                    for (name, (dtype, shape)), values in zip(
                        kinds.items(), np.split(table, ends[:-1], axis=1), strict=True
                    )
                }

    def _collect(self, sent: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors that all ranks send, on rank 0; an empty list on other ranks."""
        received = [torch.empty_like(sent) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(sent, received)
        return received or []
