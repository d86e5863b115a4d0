"""The faults that can be injected, and what injects each."""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from shardline.core.errors import LaunchError
from shardline.drills.commands import Commands, descendants
from shardline.drills.disk import SmallDisk
from shardline.drills.tiny import Tiny
from shardline.records.attempts import Attempt
from shardline.supervision.attempts import read_attempts


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
        action: what the model does to its ranks; see `drills.model`.
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
    (injected,) = scene.tiny.injected(run.settings.nodes * run.settings.devices)
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
