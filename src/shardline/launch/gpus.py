"""The GPUs of this machine that a job may use, by the names that CUDA_VISIBLE_DEVICES accepts."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardline.core.errors import LaunchError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_TIMEOUT_S = 60
_GPU = re.compile(r"GPU (?P<index>\d+): (?P<model>.*) \(UUID: (?P<uuid>GPU-\S+)\)")
_INSTANCE = re.compile(r"\s+MIG .*\(UUID: (?P<uuid>MIG-\S+)\)")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU of this machine.

    Attributes:
        uuid: its UUID, such as `GPU-5c89852c-...`.
        model: its name, such as `NVIDIA A100-SXM4-40GB`.
        instances: UUIDs of its MIG instances; empty without MIG. A process uses an instance in place of the GPU.
    """

    uuid: str
    model: str
    instances: tuple[str, ...] = ()

    @property
    def units(self) -> tuple[str, ...]:
        """What one rank can use: the GPU, or each of its instances."""
        return self.instances or (self.uuid,)


def list_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine in the order of their PCI buses; none without a driver."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return _of_driver(Path("/proc/driver/nvidia/gpus"))
    return parse_gpus(done.stdout)


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Parse the output of `nvidia-smi -L`."""
    found: list[Gpu] = []
    for line in text.splitlines():
        if gpu := _GPU.match(line):
            found.append(Gpu(uuid=gpu["uuid"], model=gpu["model"]))
        elif (instance := _INSTANCE.match(line)) and found:
            last = found[-1]
            instances = (*last.instances, instance["uuid"])
            found[-1] = Gpu(uuid=last.uuid, model=last.model, instances=instances)
    return tuple(found)


def _of_driver(folder: Path) -> tuple[Gpu, ...]:
    """Return the GPUs in the driver's own files, for a machine without nvidia-smi."""
    texts = [path.read_text() for path in sorted(folder.glob("*/information"))]
    fields = [dict(re.findall(r"^(Model|GPU UUID):\s*(.+?)\s*$", text, re.M)) for text in texts]
    return tuple(
        Gpu(uuid=one["GPU UUID"], model=one.get("Model", "")) for one in fields if "GPU UUID" in one
    )


def usable_gpus(gpus: Sequence[Gpu], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs or MIG instances that a process with this environment may use.

    Args:
        gpus: GPUs of the machine, from `list_gpus`; if there are none, the inherited names are returned.
        env: environment; CUDA_VISIBLE_DEVICES is read as CUDA reads it: numbers, or UUIDs and their beginnings,
            up to the first `-1`.

    Raises:
        LaunchError: CUDA_VISIBLE_DEVICES names no GPU of this machine, or numbers whose order is unknown.
    """
    if VISIBLE not in env:
        return tuple(unit for gpu in gpus for unit in gpu.units)
    names = [name.strip() for name in env[VISIBLE].split(",")]
    for end in ("-1", ""):
        names = names[: names.index(end)] if end in names else names
    if not gpus:
        return tuple(dict.fromkeys(names))
    return tuple(dict.fromkeys(_unit(name, gpus, env) for name in names))


def _unit(name: str, gpus: Sequence[Gpu], env: Mapping[str, str]) -> str:
    shown = f"{VISIBLE}={env[VISIBLE]}"
    if name.isdecimal():
        models = {gpu.model for gpu in gpus}
        # CUDA counts the fastest GPU first, unless it is told to count by bus
        if len(models) > 1 and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            raise LaunchError(
                f"{shown} are numbers, and this machine has different GPUs ({', '.join(sorted(models))}), which "
                "CUDA counts in an order of its own; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name UUIDs "
                "(`nvidia-smi -L` lists them)"
            )
        if int(name) < len(gpus):
            return gpus[int(name)].units[0]
    elif name.startswith(("MIG-GPU-", "MIG-")) and "/" in name:
        return name  # drivers before 470 named instances GPU/instance/compute
    else:
        units = [unit for gpu in gpus for unit in (gpu.uuid, *gpu.instances)]
        if len(found := [unit for unit in units if unit.startswith(name)]) == 1:
            return next((gpu.units[0] for gpu in gpus if gpu.uuid == found[0]), found[0])
    raise LaunchError(
        f"{shown} names {name}, which is no GPU of this machine; name UUIDs or numbers up to {len(gpus) - 1} "
        "(`nvidia-smi -L` lists them)"
    )
