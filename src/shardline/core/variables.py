"""Environment variables that change results, or seem to, and how Shardline treats them.

The names come from the sources of Lightning, torch, torchmetrics, transformers, NumPy, oneDNN, MKL, OpenBLAS and
libgomp as installed, and from the documentation of CUDA, NCCL, gloo, UCX and Open MPI.
`docs/reference/variables.md` shows this table. A test compares both, and searches the installed
packages for names without a row.
"""

import sys
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from shardline.core.errors import ConfigError, LaunchError

# Names of the profile's `runtime.variables`, which ranks keep.
GIVEN = "SHARDLINE_VARIABLES"
# Variables that Python reads at its start. An empty value counts as unset, and passes every launcher.
OF_PYTHON = {"PYTHONHASHSEED": "0", "PYTHONOPTIMIZE": "", "PYTHONUTF8": "1"}


@dataclass(frozen=True, kw_only=True)
class VariableGroup:
    """Group of variables that Shardline treats alike.

    Attributes:
        names: exact names, or prefixes that end in `*`; the longest match decides.
        kind: `removed` from the ranks' environment, `set` there, `recorded` unchanged, or `harmless`.
        reason: effect of the variables, and reason for the kind.
        is_place: whether they describe where a job ran, so that comparisons leave them out.
    """

    names: tuple[str, ...]
    kind: Literal["removed", "set", "recorded", "harmless"]
    reason: str
    is_place: bool = False


def _row(kind: str, names: str, reason: str, *, is_place: bool = False) -> VariableGroup:
    return VariableGroup(names=tuple(names.split()), kind=kind, reason=reason, is_place=is_place)  # type: ignore[arg-type]


# Settings of the communication between ranks.
_TRANSPORTS = """
    NCCL_ALGO NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_BUFFSIZE NCCL_COLLNET_ENABLE NCCL_COMM_ID
    NCCL_CROSS_NIC NCCL_CUMEM_ENABLE NCCL_DEBUG NCCL_DEBUG_FILE NCCL_DEBUG_SUBSYS NCCL_DMABUF_ENABLE
    NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_CUDA_SUPPORT NCCL_IB_DISABLE NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_IB_PKEY
    NCCL_IB_QPS_PER_CONNECTION NCCL_IB_RETRY_CNT NCCL_IB_SL NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_TC NCCL_IB_TIMEOUT
    NCCL_IGNORE_CPU_AFFINITY NCCL_LAUNCH_MODE NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MIN_NCHANNELS
    NCCL_MNNVL_ENABLE NCCL_NET NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ NCCL_NET_PLUGIN NCCL_NSOCKS_PERTHREAD
    NCCL_NTHREADS NCCL_NVB_DISABLE NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_PROTO NCCL_PXN_DISABLE
    NCCL_SHM_DISABLE NCCL_SOCKET_FAMILY NCCL_SOCKET_IFNAME NCCL_SOCKET_NTHREADS NCCL_TOPO_FILE NCCL_TUNER_PLUGIN
    TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_BLOCKING_WAIT GLOO_SOCKET_IFNAME TP_SOCKET_IFNAME
    UCX_TLS UCX_NET_DEVICES UCX_IB_GID_INDEX UCX_RNDV_SCHEME UCX_LOG_LEVEL
    OMPI_MCA_btl OMPI_MCA_pml OMPI_MCA_coll OMPI_MCA_coll_tuned_use_dynamic_rules
    OMPI_MCA_coll_tuned_allreduce_algorithm
"""
TRANSPORTS = tuple(_TRANSPORTS.split())

TABLE = (
    _row("removed", "PL_*", "Lightning: arguments of the Trainer, seeds of workers, the configuration of DeepSpeed"),
    _row("removed", "LT_*", "Lightning Fabric: devices, nodes, strategy and precision of a training script"),
    _row(
        "removed", "TORCH_* PYTORCH_* TORCHDYNAMO_* TORCHINDUCTOR_* TRITON_* INDUCTOR_* AOT_* AOTI_* AOTINDUCTOR_*",
        "torch: other kernels, compilers and fallbacks, whose sums differ at least in the last bits",
    ),
    _row(
        "removed", "NVIDIA_TF32_OVERRIDE ONEDNN_* DNNL_* CUDNN_ATTENTION",
        "matrix products in another precision or by other kernels; use the setting `precision`",
    ),
    _row(
        "removed",
        "USE_TF USE_TORCH USE_FLAX USE_TORCH_XLA USE_HUB_KERNELS XLA_USE_BF16 XLA_USE_F16 XLA_DOWNCAST_BF16 "
        "FLASH_ATTENTION_DETERMINISTIC TRANSFORMERS_* TRUST_REMOTE_CODE",
        "transformers: another framework, precision, other kernels, or code from a server",
    ),
    _row("removed", "ACCELERATE_*", "Accelerate, in a training script: precision, devices, sharding, compilers"),
    _row("removed", "OMP_DYNAMIC", "the number of threads follows the load of the machine, and sums depend on it"),
    _row("removed", "NPY_PROMOTION_STATE NUMPY_EXPERIMENTAL_DTYPE_API", "NumPy: other dtypes of results"),
    _row(
        "set", "PYTHONHASHSEED",
        "0: the order of sets and the `hash` of strings are the same in each process; a profile cannot change it",
    ),
    _row("set", "PYTHONOPTIMIZE", "empty: `assert` stays active; a profile cannot change it"),
    _row("set", "PYTHONUTF8", "1: files are read as UTF-8 in each locale; a profile cannot change it"),
    _row(
        "set", "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS",
        "`runtime.threads_per_rank`: the number of threads changes the last bits of sums",
    ),
    _row("set", "CUBLAS_WORKSPACE_CONFIG", "`:4096:8`: matrix products on a GPU are deterministic"),
    _row(
        "recorded",
        "ATEN_CPU_CAPABILITY MKL_CBWR MKL_ENABLE_INSTRUCTIONS MKL_DISABLE_FAST_MM ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA "
        "ONEDNN_CPU_ISA_HINTS DNNL_CPU_ISA_HINTS OPENBLAS_CORETYPE OPENBLAS_BLOCK_FACTOR OPENBLAS_L2_SIZE "
        "NPY_DISABLE_CPU_FEATURES NPY_ENABLE_CPU_FEATURES FBGEMM_ENABLE_INSTRUCTIONS FBGEMM_ENABLE_AVX512_256 "
        "FBGEMM_FORCE_AUTOVEC FBGEMM_NO_AUTOVEC FBGEMM_NO_ASMJIT GLIBC_TUNABLES",
        "CPU instructions: they change the last bits, as another processor does, which is recorded too",
    ),
    _row(
        "recorded",
        "MKL_DYNAMIC MKL_DOMAIN_NUM_THREADS MKL_NUM_STRIPES MKL_THREADING_LAYER MKL_SERVICE_FORCE_INTEL "
        "OMP_THREAD_LIMIT OMP_SCHEDULE OMP_NESTED OMP_MAX_ACTIVE_LEVELS OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY "
        "KMP_AFFINITY KMP_HW_SUBSET KMP_DETERMINISTIC_REDUCTION",
        "division of work among threads: sites set them for speed",
    ),
    _row(
        "recorded",
        "CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_DEVICE_MAX_CONNECTIONS CUDA_FORCE_PTX_JIT CUBLASLT_WORKSPACE_SIZE "
        "PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF",
        "GPUs: memory, order and waiting, which may make libraries choose another algorithm",
    ),
    _row("recorded", _TRANSPORTS, "communication between ranks: algorithms of NCCL and MPI decide the order of sums"),
    _row(
        "recorded", "LD_PRELOAD LD_LIBRARY_PATH PYTHONPATH PYTHONHOME PYTHONNOUSERSITE PYTHONSAFEPATH",
        "where libraries and modules are found; Shardline compares their versions with the lock",
    ),
    _row("recorded", "LANG LC_ALL LC_CTYPE TZ", "texts and times, if your code uses the local ones"),
    _row("recorded", "HF_HUB_OFFLINE", "whether a download is possible"),
    _row(
        "recorded",
        "CUDA_VISIBLE_DEVICES RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT "
        "SLURM_JOB_ID SLURM_JOB_NAME SLURM_JOB_PARTITION SLURM_CLUSTER_NAME SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES "
        "SLURM_NTASKS SLURM_CPUS_PER_TASK SLURM_PROCID SLURM_RESTART_COUNT PBS_JOBID AZUREML_RUN_ID",
        "the place of a rank in its job; comparisons leave it out", is_place=True,
    ),
    _row(
        "harmless",
        "TORCH_LOGS* TORCH_TRACE TORCH_CPP_LOG_LEVEL TORCH_SHOW_CPP_STACKTRACES TORCH_DISTRIBUTED_DEBUG TORCH_NCCL_* "
        "TORCH_FR_* TORCH_GLOO_LAZY_INIT TORCH_SYMBOLIZE_MODE TORCH_ADDR2LINE_BINARY TORCH_DISABLE_ADDR2LINE "
        "TORCH_CUSTOM_TERMINATE TORCH_DISABLE_SHARE_RDZV_TCP_STORE TORCH_ELASTIC_* TORCH_COMPILE_DEBUG "
        "TORCHDYNAMO_VERBOSE PYTORCH_API_USAGE_STDERR PYTORCH_JIT_LOG_LEVEL TRANSFORMERS_VERBOSITY "
        "TRANSFORMERS_NO_ADVISORY_WARNINGS POSSIBLE_USER_WARNINGS KINETO_* LOGLEVEL TQDM_* ONEDNN_VERBOSE "
        "DNNL_VERBOSE MKL_VERBOSE OPENBLAS_VERBOSE OMP_DISPLAY_ENV",
        "logs, traces, and how ranks find and lose each other",
    ),
    _row(
        "harmless",
        "TORCH_HOME TORCH_HUB TORCH_EXTENSIONS_DIR TORCH_CUDA_ARCH_LIST TORCHINDUCTOR_CACHE_DIR "
        "TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_WORKER_START TORCHINDUCTOR_FX_GRAPH_CACHE TRITON_CACHE_DIR "
        "TRITON_PTXAS_PATH TRITON_LIBDEVICE_PATH PYTORCH_KERNEL_CACHE_PATH PYTORCH_NO_CUDA_MEMORY_CACHING "
        "PYTORCH_NVML_BASED_CUDA_CHECK TORCH_DEVICE_BACKEND_AUTOLOAD TRANSFORMERS_CACHE TRANSFORMERS_OFFLINE "
        "CUDA_HOME CUDA_PATH CUDA_MODULE_LOADING",
        "caches, and the paths and number of compilers",
    ),
    _row(
        "harmless", "HF_* HUGGINGFACE_* HUGGING_FACE_HUB_TOKEN",
        "tokens, caches and servers of the Hub: files count by digest or revision; some are secrets",
    ),
    _row("harmless", "TOKENIZERS_PARALLELISM USE_LIBUV", "threads and sockets; results keep their order"),
    _row("harmless", "OMP_* GOMP_* KMP_* MKL_* OPENBLAS_*", "stacks, waiting and output of threads"),
    _row("harmless", "NCCL_* GLOO_* UCX_* OMPI_MCA_*", "other settings of communication; messages stay the same"),
    _row("harmless", "MALLOC_*", "speed of memory allocation; Shardline sets two"),
    _row("harmless", "PYTHON*", "output, warnings and debugging of Python"),
)  # fmt: skip


@cache
def row_of(name: str) -> VariableGroup | None:
    """Return the row of a variable; None without a row."""
    fits = (
        (len(one), row)
        for row in TABLE
        for one in row.names
        if name == one or (one.endswith("*") and name.startswith(one[:-1]))
    )
    return max(fits, key=lambda found: found[0], default=(0, None))[1]


# The recorded variables: exact names only, since the name of a token could match a pattern.
RECORDED = tuple(
    name for row in TABLE if row.kind != "harmless" for name in row.names if not name.endswith("*")
)


def compared(recorded: Mapping[str, str]) -> dict[str, str]:
    """Return the recorded variables that a comparison of runs shows: no places, one for all threads."""
    rows = {name: row_of(name) for name, value in recorded.items() if value}
    return {
        name: recorded[name]
        for name, row in rows.items()
        if not (row and (row.is_place or (row.kind == "set" and name != row.names[0])))
    }


def recorded_variables(env: Mapping[str, str], names: Sequence[str] = RECORDED) -> dict[str, str]:
    """Return the variables of an environment that may be recorded: the named ones that are set.

    By default, variables that a profile sets are added if they change results.
    """
    given = [name for name in env.get(GIVEN, "").split(",") if is_removed(name)]
    known = given if names is RECORDED else []
    return {name: env[name] for name in sorted({*names, *known}) if name in env}


def is_removed(name: str) -> bool:
    """Return whether a variable is removed from the environment in which results are made."""
    row = row_of(name)
    return row is not None and row.kind == "removed"


def clean(env: MutableMapping[str, str]) -> list[str]:
    """Remove variables that change results, except for the profile's, and set `OF_PYTHON`.

    Returns:
        The names of the removed variables.
    """
    given = env.get(GIVEN, "").split(",")
    removed = sorted(name for name in env if is_removed(name) and name not in given)
    for name in removed:
        del env[name]
    env.update(OF_PYTHON)
    return removed


def cleaned(env: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of an environment as `clean` leaves it."""
    copy = dict(env)
    clean(copy)
    return copy


def ignored(names: Sequence[str]) -> str:
    """Return the warning that names removed variables."""
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (
        f"environment: {shown} would change what is trained, and {'are' if len(names) > 1 else 'is'} ignored; use the "
        "settings of a run, or `runtime.variables` (docs/reference/variables.md)"
    )


def check_given(names: Iterable[str], where: str) -> None:
    """Check that a profile's `runtime.variables` sets no variable that changes what is trained.

    Args:
        names: the variables.
        where: start of the message.

    Raises:
        ConfigError: a variable changes what is trained; the message names it.
    """
    for name in names:
        if name in OF_PYTHON or name.startswith(("PL_", "LT_")):
            raise ConfigError(
                f"{where}: runtime.variables sets {name}, which changes what is trained, expected variables of the "
                f"machine; remove {name}, and use the settings of a run (docs/reference/variables.md)"
            )


def check_python() -> None:
    """Check that this rank's interpreter was started with the hash seed 0 and with `assert`.

    Raises:
        LaunchError: a variable of `OF_PYTHON` was lost; the message names it.
    """
    flags = {"PYTHONHASHSEED": sys.flags.hash_randomization, "PYTHONOPTIMIZE": sys.flags.optimize}
    if lost := [name for name, found in flags.items() if found]:
        raise LaunchError(
            f"this rank's Python was started without {lost[0]}={OF_PYTHON[lost[0]]}, on which results depend; expected "
            "the launcher to pass it on; check what drops or sets variables between the job and its ranks "
            "(runtime.launcher_args, image.run_args, a shell's profile), or export it if you start ranks by hand"
        )
