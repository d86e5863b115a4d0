"""The environment of the ranks: what another launcher left is removed, the rest is set in full."""

import os
import re
from collections.abc import Mapping, Sequence

from shardline.core.errors import LaunchError
from shardline.core.variables import GIVEN, OF_PYTHON

# What tells a process its place. A job may have been started by a step, an
# agent or an mpirun of its own; its place is not the ranks'.
PLACE = re.compile(
    r"(SLURM|SRUN|SBATCH|SALLOC|PMI|PMI2|PMIX|PALS|OMPI_COMM_WORLD|OMPI_UNIVERSE|TORCHELASTIC|PET|GROUP|ROLE)_\w+"
    r"|OMPI_MCA_(ess|orte|pmix|prte)\w*|(HYDI|MPI_LOCAL)\w+"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|NODE_RANK"
    r"|MASTER_ADDR|MASTER_PORT|MASTER_IP|SHARDLINE_HOSTS|TF_CONFIG"
)
_KEPT = {
    "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_PARTITION", "SLURM_JOB_NAME", "SLURM_JOB_USER", "SLURM_SUBMIT_DIR",
    "SLURM_SUBMIT_HOST", "SLURM_RESTART_COUNT", "SLURM_TMPDIR",
}  # fmt: skip
# Snakemake gives each of them the whole job's cores, and torch heeds MKL's before
# OpenMP's: two ranks with two threads each on two cores were 4.5 times slower.
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
# glibc gives freed memory back to the kernel and asks for it again, page by page: a fifth of a step of 6 ms
# with gradients of 4 MB. The first is where its own adaptation ends.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(512 << 20)}


def without_place(env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return an environment without the variables that tell a process its place, and their names."""
    removed = sorted(name for name in env if PLACE.fullmatch(name) and name not in _KEPT)
    return {name: value for name, value in env.items() if name not in removed}, removed


def rank_variables(
    threads: int, variables: Mapping[str, str | int], interface: str
) -> dict[str, str]:
    """Return what every rank gets in its environment, wherever it runs.

    Args:
        threads: CPU threads of an operation.
        variables: the profile's own, such as `NCCL_IB_HCA`.
        interface: network interface between the machines; empty leaves it to the libraries.

    Raises:
        LaunchError: there is no thread for a rank.
    """
    if threads < 1:
        raise LaunchError(f"threads_per_rank={threads} is not at least 1; set it to 1 or more")
    named = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    return {
        **dict.fromkeys(_THREADS, str(threads)),
        **_MALLOC,
        **OF_PYTHON,
        "PYTHONUNBUFFERED": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # deterministic matrix products on GPUs
        **(dict.fromkeys(named, interface) if interface else {}),
        **{name: str(value) for name, value in variables.items()},
        GIVEN: ",".join(variables),
        **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
    }


def check_passed(names: Sequence[str], env: Mapping[str, str]) -> None:
    """Refuse variables of `runtime.pass_env` that are not set.

    Raises:
        LaunchError: names the first.
    """
    if missing := [name for name in names if not env.get(name)]:
        raise LaunchError(
            f"runtime.pass_env names {missing[0]}, which is not set in the environment, expected a value to "
            f"pass to the ranks; export {missing[0]}, or drop it from runtime.pass_env"
        )
