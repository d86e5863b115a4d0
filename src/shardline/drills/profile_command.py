"""Run the user's command under a profile, and leave no process behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from shardline.core.errors import ConfigError, ShardlineError
from shardline.drills.tiny import Tiny

_LOOK_S, _GRACE_S = 0.1, 60.0


class Overdue(ShardlineError):
    """Error: a command did not end within the time limit of the test."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Settings of a Snakemake profile.

    Attributes:
        word: value of `--profile` that also works from another folder.
        executor: `local`, `slurm`, ...
        runtime: settings under `config: runtime:`.
    """

    word: str
    executor: str
    runtime: dict[str, Any]


def read_profile(name: str) -> Profile:
    """Read a profile that Snakemake finds by name or path.

    Raises:
        ConfigError: the profile does not exist, or its jobs do not share this folder.
    """
    from snakemake.cli import get_profile_dir

    found = get_profile_dir(name)
    if found is None:
        raise ConfigError(f"--profile {name} does not exist; expected a folder with a profile.yaml")
    document = yaml.safe_load(found[1].read_text()) or {}
    if provider := document.get("default-storage-provider"):
        raise ConfigError(
            f"--profile {name} has default-storage-provider={provider}, so its jobs share no folder with this "
            "machine and no fault can be injected from here; use a profile without this key"
        )
    config = document.get("config") or {}
    return Profile(
        word=str(Path(name).resolve()) if Path(name).exists() else name,
        executor=str(document.get("executor", "local")),
        runtime=config.get("runtime") or {} if isinstance(config, dict) else {},
    )


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Snakemake commands of a fault-injection test.

    Attributes:
        profile: profile of the jobs.
        snakefile: the user's Snakefile or the shipped one.
        arguments: further command-line arguments for Snakemake.
        deadline: time limit of the test, on the monotonic clock, in seconds.
        inside: command prefix, such as a command that enters a namespace.
    """

    profile: Profile
    snakefile: Path
    arguments: Sequence[str]
    deadline: float
    inside: Sequence[str] = ()

    def words(self, tiny: Tiny, *more: str) -> list[str]:
        """Return the command line that trains the runs of a project."""
        models = [run.layout.name_of(run.model) for run in tiny.runs]
        return [
            *self.inside, sys.executable, "-m", "snakemake", "--snakefile", str(self.snakefile),
            "--profile", self.profile.word, "--directory", str(tiny.folder),
            *self.arguments, *more, "--", *models,
        ]  # fmt: skip

    @contextmanager
    def started(self, tiny: Tiny, *more: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Start the command, and end all of its processes when the context ends."""
        with log_of(tiny).open("ab") as log:
            process = subprocess.Popen(
                self.words(tiny, *more),
                cwd=tiny.folder, env=tiny.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,  # only this process forwards Ctrl-C
            )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                end(process)

    def run(self, tiny: Tiny, *more: str) -> int:
        """Run the command to its end and return its exit code."""
        with self.started(tiny, *more) as process:
            self.wait(process)
            return process.returncode

    def wait(
        self, process: "subprocess.Popen[bytes]", until: Callable[[], bool] = bool
    ) -> int | None:
        """Wait until a command ends or a condition is true.

        Returns:
            Exit code; None if the condition came first.

        Raises:
            Overdue: the time limit of the test passed first.
        """
        while not until():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK_S)
            if time.monotonic() > self.deadline:
                raise Overdue("the command did not end within the test's time; raise --timeout-s")
        return None


def log_of(tiny: Tiny) -> Path:
    """Return the log file of the commands of a project."""
    return tiny.folder / "snakemake.log"


def end(process: "subprocess.Popen[bytes]") -> None:
    """Interrupt a command as Ctrl-C would, and kill its remaining processes after a grace period."""
    tree = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    process.kill()
    kill(tree)
    process.wait()


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill processes that still exist."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def descendants(pid: int) -> list[psutil.Process]:
    """Return all descendants of a process."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []
