"""Running the user's command under a profile, so that no process of it outlives the test."""

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
    """A command did not end within the test's time."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profile of Snakemake.

    Attributes:
        word: the value of `--profile` in another folder.
        executor: `local`, `slurm`, ...
        runtime: what it sets under `config: runtime:`.
    """

    word: str
    executor: str
    runtime: dict[str, Any]


def read_profile(name: str) -> Profile:
    """Read a profile from where Snakemake would find it.

    Raises:
        ConfigError: no profile has this name, or its jobs see no file of this folder.
    """
    from snakemake.cli import get_profile_dir

    found = get_profile_dir(name)
    if found is None:
        raise ConfigError(f"--profile {name} is not there; give a folder that holds a profile.yaml")
    document = yaml.safe_load(found[1].read_text()) or {}
    if provider := document.get("default-storage-provider"):
        raise ConfigError(
            f"--profile {name} has default-storage-provider={provider}, so that its jobs share no folder with "
            "this machine and no fault can be injected from here; use a profile without this key"
        )
    config = document.get("config") or {}
    return Profile(
        word=str(Path(name).resolve()) if Path(name).exists() else name,
        executor=str(document.get("executor", "local")),
        runtime=config.get("runtime") or {} if isinstance(config, dict) else {},
    )


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Runs Snakemake for a fault-injection test.

    Attributes:
        profile: where the jobs run.
        snakefile: the user's own, or the shipped one.
        arguments: further words for Snakemake.
        deadline: end of the test's time, on the monotonic clock.
        inside: words before each command, such as those that enter a namespace.
    """

    profile: Profile
    snakefile: Path
    arguments: Sequence[str]
    deadline: float
    inside: Sequence[str] = ()

    def words(self, tiny: Tiny, *more: str) -> list[str]:
        """Return the command line that trains a project's runs."""
        models = [run.layout.name_of(run.model) for run in tiny.runs]
        return [
            *self.inside, sys.executable, "-m", "snakemake", "--snakefile", str(self.snakefile),
            "--profile", self.profile.word, "--directory", str(tiny.folder),
            *self.arguments, *more, "--", *models,
        ]  # fmt: skip

    @contextmanager
    def started(self, tiny: Tiny, *more: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Start the command; whatever happens, nothing of it runs on afterwards."""
        with log_of(tiny).open("ab") as log:
            process = subprocess.Popen(
                self.words(tiny, *more),
                cwd=tiny.folder, env=tiny.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches it through us alone
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
        """Wait for a command's end, or for a condition.

        Returns:
            The exit code; None where the condition came first.

        Raises:
            Overdue: neither came within the test's time.
        """
        while not until():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK_S)
            if time.monotonic() > self.deadline:
                raise Overdue("the command did not end within the drill's time (--timeout-s)")
        return None


def log_of(tiny: Tiny) -> Path:
    """Return the file for what the commands of a project print."""
    return tiny.folder / "snakemake.log"


def end(process: "subprocess.Popen[bytes]") -> None:
    """Interrupt a command as Ctrl-C would; after a grace time, kill what is left of it."""
    tree = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    process.kill()
    kill(tree)
    process.wait()


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill processes; those that are gone are no concern."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def descendants(pid: int) -> list[psutil.Process]:
    """Return a process's children, and theirs."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []
