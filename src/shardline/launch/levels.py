"""The place of this process as each level of nested launchers reports it in environment variables.

The variables are torch's (torch.distributed.run, docs.pytorch.org/docs/stable/elastic/run.html),
Open MPI's (docs.open-mpi.org, section 11.1), those of PMI and the Hydra process
manager (MPICH, Intel MPI), PALS (Cray), and Slurm's (srun(1), output environment variables).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardline.core.errors import LaunchError
from shardline.launch.launched_world import expand_tasks, is_loopback

PLACE = ("rank", "world_size", "local_rank", "local_world_size")
_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# One row per value: the variables that may contain it. All that are set must agree.
_OPEN_MPI = tuple(
    (f"OMPI_COMM_WORLD_{name}",) for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
)
_PMI = (
    ("PMI_RANK", "PALS_RANKID"),
    ("PMI_SIZE",),
    ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
    ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
)
_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # slurm.h: the batch, interactive and external steps


@dataclass
class LauncherEnvironment:
    """Values that one level of launchers reports, and their variables, by field of World.

    Attributes:
        launcher: name of the launcher, for messages and for World.
        sets_all: whether this launcher always sets all variables, so that a
            missing variable was removed on the way.
        missing: variables that a complete level needs and that are not set.
        found: variables that are set.
    """

    launcher: str
    sets_all: bool = False
    values: dict[str, int] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)

    def put(self, name: str, value: int, origin: str) -> None:
        """Store a value that follows from other values."""
        self.values[name], self.origins[name] = value, origin

    def read(self, env: Mapping[str, str], name: str, variables: Sequence[str]) -> None:
        """Read a value from the first variable that is set; the other variables must agree."""
        there = [variable for variable in variables if env.get(variable)]
        for variable in there:
            value = integer(env, variable)
            if self.values.setdefault(name, value) != value:
                raise LaunchError(
                    f"{self.origins[name]}, but {variable}={env[variable]}; "
                    "unset the variable that an outer launcher left"
                )
            self.origins.setdefault(name, f"{variable}={env[variable]}")
        self.found += there
        if not there:
            self.missing.append(variables[0])

    @property
    def nodes(self) -> int:
        """Number of nodes; valid for a complete level."""
        return self.values["world_size"] // max(1, self.values["local_world_size"])


def torch_level(env: Mapping[str, str]) -> LauncherEnvironment:
    """Read torch's variables: torchrun, torch.distributed.launch, Azure Machine Learning, Kubernetes."""
    elastic = bool(env.get("TORCHELASTIC_RUN_ID"))
    in_pod = bool(env.get("KUBERNETES_SERVICE_HOST") or env.get("PET_NNODES"))
    level = LauncherEnvironment(
        "torchrun" if elastic else "azureml" if is_azure(env) else "torch", elastic
    )
    for name, variable in zip(PLACE[:3], _TORCH[:3], strict=True):
        level.read(env, name, (variable,))
    deepspeed = ("LOCAL_SIZE",) if env.get("CROSS_RANK") else ()  # set by DeepSpeed's launcher
    level.read(env, "local_world_size", ("LOCAL_WORLD_SIZE", *deepspeed))
    # torchrun sets GROUP_RANK; a NODE_RANK beside it has another numbering of the nodes
    level.read(env, "node_rank", ("GROUP_RANK",) if env.get("GROUP_RANK") else ("NODE_RANK",))
    level.missing = [name for name in level.missing if name != "NODE_RANK"]
    level.found = [name for name in level.found if name != "NODE_RANK"]
    if level.missing == ["LOCAL_RANK", "LOCAL_WORLD_SIZE"] and in_pod:
        _one_rank_per_pod(env, level)
    elif level.missing == ["LOCAL_WORLD_SIZE"]:
        _find_local_size(env, level)
    if level.found:
        for variable in ("MASTER_ADDR", "MASTER_PORT"):
            (level.found if env.get(variable) else level.missing).append(variable)
    return level


def _one_rank_per_pod(env: Mapping[str, str], level: LauncherEnvironment) -> None:
    """Treat a pod as a rank: Kubernetes operators number pods, which is right for one rank per pod."""
    for variable, one in (("PET_NPROC_PER_NODE", 1), ("PET_NNODES", level.values["world_size"])):
        # other values, such as "auto" and "1:4", give no number
        if env.get(variable, "").isdigit() and integer(env, variable) != one:
            raise LaunchError(
                f"{variable}={env[variable]} and {level.origins['world_size']}, but LOCAL_RANK is not set: "
                f"{level.origins['rank']} is a pod, not a rank; start the ranks with torchrun in the pod"
            )
    level.launcher, level.missing = "kubernetes", []
    level.put("local_rank", 0, "one rank per pod")
    level.put("local_world_size", 1, "one rank per pod")


def _find_local_size(env: Mapping[str, str], level: LauncherEnvironment) -> None:
    """Derive the ranks per node, which older launchers leave out, if other variables determine it."""
    rank, size, local_rank = (level.values[name] for name in PLACE[:3])
    node = level.values.get("node_rank", 0)
    if size == 1:
        level.put("local_world_size", 1, level.origins["world_size"])
    elif node > 0:
        level.put(
            "local_world_size", (rank - local_rank) // node, "(rank - local_rank) // node_rank"
        )
    elif env.get("AZUREML_NODE_COUNT"):
        nodes = integer(env, "AZUREML_NODE_COUNT")
        _check_divides(nodes, "AZUREML_NODE_COUNT", level)
        level.put("local_world_size", size // nodes, "WORLD_SIZE // AZUREML_NODE_COUNT")
    elif is_loopback(env.get("MASTER_ADDR", "")):
        level.put("local_world_size", size, f"MASTER_ADDR={env['MASTER_ADDR']}: all on one node")
    else:
        return
    level.missing = []


def _check_divides(nodes: int, variable: str, level: LauncherEnvironment) -> None:
    size = level.values["world_size"]
    if nodes < 1 or size % nodes:
        raise LaunchError(
            f"{level.origins['world_size']} ranks do not divide evenly over {variable}={nodes}; "
            "start the same number of ranks on each node"
        )


def mpi_level(env: Mapping[str, str]) -> LauncherEnvironment:
    """Read the variables of Open MPI, or else those of MPICH, Intel MPI and Cray's PALS."""
    level = LauncherEnvironment("azureml" if is_azure(env) else "mpirun", sets_all=True)
    _read_rows(env, level, _OPEN_MPI)
    if level.found:
        if env.get("PMIX_RANK") and not level.missing:
            level.read(env, "rank", ("PMIX_RANK",))  # set too; another value is a leftover
        return level
    level = LauncherEnvironment("azureml" if is_azure(env) else "mpiexec")
    _read_rows(env, level, _PMI)
    return level


def _read_rows(
    env: Mapping[str, str], level: LauncherEnvironment, rows: Sequence[Sequence[str]]
) -> None:
    for name, variables in zip(PLACE, rows, strict=True):
        level.read(env, name, variables)


def slurm_level(env: Mapping[str, str]) -> LauncherEnvironment:
    """Read the variables of this process's Slurm step; the job's own shell is in no step."""
    level = LauncherEnvironment("srun")
    step = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID") or ""
    if not step or (step.isdigit() and int(step) >= _FIRST_SPECIAL_STEP):
        return level
    level.read(env, "rank", ("SLURM_PROCID",))
    level.read(
        env, "world_size", (first_set(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),)
    )
    level.read(env, "local_rank", ("SLURM_LOCALID",))
    if env.get("SLURM_NODEID"):
        level.read(env, "node_rank", ("SLURM_NODEID",))
    tasks = first_set(env, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    level.found.append("SLURM_STEP_ID")
    if not env.get(tasks):
        level.missing.append(tasks)
    elif not level.missing:
        counts = expand_tasks(env[tasks])
        if len(set(counts)) > 1:
            raise LaunchError(
                f"{tasks}={env[tasks]} is uneven; start the same number of ranks on each node"
            )
        if sum(counts) != level.values["world_size"]:
            raise LaunchError(
                f"{tasks}={env[tasks]} counts {sum(counts)} tasks, but {level.origins['world_size']}; "
                "unset the variables that an outer job left"
            )
        level.put("local_world_size", counts[0], f"{tasks}={env[tasks]}")
    return level


def first_set(env: Mapping[str, str], *variables: str) -> str:
    """Return the first variable that is set, or the first name if none is set."""
    return next((name for name in variables if env.get(name)), variables[0])


def is_azure(env: Mapping[str, str]) -> bool:
    """Return whether Azure Machine Learning runs this job."""
    names = ("AZUREML_RUN_ID", "AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE")
    return any(env.get(name) for name in names)


def integer(env: Mapping[str, str], name: str) -> int:
    """Return the integer value of a variable.

    Raises:
        LaunchError: the value is not an integer.
    """
    try:
        return int(env[name])
    except ValueError:
        raise LaunchError(f"{name}={env[name]} is not an integer; fix the launcher") from None
