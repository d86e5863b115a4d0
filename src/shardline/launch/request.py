"""What a run asks of a scheduler, as resources of its job."""

from shardline.config.checks import evaluates_on_ranks, predicts_on_ranks
from shardline.config.plans import PredictionPlan, RunPlan
from shardline.config.settings.config import Runtime
from shardline.config.settings.run_settings import RunSettings

REQUESTED = (
    "nodes", "tasks", "tasks_per_node", "cpus_per_task", "gres", "tasks_per_gpu", "mpi",
)  # fmt: skip


def requested(settings: RunSettings, runtime: Runtime) -> dict[str, int | str]:
    """Return the resources of a run's job, by the names of Snakemake's Slurm plugin.

    The plugin's `mpi` has it run the job on the first node, outside of any
    step, where a launcher can start steps on all nodes. It takes either
    `tasks` or `tasks_per_node`, and neither may be 1.

    Args:
        runtime: the profile's `launcher` and `threads_per_rank`.
    """
    nodes, devices = settings.nodes, settings.devices
    if runtime.launcher == "azureml":
        return {"nodes": nodes}  # what a node has follows from the compute's size
    cpus = runtime.threads_per_rank or 1
    # one task for each rank; torchrun and none start a node's ranks themselves
    per_node = devices if runtime.launcher in ("srun", "mpirun") else 1
    asked: dict[str, int | str] = {"nodes": nodes, "cpus_per_task": cpus * devices // per_node}
    if settings.accelerator == "gpu":
        asked |= {"gres": f"gpu:{devices}", "tasks_per_gpu": 0}  # 0: tasks are counted by node
    if per_node > 1:
        asked |= {"mpi": "srun", "tasks_per_node": per_node}
    elif nodes > 1:
        asked |= {"mpi": "srun", "tasks": nodes}
    return asked


def evaluation_requested(run: RunPlan, runtime: Runtime) -> dict[str, int | str]:
    """Return the resources of the job that evaluates a run; none where one process on the CPU does it."""
    return requested(run.settings, runtime) if evaluates_on_ranks(run, runtime) else {}


def prediction_requested(prediction: PredictionPlan, runtime: Runtime) -> dict[str, int | str]:
    """Return the resources of the job that predicts; none where one process on the CPU does it."""
    settings = prediction.spec.settings
    return requested(settings, runtime) if predicts_on_ranks(settings, runtime) else {}


def threads_of(
    settings: RunSettings, runtime: Runtime, *, cores: int | None, is_alone: bool
) -> int:
    """Return the threads that a run's job takes of Snakemake's cores on this machine.

    Args:
        runtime: the profile's `threads_per_rank`.
        cores: of this machine's Snakemake; None where jobs go elsewhere, which have as many as
            there are.
        is_alone: no job may run beside it, which would spoil what it measures.
    """
    devices, per_rank = settings.devices, runtime.threads_per_rank
    takes_all = is_alone or not per_rank
    return int(max(devices * (per_rank or 1), (cores or 1) if takes_all else 1))
