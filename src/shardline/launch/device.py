"""The device of a rank, and the native libraries of its machine."""

import platform
import subprocess
from pathlib import Path

import torch

from shardline.core.errors import LaunchError


def resolve_accelerator(accelerator: str, *, devices: int) -> str:
    """Choose `gpu` or `cpu` on this machine.

    Args:
        accelerator: setting of the run: `auto`, `cpu` or `gpu`.
        devices: ranks on this machine. Each rank needs its own GPU.

    Raises:
        LaunchError: the run needs more GPUs than this machine has.
    """
    gpus = torch.cuda.device_count()
    if accelerator == "cpu" or (accelerator == "auto" and not gpus):
        return "cpu"
    if gpus < devices:
        raise LaunchError(
            f"devices={devices}, but torch finds {gpus} GPUs on this machine; "
            "use fewer devices, or accelerator=cpu"
        )
    return "gpu"


def libraries() -> dict[str, str | None]:
    """Return the processor's model and the versions of torch's native libraries; None if missing."""
    driver, is_cuda = Path("/sys/module/nvidia/version"), torch.version.cuda is not None
    nccl = torch.cuda.nccl.version() if is_cuda else ()  # type: ignore[no-untyped-call]
    cudnn = torch.backends.cudnn.version() if is_cuda else None  # type: ignore[no-untyped-call]
    return {
        "cpu": _processor(),
        "driver": driver.read_text().strip() if driver.exists() else None,
        "cuda": torch.version.cuda,
        "cudnn": str(cudnn) if cudnn else None,
        "nccl": ".".join(map(str, nccl)) or None,
        "mpi": _mpi(),
    }


def _mpi() -> str | None:
    """Return the version of the first MPI on PATH, such as `mpirun (Open MPI) 4.1.4`."""
    try:
        done = subprocess.run(
            ["mpirun", "--version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.splitlines()), None)


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
