"""Processes of tests: their environment, their end, and waiting for what they do."""

import os
import random
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress

import psutil

from shardline.core.rank_environment import rank_variables


def rank_environment() -> dict[str, str]:
    """Return the environment of ranks with one thread each, as a launcher gives it."""
    return {**os.environ, **rank_variables(1, {}, ""), "PYTHONFAULTHANDLER": "1"}


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free port that Linux gives to nobody who does not name it, so that it stays free."""
    while True:
        port = random.SystemRandom().randrange(20000, 32768)
        with socket.socket() as found, suppress(OSError):
            found.bind((host, port))
            return port


def end_of_ranks(process: subprocess.Popen[str], timeout_s: float = 900) -> str:
    """Wait for the end of a launcher and return its output; if none comes, tell where all ranks are."""
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=timeout_s)[0]
    for rank in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            rank.send_signal(signal.SIGABRT)  # has Python tell its stack
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError(f"no end within {timeout_s} s; it told\n{process.communicate()[0]}")


def descendants(pid: int, fits: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Return the processes below one that fit; those that end meanwhile do not."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if fits(child):
                found.append(child)
    return found


def training_job(pid: int) -> psutil.Process:
    """Return the process of the training's job, below that of Snakemake."""
    (job,) = descendants(
        pid, lambda p: "train.py" in " ".join(p.cmdline()) and "python" in p.name()
    )
    return job


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for a condition while a process runs.

    Files give no event to wait for, so this looks again each time that the
    process has not ended within 20 ms.
    """
    while not condition():
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"it ended with code {process.returncode} before the condition held")
