"""What a training used of its machines, rank by rank."""

import resource
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardline.core.world import World
from shardline.supervision.resource_usage import sealed_curve

_KIB = 1024


def used_by_rank(world: World, work: Path) -> dict[str, Any]:
    """Return what this rank used up to now, with the programs that it ran.

    Args:
        work: the run's folder in the store, where its watchdog keeps the machine curve.

    Returns:
        `rank`, `host`, `peak_rss_bytes` (of the largest process), `cpu_s` (user and system),
        `peak_gpu_bytes` (as PyTorch allocated them; None without a GPU, or in a training script),
        and `curve` where it ran long enough, see `sealed_curve`.
    """
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    unit = 1 if sys.platform == "darwin" else _KIB
    return {
        "rank": world.rank,
        "host": socket.gethostname(),
        "peak_rss_bytes": max(_peak_rss() or own.ru_maxrss * unit, children.ru_maxrss * unit),
        "cpu_s": round(own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime, 3),
        "peak_gpu_bytes": _peak_gpu(),
        **sealed_curve(work, world.rank, world.world_size),
    }


def stepped(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return what a rank's steps took in its last attempt: `data_wait_s` waiting for batches, and `compute_s`.

    Args:
        seconds: of each part, as a `Timeline` gives them.
    """
    return {f"{part}_s": round(seconds[part], 3) for part in ("data_wait", "compute")}


def gather(mine: dict[str, Any], world: World) -> list[dict[str, Any]]:
    """Return what all ranks used, by rank; each rank calls this while their group stands."""
    if world.world_size == 1:
        return [mine]
    import torch.distributed as dist

    found: list[Any] = [None] * world.world_size
    dist.all_gather_object(found, mine)
    return found


def _peak_rss() -> int | None:
    """Return this program's own peak; getrusage also tells that of the one that started it."""
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
