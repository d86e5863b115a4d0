"""The preflight check of a task's ranks, with the arguments that the task determines."""

from dataclasses import asdict
from typing import Any

from shardline.config.resolved import ActualGeometry
from shardline.core.world import World
from shardline.training.rank_task import RankTask


def meet(task: RankTask, world: World, **describe: Any) -> dict[str, Any]:
    """Run the preflight check of a task's ranks; see `launch.preflight.check`.

    Args:
        describe: Further values that this rank reports about itself.

    Raises:
        LaunchError: A rank or a device is missing, or a path does not work.
    """
    # torch is imported only after the arguments were read without an error
    from shardline.launch.device import libraries, resolve_accelerator
    from shardline.launch.preflight.preflight_check import run_preflight

    settings, runtime = task.run.settings, task.runtime
    planned = ActualGeometry(nodes=settings.nodes, devices=settings.devices)
    geometry = task.geometry or planned
    is_gpu = resolve_accelerator(settings.accelerator, devices=geometry.devices) == "gpu"
    found = run_preflight(
        world,
        backend="nccl" if is_gpu else "gloo",
        device=f"cuda:{world.local_rank}" if is_gpu else "cpu",
        timeout_s=runtime.rendezvous_timeout_s,
        planned=asdict(geometry),
        describe={"run": task.run.title, "libraries": libraries(), **describe},
        oversubscribe=runtime.oversubscribe,
    )
    return asdict(found)
