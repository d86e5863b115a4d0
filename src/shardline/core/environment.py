"""The environment of the ranks: what another launcher left is removed, the rest is set in full."""

import os
import re
from collections.abc import Mapping, Sequence

from shardline.core.errors import LaunchError

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

# What is recorded of an environment: these names and no pattern, which a token's name could fit.
RECORDED = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OMP_PROC_BIND",
    "OMP_PLACES", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
    "PYTHONHASHSEED", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR",
    "MASTER_PORT", "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_CLUSTER_NAME",
    "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_PROCID",
    "SLURM_RESTART_COUNT", "PBS_JOBID", "AZUREML_RUN_ID",
)  # fmt: skip
# Settings of what carries messages between ranks.
TRANSPORTS = (
    *(
        f"NCCL_{name}"
        for name in (
            "ALGO", "ASYNC_ERROR_HANDLING", "BLOCKING_WAIT", "BUFFSIZE", "COLLNET_ENABLE", "COMM_ID",
            "CROSS_NIC", "CUMEM_ENABLE", "DEBUG", "DEBUG_FILE", "DEBUG_SUBSYS", "DMABUF_ENABLE",
            "IB_ADAPTIVE_ROUTING", "IB_CUDA_SUPPORT", "IB_DISABLE", "IB_GID_INDEX", "IB_HCA", "IB_PKEY",
            "IB_QPS_PER_CONNECTION", "IB_RETRY_CNT", "IB_SL", "IB_SPLIT_DATA_ON_QPS", "IB_TC", "IB_TIMEOUT",
            "IGNORE_CPU_AFFINITY", "LAUNCH_MODE", "MAX_CTAS", "MAX_NCHANNELS", "MIN_CTAS", "MIN_NCHANNELS",
            "MNNVL_ENABLE", "NET", "NET_GDR_LEVEL", "NET_GDR_READ", "NET_PLUGIN", "NSOCKS_PERTHREAD",
            "NTHREADS", "NVB_DISABLE", "NVLS_ENABLE", "P2P_DISABLE", "P2P_LEVEL", "PROTO", "PXN_DISABLE",
            "SHM_DISABLE", "SOCKET_FAMILY", "SOCKET_IFNAME", "SOCKET_NTHREADS", "TOPO_FILE", "TUNER_PLUGIN",
        )
    ),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT",
    "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME",
    "UCX_TLS", "UCX_NET_DEVICES", "UCX_IB_GID_INDEX", "UCX_RNDV_SCHEME", "UCX_LOG_LEVEL",
)  # fmt: skip


def recorded_variables(
    env: Mapping[str, str], names: Sequence[str] = (*RECORDED, *TRANSPORTS)
) -> dict[str, str]:
    """Return what may be recorded of an environment: the named variables that are set, no other."""
    return {name: env[name] for name in sorted(names) if name in env}


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
        "PYTHONUNBUFFERED": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # deterministic matrix products on GPUs
        **(dict.fromkeys(named, interface) if interface else {}),
        **{name: str(value) for name, value in variables.items()},
        **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
    }


def check_passed(names: Sequence[str], env: Mapping[str, str]) -> None:
    """Refuse variables of `runtime.pass_env` that are not set.

    Raises:
        LaunchError: names the first.
    """
    if missing := [name for name in names if not env.get(name)]:
        raise LaunchError(
            f"runtime.pass_env names {missing[0]}, which is not set in the environment, expected a value for the "
            f"ranks; export {missing[0]}, or drop it from runtime.pass_env"
        )
