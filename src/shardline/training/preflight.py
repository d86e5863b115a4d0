"""The rehearsal of a run: `python -m shardline.training.preflight ...` is one rank of it, started by a launcher."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardline.core.files import write_json
from shardline.core.world import World
from shardline.supervision.rank import run_rank


def rehearse_run(
    settings: Mapping[str, Any], world: World, *, run: str, timeout_s: int, oversubscribe: bool,
    **describe: Any,
) -> dict[str, Any]:  # fmt: skip
    """Let a run's ranks meet and try every path between them; see `launch.rehearsal`.

    Args:
        settings: `nodes`, `devices` and `accelerator` of the run.
        describe: what else this rank says of itself.

    Raises:
        LaunchError: a rank or a device is missing, or a path does not work.
    """
    # torch is imported only once the arguments are good
    from shardline.launch.device import libraries, resolve_accelerator
    from shardline.launch.preflight.check import rehearse

    is_gpu = resolve_accelerator(settings) == "gpu"
    return rehearse(
        world,
        backend="nccl" if is_gpu else "gloo",
        device=f"cuda:{world.local_rank}" if is_gpu else "cpu",
        timeout_s=timeout_s,
        planned={"nodes": settings["nodes"], "devices": settings["devices"]},
        describe={"run": run, "libraries": libraries(), **describe},
        oversubscribe=oversubscribe,
    ).to_json()


def main() -> int:
    """Be one rank; rank 0 writes what was found. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m shardline.training.preflight", description=__doc__
    )
    parser.add_argument("run", help="id of the run")
    for name in ("nodes", "devices", "rendezvous-timeout-s"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--accelerator", required=True)
    for name in ("work", "rank-logs", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--oversubscribe", action="store_true")
    args = parser.parse_args()

    def body(world: World) -> None:
        timeout_s, is_allowed = args.rendezvous_timeout_s, args.oversubscribe
        found = rehearse_run(
            vars(args), world, run=args.run, timeout_s=timeout_s, oversubscribe=is_allowed
        )
        if world.rank == 0:
            write_json(args.output, found)

    return run_rank(body, work=args.work, logs=args.rank_logs, shorten=repr)


if __name__ == "__main__":
    sys.exit(main())
