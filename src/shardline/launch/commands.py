"""The command line of each launcher."""

import sys
from collections.abc import Sequence

from shardline.errors import LaunchError


def launch_command(
    launcher: str, program: Sequence[str], *, nodes: int, devices: int, run_id: str
) -> list[str]:
    """Return the command line that starts every rank of a run.

    Args:
        launcher: `torchrun` or `none`.
        program: arguments after `python`, such as `-m shardline.worker run.json`.
        run_id: names the rendezvous.

    Raises:
        LaunchError: the launcher cannot start this geometry.
    """
    if nodes > 1:
        raise LaunchError(f"nodes={nodes}, but launcher={launcher} starts one node; use nodes=1")
    if launcher == "none" or devices == 1:
        if devices > 1:
            raise LaunchError(f"devices={devices}, but launcher=none starts one rank; use torchrun")
        return [sys.executable, *program]
    # port 0: the agent takes a free one, so that two runs on a machine never meet
    return [
        sys.executable, "-m", "torch.distributed.run",
        "--nnodes=1", f"--nproc-per-node={devices}", "--max-restarts=0",
        "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", f"--rdzv-id={run_id}",
        *program,
    ]  # fmt: skip
