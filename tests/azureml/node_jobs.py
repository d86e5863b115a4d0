"""Jobs of the node program for the tests: real processes on machines, with the variables of Azure ML."""

import base64
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.azureml.test_node_place import RECORDED
from tests.support.machines import Machine

# The addresses in the recorded environments.
NODES = {"node-a": "10.0.0.4", "node-b": "10.0.0.5"}
PATIENCE_S = 120.0  # for what a busy machine does late
MODULE = "snakemake_executor_plugin_azureml.node"
LAUNCH = "$SNAKEMAKE_AZUREML_LAUNCH"
# Each process writes what it sees of itself.
TELL = """
import json, os, socket, sys
rank = os.environ["SNAKEMAKE_AZUREML_RANK"]
text = open("in/f.json").read()
seen = {"host": socket.gethostname(), "cwd": os.getcwd(), "text": text, "argv": sys.argv[1:], "env": dict(os.environ)}
json.dump(seen, open(os.path.join(os.environ["SHARED"], f"rank-{rank}.json"), "w"))
print("hello of rank", rank)
"""


def environment(recorded: str, nodes: int, each: int, rank: int) -> dict[str, str]:
    """Return what the service sets for a rank, by the names in a recorded environment."""
    values = {
        **dict.fromkeys(("RANK", "OMPI_COMM_WORLD_RANK"), rank),
        **dict.fromkeys(("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"), nodes * each),
        **dict.fromkeys(("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), rank % each),
        **dict.fromkeys(("NODE_RANK", "AZUREML_CR_NODE_RANK"), rank // each),
        "OMPI_COMM_WORLD_LOCAL_SIZE": each,
        "OMPI_COMM_WORLD_NODE_RANK": rank % each,
        "AZUREML_NODE_COUNT": nodes,
    }
    env = RECORDED[recorded]
    return {**env, **{name: str(value) for name, value in values.items() if name in env}}


class Job:
    """The processes of one job, each with a log of its own; each node has its own working folder."""

    def __init__(self, machines: Mapping[str, Machine], folder: Path) -> None:
        self._machines, self.folder = machines, folder
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self._env: dict[int, dict[str, str]] = {}
        self.shared = folder / "shared"
        self.shared.mkdir()
        for name in NODES:
            (folder / name).mkdir()
        (folder / "node-a" / "in").mkdir()
        (folder / "node-a" / "in" / "f.json").write_text('{"lr": 0.1}')
        (folder / "tell.py").write_text(TELL)

    def start(
        self, job: str, geometry: tuple[str, int, int], *options: str, wait_s: float = PATIENCE_S,
        but: tuple[int, ...] = (), **changes: str,
    ) -> None:  # fmt: skip
        """Start the node program as each rank of a geometry, but some."""
        recorded, nodes, each = geometry
        for rank in set(range(nodes * each)) - set(but):
            self._env[rank] = {
                **environment(recorded, nodes, each, rank), "SHARED": str(self.shared), **changes
            }  # fmt: skip
            self.start_one(rank, each, job, *options, wait_s=wait_s)

    def start_one(self, rank: int, each: int, job: str, *options: str, wait_s: float) -> None:
        name = list(NODES)[rank // each]
        if "--mount" not in options:
            options = (*options, "--mount", f"SHARED={self.shared}")
        words = [
            sys.executable,
            "-m",
            MODULE,
            "run",
            "--wait-s",
            str(wait_s),
            *options,
            encoded(job),
        ]
        with self.log_file(rank).open("w") as log:
            self.processes[rank] = self._machines[name].popen(
                *words, cwd=self.folder / name, env=self._env[rank], stdout=log
            )

    def log_file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"

    def log(self, rank: int) -> str:
        return self.log_file(rank).read_text()

    def logs(self) -> str:
        return "".join(f"--- rank {rank}\n{self.log(rank)}" for rank in self.processes)

    def codes(self, timeout_s: float = PATIENCE_S) -> list[int]:
        """Wait for the end of all and return their exit codes by rank."""
        deadline = time.monotonic() + timeout_s
        try:
            return [
                self.processes[rank].wait(max(0.1, deadline - time.monotonic()))
                for rank in sorted(self.processes)
            ]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended:\n{self.logs()}") from None

    def kill(self, *ranks: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to node programs alone; the first that ends may end the others before theirs."""
        for machine, pid in [self._program(rank) for rank in ranks]:
            machine.run("kill", f"-{number.value}", pid, check=len(ranks) == 1)

    def _program(self, rank: int) -> tuple[Machine, str]:
        """Return where a rank's node program runs, and its pid there."""
        machine = self._machines[list(NODES)[rank * len(NODES) // max(2, len(self._env))]]
        listed = machine.run("ps", "-e", "-ww", "--format", "pid=,args=").stdout
        for line in listed.splitlines():
            pid, _, words = line.strip().partition(" ")
            if words.startswith(f"{sys.executable} -m {MODULE} run"):
                env = machine.run("cat", f"/proc/{pid}/environ").stdout.split("\0")
                if f"RANK={rank}" in env:
                    return machine, pid
        raise AssertionError(f"rank {rank} does not run:\n{listed}")

    def wait_for(self, *names: str) -> None:
        """Wait until files are in the shared folder."""
        self.wait_until(lambda: all((self.shared / name).exists() for name in names), str(names))

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what}:\n{self.logs()}"
            time.sleep(0.02)

    def seen(self, rank: int) -> Any:
        path = self.shared / f"rank-{rank}.json"
        assert path.exists(), self.logs()
        return json.loads(path.read_text())


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def launch(*command: str, options: str = "") -> str:
    return f"{LAUNCH} {options} -- {shlex.join(command)}"


def shell(text: str) -> str:
    return launch("sh", "-c", text)
