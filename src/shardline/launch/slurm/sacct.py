"""The `sacct` that Snakemake's Slurm plugin asks after its jobs; `profiles/slurm/bin/sacct` runs it.

The plugin (2.8) waits for ever for a job whose state it does not know, and for
all jobs when one round of its questions fails. So its questions are answered
here by words that it knows: from squeue, which is right while a job is queued
again; after the controller has forgotten a job, from Slurm's own sacct; and
where there is no accounting, from whether the job's output is there. Every
other question goes to Slurm's own sacct as it is.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

# The plugin gives each question 60 s.
_PATIENCE_S = 45.0
_RETRY_S = 1.0
# Between the end of a preempted job, or one whose node failed, and its return to the queue.
_REQUEUE_S = 20.0
# That the database is given, however late squeue has answered.
_LEAST_S = 5.0

# Within the working folder, which the jobs share with Snakemake.
_OURS = Path(".snakemake") / "slurm_status"

_STATUS = "--format=JobIdRaw,State"
_REASON = "--format=Reason"
# The plugin would wait for these to be queued again, also where that never comes.
_ENDED_BY_SLURM = ("PREEMPTED", "NODE_FAIL")

_WHY = {
    "CANCELLED": "cancelled by scancel or by an administrator",
    "FAILED": "ended with exit code {ExitCode}, see its log",
    "NODE_FAIL": "a node of {NodeList} failed and the job may not be queued again",
    "OUT_OF_MEMORY": "more memory than it asked for, raise mem_mb in the profile",
    "PREEMPTED": "preempted by a job that goes before it, and it may not be queued again",
    "TIMEOUT": "longer than its limit of {TimeLimit}, raise runtime in the profile",
}


def stand_before_sacct(folder: Path) -> None:
    """Have every `sacct` of this process and its children be the one in a folder.

    Args:
        folder: where the program `sacct` that runs this module is.
    """
    path = os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] != str(folder):
        os.environ["PATH"] = f"{folder}{os.pathsep}{path}"
    os.environ["SHARDLINE_PYTHON"] = sys.executable


def main(own: str, *words: str) -> int:
    """Answer one question.

    Args:
        own: path of the program that stands for sacct.
        words: what it was asked.

    Returns:
        The exit code; not 0 has the plugin ask again.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is for Snakemake to tell about
    real = real_sacct(own, os.environ.get("PATH", os.defpath))
    if _STATUS in words and "--name" in words[:-1]:
        name = words[words.index("--name") + 1]
        return _answer_status(name, [real, *words] if real else None)
    if _REASON in words and "-j" in words[:-1]:
        job, _, step = words[words.index("-j") + 1].partition(".")
        if step != "0":  # asked for ten steps of the job: one answer is enough
            return 0
        shown = _ask(["scontrol", "--oneliner", "show", "job", job], 20)
        if fields := job_fields(shown or ""):  # else the controller has forgotten it
            print(explain(fields, read_reason(job, fields.get("StartTime", ""))))
            return 0
    if real:
        os.execv(real, ["sacct", *words])
    return 127  # as a shell reports that there is no such program


def real_sacct(own: str, path: str) -> str | None:
    """Return the sacct that stands behind another one in PATH, if there is one."""
    folders = path.split(os.pathsep)
    # two copies of a profile must not ask each other in turn
    behind = [i + 1 for i, folder in enumerate(folders) if _is_same(f"{folder}/sacct", own)]
    for folder in folders[max(behind, default=0) :]:
        if os.access(f"{folder}/sacct", os.X_OK):
            return f"{folder}/sacct"
    return None


def _is_same(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return False


# What became of the jobs


def _answer_status(name: str, sacct: Sequence[str] | None) -> int:
    """Print `JOB|STATE` for each job of a name.

    Args:
        sacct: the command that asks the database the same.
    """
    end = time.monotonic() + _PATIENCE_S
    if (listed := _ask_squeue(name, end)) is None:
        print("squeue gives no answer: the controller is away", file=sys.stderr)
        return 1
    states = states_of_squeue(listed, datetime.now())
    forgotten = remember(_OURS / "jobs" / name, states)
    for job, state in (_states_of_forgotten(forgotten, sacct, end) | states).items():
        print(f"{job}|{state}")
    return 0


def remember(file: Path, jobs: Iterable[str]) -> set[str]:
    """Add jobs to those that were ever seen, and return those that are not seen any more.

    Args:
        file: holds what was seen, a job in each line.
    """
    seen = set(file.read_text().split()) if file.exists() else set()
    # a task of an array may be listed with others, as 1_[2-3]
    if new := {job for job in jobs if job.isdigit()} - seen:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as lines:
            lines.writelines(f"{job}\n" for job in sorted(new))
    return seen.difference(jobs)


def _ask_squeue(name: str, end: float) -> str | None:
    """Return what squeue prints; None if the controller is away until the end."""
    command = ["squeue", "--states=all", "--noheader", "--array", "--format=%i|%T|%e"]
    while (left := end - time.monotonic()) > 0:
        if (answer := _ask([*command, "--name", name], left)) is not None:
            return answer
        time.sleep(_RETRY_S)
    return None


def states_of_squeue(text: str, now: datetime) -> dict[str, str]:
    """Read squeue's `JOB|STATE|END` lines.

    Args:
        now: local time, as squeue writes it.
    """
    states = {}
    # with SLURM_CLUSTERS set there are headings between the lines
    for job, state, ended in (line.split("|") for line in text.splitlines() if "|" in line):
        states[job] = plain_state(state)
        if state in _ENDED_BY_SLURM and not _is_over(ended, now):
            states[job] = "COMPLETING"
    return states


def _is_over(ended: str, now: datetime) -> bool:
    try:
        return (now - datetime.fromisoformat(ended)).total_seconds() > _REQUEUE_S
    except ValueError:  # N/A
        return False


def plain_state(state: str) -> str:
    """Return a state by a word that the plugin knows."""
    word = state.split()[0].rstrip("+")  # "CANCELLED by 1000"
    return "FAILED" if word in _ENDED_BY_SLURM else word


def _states_of_forgotten(
    forgotten: Iterable[str], sacct: Sequence[str] | None, end: float
) -> dict[str, str]:
    """Return the states of jobs that the controller has forgotten, MinJobAge after their end.

    The database is asked also if no job was seen and forgotten: one may have come and gone
    between two questions.
    """
    found = {}
    if sacct and (text := _ask(sacct, max(end - time.monotonic(), _LEAST_S))) is not None:
        rows = [line.split("|") for line in text.splitlines() if "|" in line]
        found = {job: plain_state(state) for job, state, *_ in rows}
    elif forgotten and _has_accounting():
        return {}  # the database is away: a later question finds it back
    # The plugin takes UNKNOWN for success, and Snakemake then looks for the outputs,
    # which Shardline's jobs seal last: there they are right, elsewhere the job has failed.
    return {**dict.fromkeys(forgotten, "UNKNOWN"), **found}


def _has_accounting() -> bool:
    """Say whether there is a database; yes, if nobody knows."""
    config = _ask(["scontrol", "show", "config"], 5)
    return config is None or "accounting_storage/slurmdbd" in config


# Why a job failed


def job_fields(text: str) -> dict[str, str]:
    """Read what `scontrol --oneliner show job` prints, by field."""
    return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", text))


def explain(fields: Mapping[str, str], reason: str = "") -> str:
    """Return as a sentence why a job failed, and what to do.

    Args:
        fields: as `scontrol show job` prints them.
        reason: the job's own message of its failure, see `write_reason`.
    """
    state = fields.get("JobState", "")
    if state == "FAILED" and reason:
        return reason  # which names its own remedy
    why = _WHY.get(state, "{JobState}, {Reason}").format_map(_Known(fields))
    return f"{why}; run the same command again to resume from there"


def write_reason(message: str) -> None:
    """Within a Slurm job, write why the job fails, for the terminal."""
    if job := os.environ.get("SLURM_JOB_ID"):
        path = _reason_file(job)
        with suppress(OSError):  # a full disk, and the log holds it too
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(message)


def read_reason(job: str, start: str) -> str:
    """Return what a job wrote by `write_reason`; empty if it wrote nothing.

    Args:
        start: when it was started, as Slurm prints it: numbers of jobs come again
            after a cluster was set up again.
    """
    path = _reason_file(job)
    try:
        is_of_this_job = path.stat().st_mtime >= datetime.fromisoformat(start).timestamp()
        return path.read_text().strip() if is_of_this_job else ""
    except (OSError, ValueError):
        return ""


def _reason_file(job: str) -> Path:
    return _OURS / "reasons" / job


class _Known(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return f"{key} unknown"


def _ask(command: Sequence[str], timeout_s: float) -> str | None:
    """Return what a command prints; None if it fails."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "SLURM_TIME_FORMAT": "standard"},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
