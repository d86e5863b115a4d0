"""Faults of the fault-injection tests."""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from shardline.core.errors import LaunchError
from shardline.drills.profile_command import Commands, descendants
from shardline.drills.tiny import Tiny
from shardline.records.attempts import Attempt
from shardline.supervision.attempt_log import read_attempts

_DISK_SIZE = "64m"


class SmallDisk:
    """A small disk to fill up: a tmpfs in its own mount namespace, which ends with the context.

    Args:
        folder: mount point; only commands started with `inside` see the disk.
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
                f"the fault disk-full cannot be injected here ({reply}); expected user and mount namespaces "
                "(`unshare --user --mount`) for a separate disk; ask the administrator to allow them"
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._holder is not None
        self._holder.kill()
        self._holder.wait()

    @property
    def inside(self) -> list[str]:
        """Command prefix that runs a command where the disk is mounted."""
        assert self._holder is not None
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self._holder.pid), *user, "--mount"]

    def path(self, path: Path) -> Path:
        """Return the path of a file on the disk as seen from outside the namespace."""
        assert self._holder is not None
        return Path(f"/proc/{self._holder.pid}/root{path}")

    @property
    def filler(self) -> Path:
        """File that fills the disk, as seen from outside the namespace."""
        return self.path(self._folder / self.FILLER)


@dataclass(kw_only=True)
class Scene:
    """A training while a fault is injected.

    Attributes:
        process: process of the user's command.
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
        does: short description for the terminal.
        action: action of the model on its rank; see `drills.faulty_model`.
        is_for_all: whether every rank performs `action`, or only the last rank.
        pace_s: delay of each batch under the action `slow`, in seconds.
        runtime: `runtime` settings of the training with faults.
        local_runtime: further `runtime` settings if no scheduler sets a time limit.
        inject: injects the fault from outside once a rank has reached its place.
        restore: repairs what a user would repair before repeating the command.
        executors: Snakemake's executors on which the fault can be injected.
    """

    does: str
    action: str = "slow"
    is_for_all: bool = False
    pace_s: float = 0.3
    runtime: Mapping[str, int] = field(default_factory=dict)
    local_runtime: Mapping[str, int] = field(default_factory=dict)
    inject: Callable[[Scene], None] | None = None
    restore: Callable[[Scene], None] | None = None
    executors: tuple[str, ...] = ("local", "slurm")

    def runtime_on(self, executor: str) -> dict[str, int]:
        """Return the `runtime` settings of the training with faults."""
        return {**self.runtime, **(self.local_runtime if executor == "local" else {})}


def _preempt(scene: Scene) -> None:
    if scene.commands.profile.executor == "slurm":
        _scontrol("requeue", str(_slurm_job(scene).job))
    else:
        _job_process(scene).send_signal(signal.SIGTERM)


def _set_deadline(scene: Scene) -> None:
    """Shorten the time limit of a Slurm job; for other executors it is set at the start."""
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
    """Return the process of the rule's script; ranks that are forked from a server are no descendants of it."""
    for process in descendants(scene.process.pid):
        with suppress(psutil.NoSuchProcess):
            is_script = any(".snakemake/scripts/" in word for word in process.cmdline())
            if is_script and "python" in process.name():
                return process
    raise LaunchError(
        "found no process of the training's job on this machine; run `shardline drill` again"
    )


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
        does="the time limit of the job ends during the training",
        is_for_all=True,
        pace_s=3.0,
        local_runtime={"walltime_min": 1},
        inject=_set_deadline,
    ),
    "kill-controller": Fault(
        does="SIGKILL of Snakemake while its job trains",
        is_for_all=True,
        pace_s=1.0,  # On a busy machine, a faster training may end before the fault is injected.
        inject=_kill_controller,
        restore=_unlock,
    ),
    "disk-full": Fault(
        does="the disk of the store is full",
        action="fill",
        restore=_empty_disk,
        executors=("local",),
    ),
}
