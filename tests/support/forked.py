"""Ranks that are forked from a server which has imported torch and Lightning once.

Each rank, and torchrun's agent too, would import them for some seconds. For tests
of what ranks do, whoever starts them; others have the real launchers.
"""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from unittest import mock

from tests.support.processes import rank_environment

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [  # what the worker imports on its way
        "shardline.checkpoints.manager",
        "shardline.launch.preflight.preflight_check",
        "shardline.ledger",
        "shardline.training.metrics_file",
        "shardline.provenance.record",
        "shardline.training.script",
        "shardline.training.fit",
        "shardline.training.sealed_training",
        "shardline.training.rank",
    ]
)


class Launch:
    """A launcher of ranks in a process group of its own, with what tests use of `subprocess.Popen`."""

    def __init__(self, size: int, spec: Path, *, cwd: Path, output: Path) -> None:
        """Start it.

        Args:
            size: number of ranks.
            spec: what the ranks are given.
            output: file for what the ranks print.
        """
        self._output = output
        self._process = SERVER.Process(target=_launch, args=(size, spec, cwd, output), daemon=True)
        with mock.patch.dict(os.environ, rank_environment()):  # the server keeps that of the first
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("the forked ranks", timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        self.wait(timeout)
        return self._output.read_text(), None


def _launch(size: int, spec: Path, cwd: Path, output: Path) -> None:
    """Start the ranks; the first that fails ends the others, and its exit code is ours."""
    os.setsid()
    os.chdir(cwd)
    with output.open("w") as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())} if size > 1 else {}
    ranks = {_start(rank, size, address, spec) for rank in range(size)}
    worst = 0
    while ranks:
        pid, status = os.wait()
        ranks.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        if code and not worst:
            worst = code if code > 0 else 128 - code
            for other in ranks:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGTERM)
    sys.exit(worst)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _start(rank: int, size: int, address: dict[str, str], spec: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if size > 1:
            numbers = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": size,
                "LOCAL_WORLD_SIZE": size,
            }
            os.environ.update({**address, **{name: str(value) for name, value in numbers.items()}})
        sys.argv = ["shardline.training.rank", str(spec)]
        from shardline.training import rank as program

        code = program.main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
