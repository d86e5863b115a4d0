"""Environment variables of the ranks: variables of other launchers are removed, the others are set."""

import os
import re
from collections.abc import Mapping, Sequence

from shardline.core.errors import LaunchError
from shardline.core.variables import GIVEN, OF_PYTHON

# Variables with a process's place among others. The process that starts the ranks may have a place of
# its own, in a job step, an agent or an mpirun, which is not the place of a rank.
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
# Snakemake sets each of them to all cores of the job, and torch prefers MKL's to OpenMP's.
# Two ranks with two threads each on two cores were 4.5 times slower.
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
# glibc returns freed memory to the kernel and requests it again, page by page. This took a fifth of a step
# of 6 ms with gradients of 4 MB. The first value is the limit of glibc's own adaptation.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(512 << 20)}


def without_place(env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return an environment without variables of other launchers, and the names of these variables."""
    removed = sorted(name for name in env if PLACE.fullmatch(name) and name not in _KEPT)
    return {name: value for name, value in env.items() if name not in removed}, removed


def rank_variables(
    threads: int, variables: Mapping[str, str | int], interface: str
) -> dict[str, str]:
    """Return the environment variables of every rank, wherever it runs.

    Args:
        threads: number of CPU threads of a rank, at least 1.
        variables: `runtime.variables` of the profile, such as `NCCL_IB_HCA`.
        interface: network interface between the nodes; if empty, the libraries choose one.

    Raises:
        LaunchError: `threads` is less than 1.
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
    """Check that all variables of `runtime.pass_env` are set.

    Raises:
        LaunchError: a variable is not set; the message names the first.
    """
    if missing := [name for name in names if not env.get(name)]:
        raise LaunchError(
            f"runtime.pass_env names {missing[0]}, which is not set in the environment, expected a value to "
            f"pass to the ranks; export {missing[0]}, or drop it from runtime.pass_env"
        )
