"""The preflight check of a run: `python -m shardline.training.preflight preflight.json` is one rank of it."""

import sys
from dataclasses import asdict
from typing import Any

from shardline.config.geometry import ActualGeometry
from shardline.core.files import write_json
from shardline.core.world import World
from shardline.supervision.rank import run_rank
from shardline.training.rank_spec import PreflightSpec, spec_of_command


def preflight_run(
    world: World, geometry: ActualGeometry, *, accelerator: str, run: str, timeout_s: int,
    oversubscribe: bool, **describe: Any,
) -> dict[str, Any]:  # fmt: skip
    """Run the preflight check of a run's ranks; see `launch.preflight.check`.

    Args:
        geometry: the ranks that are to be there.
        accelerator: setting of the run.
        describe: what else this rank reports of itself.

    Raises:
        LaunchError: a rank or a device is missing, or a path does not work.
    """
    # torch is imported only once the arguments are good
    from shardline.launch.device import libraries, resolve_accelerator
    from shardline.launch.preflight.check import run_preflight

    is_gpu = resolve_accelerator(accelerator, devices=geometry.devices) == "gpu"
    found = run_preflight(
        world,
        backend="nccl" if is_gpu else "gloo",
        device=f"cuda:{world.local_rank}" if is_gpu else "cpu",
        timeout_s=timeout_s,
        planned=asdict(geometry),
        describe={"run": run, "libraries": libraries(), **describe},
        oversubscribe=oversubscribe,
    )
    return asdict(found)


def main() -> int:
    """Be one rank; rank 0 writes what was found. Returns the exit code."""
    spec = spec_of_command(PreflightSpec, "shardline.training.preflight", __doc__)

    def body(world: World) -> None:
        found = preflight_run(
            world,
            spec.geometry,
            accelerator=spec.accelerator,
            run=spec.run,
            timeout_s=spec.rendezvous_timeout_s,
            oversubscribe=spec.oversubscribe,
        )
        if world.rank == 0:
            write_json(spec.output, found)

    return run_rank(body, work=spec.work, logs=spec.rank_logs, shorten=repr)


if __name__ == "__main__":
    sys.exit(main())
