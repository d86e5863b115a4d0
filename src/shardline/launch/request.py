"""The resources that a run's jobs request from a scheduler."""

from shardline.config.checks import evaluates_on_ranks, predicts_on_ranks
from shardline.config.plans import PredictionPlan, RunPlan
from shardline.config.settings.config import Runtime
from shardline.config.settings.run_settings import RunSettings

REQUESTED = (
    "nodes", "tasks", "tasks_per_node", "cpus_per_task", "gres", "gpus", "tasks_per_gpu", "mpi",
)  # fmt: skip


def requested(settings: RunSettings, runtime: Runtime) -> dict[str, int | str]:
    """Return the resources of a run's job, by the names of Snakemake's Slurm plugin.

    With `mpi`, the plugin runs the job on the first node outside of any step,
    so that a launcher can start steps on all nodes. The plugin accepts either
    `tasks` or `tasks_per_node`, and only values above 1.

    Args:
        runtime: settings of the profile; `launcher` and `threads_per_rank` are used.
    """
    nodes, devices = settings.nodes, settings.devices
    if runtime.launcher == "azureml":
        return {"nodes": nodes}  # the compute's VM size determines CPUs and GPUs
    cpus = runtime.threads_per_rank or 1
    # one task per rank; with torchrun and none, one task starts all ranks of a node
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
    """Return the resources of a run's evaluation job; empty if one process on the CPU evaluates."""
    return requested(run.settings, runtime) if evaluates_on_ranks(run, runtime) else {}


def prediction_requested(prediction: PredictionPlan, runtime: Runtime) -> dict[str, int | str]:
    """Return the resources of a prediction job; empty if one process on the CPU predicts."""
    settings = prediction.spec.settings
    return requested(settings, runtime) if predicts_on_ranks(settings, runtime) else {}


def threads_of(
    settings: RunSettings, runtime: Runtime, *, cores: int | None, is_alone: bool
) -> int:
    """Return the threads of Snakemake's cores that a run's job uses on this machine.

    Args:
        runtime: settings of the profile; `threads_per_rank` is used.
        cores: Snakemake's cores on this machine; None if jobs run elsewhere, where all
            threads are available.
        is_alone: whether other jobs must not run beside it, because it measures performance.
    """
    devices, per_rank = settings.devices, runtime.threads_per_rank
    takes_all = is_alone or settings.nodes > 1  # other machines are not counted
    return int(max(devices * (per_rank or 1), (cores or 1) if takes_all else 1))
