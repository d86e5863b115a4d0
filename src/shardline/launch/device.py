"""The device of a rank."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from shardline.errors import LaunchError


def resolve_accelerator(settings: Mapping[str, Any]) -> str:
    """Return `gpu` or `cpu` for this machine.

    Raises:
        LaunchError: the run asks for GPUs that are not there.
    """
    wanted, gpus = settings["accelerator"], torch.cuda.device_count()
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        if settings["strategy"] == "fsdp":
            raise LaunchError(
                "strategy=fsdp needs GPUs and this machine shows none; use strategy=ddp"
            )
        return "cpu"
    if gpus < settings["devices"]:
        raise LaunchError(
            f"devices={settings['devices']}, but this machine shows {gpus} GPUs; "
            "use fewer devices, or accelerator=cpu"
        )
    return "gpu"


def device_name(device: str) -> str:
    """Return the model name of a GPU, or of the processor."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
