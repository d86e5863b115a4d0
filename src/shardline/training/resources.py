"""Measure the memory and processor time that each rank of a training used."""

import resource
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec import UNSET

from shardline.core.world import World
from shardline.records.measured import RankUsage
from shardline.supervision.resource_usage import sealed_curve

_KIB = 1024
_Found = TypeVar("_Found")


def used_by_rank(world: World, work: Path, seconds: Mapping[str, float] | None = None) -> RankUsage:
    """Return the resources that this rank and its child processes used so far.

    Args:
        work: The run's folder in the store, where the watchdog writes the machine curve.
        seconds: Seconds of each part of this attempt, see `Timeline.seconds`.
    """
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    unit = 1 if sys.platform == "darwin" else _KIB
    return RankUsage(
        rank=world.rank,
        host=socket.gethostname(),
        peak_rss_bytes=max(_peak_rss() or own.ru_maxrss * unit, children.ru_maxrss * unit),
        cpu_s=round(own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime, 3),
        peak_gpu_bytes=_peak_gpu(),
        curve=sealed_curve(work, world.rank, world.world_size) or UNSET,
        data_wait_s=round(seconds["data_wait"], 3) if seconds else UNSET,
        compute_s=round(seconds["compute"], 3) if seconds else UNSET,
    )


def gather(mine: _Found, world: World) -> list[_Found]:
    """Return the objects of all ranks, by rank; each rank must call this before the process group ends."""
    if world.world_size == 1:
        return [mine]
    import torch.distributed as dist

    found: list[Any] = [None] * world.world_size
    dist.all_gather_object(found, mine)
    return found


def _peak_rss() -> int | None:
    """Return the peak memory of this program; getrusage may return that of its parent."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
    return int(kib) * _KIB if kib else None


def _peak_gpu() -> int | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.max_memory_allocated())
