"""Ranks that are forked from a server which has imported torch and Lightning once.

Each rank, and torchrun's agent too, would import them for some seconds. For tests
of what ranks do, whoever starts them; others have the real launchers.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.processes import free_port, rank_environment

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

    def __init__(
        self, size: int, spec: Path, *, cwd: Path, output: Path, hold: int | None = None
    ) -> None:
        """Start it.

        Args:
            size: number of ranks.
            spec: what the ranks are given.
            output: file for what the ranks print.
            hold: step after which the ranks wait while the file `hold` is in `cwd`.
        """
        self._output = output
        given = (size, spec, cwd, output, hold)
        self._process = SERVER.Process(target=_launch, args=given, daemon=True)
        with mock.patch.dict(os.environ, rank_environment()):  # the server keeps that of the first
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        return _joined(self._process, timeout)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        self.wait(timeout)
        return self._output.read_text(), None


class Program:
    """A program's text that runs in a forked process, with what tests use of `subprocess.Popen`.

    Args:
        text: source of the program.
        arguments: its `sys.argv[1:]`.
        env: variables to set in the process.
    """

    def __init__(self, text: str, *arguments: str, env: Mapping[str, str]) -> None:
        """Start it."""
        (read, self._written), (self._read, write) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(self._written, "w"), os.fdopen(self._read)
        own = {**rank_environment(), **env}
        given = (text, arguments, own, DupFd(read), DupFd(write))
        self._process = SERVER.Process(target=_run, args=given, daemon=True)
        self._process.start()
        os.close(read)
        os.close(write)
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        return _joined(self._process, timeout)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        self.stdin.close()
        text = self.stdout.read()
        self.stdout.close()
        self.wait(timeout)
        return text, None


def _joined(process: ForkServerProcess, timeout: float | None) -> int:
    process.join(timeout)
    if process.exitcode is None:
        raise subprocess.TimeoutExpired("a forked process", timeout or 0)
    return process.exitcode


def _run(
    text: str, arguments: Sequence[str], env: Mapping[str, str], read: Any, write: Any
) -> None:
    os.environ.clear()
    os.environ.update(env)
    written = write.detach()
    for standard, fd in enumerate((read.detach(), written, written)):
        os.dup2(fd, standard)
    sys.stdin = os.fdopen(0, closefd=False)  # the server's own is at its end
    sys.argv = ["-c", *arguments]
    exec(compile(text, "<program>", "exec"), {"__name__": "__main__"})


def _launch(size: int, spec: Path, cwd: Path, output: Path, hold: int | None) -> None:
    """Start the ranks; the first that fails ends the others, and its exit code is ours."""
    os.setsid()
    os.chdir(cwd)
    with output.open("w") as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if size > 1 else {}
    if hold is not None:
        _hold_after(hold, cwd / "hold")
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


def _hold_after(step: int, file: Path) -> None:
    """Have ranks that are forked later wait after a step, as long as a file and this process are there."""
    from shardline.training.heartbeat import Heartbeat

    launcher, begin = os.getpid(), Heartbeat.on_train_batch_start

    def on_train_batch_start(self: Heartbeat, trainer: Any, *batch: Any) -> None:
        begin(self, trainer, *batch)
        while trainer.global_step >= step and file.exists() and os.getppid() == launcher:
            time.sleep(0.01)

    Heartbeat.on_train_batch_start = on_train_batch_start  # type: ignore[method-assign]


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
