"""The faults that can be injected, and what injects each."""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from shardline.core.errors import LaunchError
from shardline.drills.profile_command import Commands, descendants
from shardline.drills.tiny import Tiny, num_ranks
from shardline.records.attempts import Attempt
from shardline.supervision.attempt_log import read_attempts

_DISK_SIZE = "64m"


class SmallDisk:
    """A disk that filling harms nobody: a tmpfs in a mount namespace of its own, as a context; it is gone at the end.

    Args:
        folder: where it is mounted; commands see it through `inside` alone.
    """

    FILLER = "filler"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._holder: subprocess.Popen[str] | None = None

    def __enter__(self) -> "SmallDisk":
        self._folder.mkdir(parents=True)
        script = f'mount -t tmpfs -o size={_DISK_SIZE} tmpfs "$1" && echo mounted && exec cat'
        user = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
        self._holder = subprocess.Popen(
            ["unshare", *user, "--mount", "sh", "-c", script, "sh", str(self._folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        if (reply := self._holder.stdout.readline().strip()) != "mounted":
            self.__exit__()
            raise LaunchError(
                f"the fault disk-full cannot be injected here ({reply}): it needs user and mount namespaces "
                "(`unshare --user --mount`) for a disk that nobody else uses; ask the administrator"
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._holder is not None
        self._holder.kill()
        self._holder.wait()

    @property
    def inside(self) -> list[str]:
        """Words that run the command behind them where the disk is mounted."""
        assert self._holder is not None
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self._holder.pid), *user, "--mount"]

    def path(self, path: Path) -> Path:
        """Return where a path on the disk is seen from outside."""
        assert self._holder is not None
        return Path(f"/proc/{self._holder.pid}/root{path}")

    @property
    def filler(self) -> Path:
        """The file that fills it, seen from outside."""
        return self.path(self._folder / self.FILLER)


@dataclass(kw_only=True)
class Scene:
    """A training while a fault is injected.

    Attributes:
        process: the user's command, as it runs.
        orphans: processes that outlived the command.
    """

    commands: Commands
    tiny: Tiny
    process: "subprocess.Popen[bytes]"
    disk: SmallDisk | None = None
    orphans: list[psutil.Process] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        does: what happens, in a few words.
        action: what the model does to its ranks; see `drills.faulty_model`.
        is_for_all: whether every rank does `action`; else the last rank alone.
        pace_s: seconds by which each batch takes longer under the action `slow`.
        runtime: settings of the training with faults.
        local_runtime: further settings where no scheduler sets a time limit.
        inject: what is done from outside once a rank is at its place.
        restore: what a user does before the same command is given again.
        executors: Snakemake's executors on which the fault can be injected.
    """

    does: str
    action: str = "slow"
    is_for_all: bool = False
    pace_s: float = 0.3
    runtime: Mapping[str, Any] = field(default_factory=dict)
    local_runtime: Mapping[str, Any] = field(default_factory=dict)
    inject: Callable[[Scene], None] | None = None
    restore: Callable[[Scene], None] | None = None
    executors: tuple[str, ...] = ("local", "slurm")

    def runtime_on(self, executor: str) -> dict[str, Any]:
        """Return the settings of the training with faults."""
        return {**self.runtime, **(self.local_runtime if executor == "local" else {})}


def _preempt(scene: Scene) -> None:
    if scene.commands.profile.executor == "slurm":
        _scontrol("requeue", str(_slurm_job(scene).job))
    else:
        _job_process(scene).send_signal(signal.SIGTERM)


def _set_deadline(scene: Scene) -> None:
    """Cut the job's time limit, as its owner may; other executors got theirs at the start."""
    if scene.commands.profile.executor == "slurm":
        job = _slurm_job(scene)
        minutes = math.ceil((time.time() - job.started_s) / 60) + 1
        _scontrol("update", f"JobId={job.job}", f"TimeLimit={minutes}")


def _kill_controller(scene: Scene) -> None:
    scene.orphans += descendants(scene.process.pid)
    os.kill(scene.process.pid, signal.SIGKILL)


def _unlock(scene: Scene) -> None:
    scene.commands.run(scene.tiny, "--unlock")


def _empty_disk(scene: Scene) -> None:
    assert scene.disk is not None
    scene.disk.filler.unlink(missing_ok=True)


def _slurm_job(scene: Scene) -> Attempt:
    (run,) = scene.tiny.runs
    return read_attempts(scene.tiny.work(run))[-1]


def _job_process(scene: Scene) -> psutil.Process:
    """Return the process that started the ranks' launcher: the rule's script."""
    (run,) = scene.tiny.runs
    (injected,) = scene.tiny.injected(num_ranks(run))
    for parent in psutil.Process(injected["pid"]).parents():
        if any(".snakemake/scripts/" in word for word in parent.cmdline()):
            return parent
    raise LaunchError("the process of the training's job was not found among those of this machine")


def cancel(scene: Scene) -> None:
    """Cancel the test's jobs that are still in the queue."""
    if scene.commands.profile.executor == "slurm":
        attempts = [one for run in scene.tiny.runs for one in read_attempts(scene.tiny.work(run))]
        jobs = {one.job for one in attempts if one.job and one.end != "sealed"}
        subprocess.run(["scancel", *jobs], check=False, capture_output=True)


def _scontrol(*words: str) -> None:
    try:
        subprocess.run(["scontrol", *words], check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise LaunchError(f"`scontrol {' '.join(words)}` failed: {str(reason).strip()}") from None


FAULTS = {
    "resume": Fault(
        does="SIGKILL of all ranks, several times: in mid-epoch, mid-accumulation, mid-validation",
        action="kill",
        is_for_all=True,
    ),
    "kill-rank": Fault(does="SIGKILL of one rank", action="kill"),
    "stop-rank": Fault(does="SIGSTOP of one rank", action="stop", runtime={"hang_timeout_s": 15}),
    "preempt": Fault(
        does="the job is preempted (Slurm: scontrol requeue; else SIGTERM)",
        is_for_all=True,
        inject=_preempt,
    ),
    "timeout": Fault(
        does="the job's deadline falls into the training",
        is_for_all=True,
        pace_s=3.0,
        local_runtime={"walltime_min": 1},
        inject=_set_deadline,
    ),
    "kill-controller": Fault(
        does="SIGKILL of Snakemake while its job trains",
        is_for_all=True,
        pace_s=1.0,  # else a training on a busy machine may end before it is noticed
        inject=_kill_controller,
        restore=_unlock,
    ),
    "disk-full": Fault(
        does="the store's disk is filled to its last byte",
        action="fill",
        restore=_empty_disk,
        executors=("local",),
    ),
}
