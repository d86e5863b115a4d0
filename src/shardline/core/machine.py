"""CPUs, GPUs and memory that this process may use."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

_UNKNOWN_BYTES = 1 << 40  # of memory, if the system does not report it


def num_cpus() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_gpus(env: Mapping[str, str] = os.environ) -> int:
    """Return the number of NVIDIA GPUs that a process may use, without importing torch.

    Args:
        env: environment of the process.
    """
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def free_memory_bytes() -> int:
    """Return the free memory of the machine or of this process's control group, whichever is less."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # no Linux
        return _UNKNOWN_BYTES
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return min([*found, *_of_groups()], default=_UNKNOWN_BYTES)


def _of_groups() -> Iterator[int]:
    """Yield the free memory of each control group (version 2) of this process, in bytes."""
    with suppress(OSError, ValueError):
        name = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
        root = Path("/sys/fs/cgroup")
        for folder in (root / name, *(root / name).parents):
            if not folder.is_relative_to(root) or not (folder / "memory.max").exists():
                continue
            most = (folder / "memory.max").read_text().strip()
            if most.isdecimal():
                yield max(0, int(most) - int((folder / "memory.current").read_text()))


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since this machine started."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
