"""The environment variables of a job's processes, and the paths of their mounts."""

import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from snakemake_executor_plugin_azureml.node.errors import NodeError

LAUNCH = "SNAKEMAKE_AZUREML_LAUNCH"  # prefix that starts a command on every process
WORLD = "SNAKEMAKE_AZUREML_WORLD"  # the processes that joined, as JSON
RANK = "SNAKEMAKE_AZUREML_RANK"  # this process's rank among them
LEADER = "SNAKEMAKE_AZUREML_LEADER"  # address of rank 0's node
FOLDER = "SNAKEMAKE_AZUREML_FOLDER"  # working folder of rank 0's node program
CONTROL = "SNAKEMAKE_AZUREML_CONTROL"  # the leader's socket for launches; not set for one process

_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """Settings from the command line of the node program.

    Attributes:
        mounts: paths of mounted folders, by variable.
        wait_s: seconds in which all processes must join.
        grace_s: seconds between the request to end and SIGKILL.
        silence_s: seconds after which a silent node counts as gone.
    """

    mounts: Mapping[str, str]
    wait_s: float
    grace_s: float
    silence_s: float


def parse_mounts(texts: Sequence[str]) -> dict[str, str]:
    """Parse the `NAME=PATH` arguments of mounted folders.

    Raises:
        NodeError: a name or path is missing, or the path is not a folder.
    """
    mounts = {}
    for text in texts:
        name, _, path = text.partition("=")
        if not _NAME.fullmatch(name):
            raise NodeError(f"--mount {text}: {name!r} cannot be a variable; write NAME=PATH")
        if not path or not Path(path).is_dir():
            raise NodeError(
                f"--mount {text}: {path or 'an empty path'} is not a folder on {socket.gethostname()}; check in "
                "Azure ML's own log that the datastore was mounted, and fix its path or the identity's permissions"
            )
        mounts[name] = path.rstrip("/") or "/"
    return mounts


def single_process_world() -> list[dict[str, int | str]]:
    """Return the world of one process."""
    host = socket.gethostname()
    return [{"rank": 0, "node": 0, "host": host, "local_rank": 0, "address": "127.0.0.1"}]


def job_environment(
    world: Sequence[Mapping[str, int | str]], rank: int, mounts: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a process's commands: its own variables, and the job's processes by rank."""
    env = {name: os.environ[name] for name in os.environ.keys() - {LAUNCH, CONTROL, FOLDER}}
    own = {WORLD: json.dumps(world), RANK: str(rank), LEADER: str(world[0]["address"])}
    return {**env, **mounts, **own}


def launch_prefix() -> str:
    """Return the prefix that starts a command on every process, for a shell to split."""
    return shlex.join([sys.executable, "-m", __package__, "launch"])


def with_own_mounts(text: str, leader: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Return an argument with the leader's mounted folders replaced by this process's own.

    The paths are usually the same. A path counts at the start of the text or after a `=`.
    """
    for name, path in leader.items():
        if (mine := own.get(name, path)) != path:
            parts = re.split(f"(?:(?<=^)|(?<==)){re.escape(path)}(?=/|$)", text)
            text = mine.join(parts)
    return text
