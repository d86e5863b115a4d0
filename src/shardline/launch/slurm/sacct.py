"""A replacement of `sacct` for Snakemake's Slurm plugin; `profiles/slurm/bin/sacct` runs it.

The plugin (2.8) waits forever for a job whose state it does not know, and for
all jobs if one status query fails. This program answers in states that the
plugin knows. It asks squeue, which is right for requeued jobs. For jobs that the
controller has forgotten it asks Slurm's own sacct. Without accounting it looks
for the job's output. It passes every other query on to Slurm's own sacct.
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

# The plugin allows 60 s for each query.
_PATIENCE_S = 45.0
_RETRY_S = 1.0
# Time between the end of a preempted job, or of a job whose node failed, and its requeue.
_REQUEUE_S = 20.0
# Time for the database, even if squeue answered late.
_LEAST_S = 5.0

# In the working folder, which the jobs share with Snakemake.
_OURS = Path(".snakemake") / "slurm_status"

_STATUS = "--format=JobIdRaw,State"
# the plugin knows tasks of an array as 7_1, which JobIdRaw is not
_STATUS_OF_TASKS = "--format=JobID,State"
_TASK = re.compile(r"\d+(_\d+)?")
_REASON = "--format=Reason"
# The plugin would wait for a requeue of these, even if Slurm never requeues them.
_ENDED_BY_SLURM = ("PREEMPTED", "NODE_FAIL")

_WHY = {
    "CANCELLED": "cancelled by scancel or by an administrator",
    "FAILED": "ended with exit code {ExitCode}, see its log",
    "NODE_FAIL": "a node of {NodeList} failed, and Slurm may not requeue the job",
    "OUT_OF_MEMORY": "used more memory than requested, raise mem_mb in the profile",
    "PREEMPTED": "preempted by a job of higher priority, and Slurm may not requeue it",
    "TIMEOUT": "ran longer than its limit of {TimeLimit}, raise runtime in the profile",
}


def stand_before_sacct(folder: Path) -> None:
    """Put a replacement of `sacct` first in the PATH of this process and its children.

    Args:
        folder: folder of the program `sacct` that runs this module.
    """
    path = os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] != str(folder):
        os.environ["PATH"] = f"{folder}{os.pathsep}{path}"
    os.environ["SHARDLINE_PYTHON"] = sys.executable


def main(own: str, *words: str) -> int:
    """Answer one query.

    Args:
        own: path of the program that replaces sacct.
        words: arguments of the query.

    Returns:
        The exit code; after any other than 0, the plugin asks again.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Snakemake reports Ctrl-C
    real = real_sacct(own, os.environ.get("PATH", os.defpath))
    if _STATUS in words and "--name" in words[:-1]:
        name = words[words.index("--name") + 1]
        asked = [_STATUS_OF_TASKS if word == _STATUS else word for word in words]
        return _answer_status(name, [real, *asked] if real else None)
    if _REASON in words and "-j" in words[:-1]:
        job, _, step = words[words.index("-j") + 1].partition(".")
        if step != "0":  # the plugin asks for ten steps of the job; one answer is enough
            return 0
        shown = _ask(["scontrol", "--oneliner", "show", "job", job], 20)
        if fields := job_fields(shown or ""):  # empty if the controller has forgotten the job
            # a task of an array has a number of its own, by which it wrote its reason
            own_number = fields.get("JobId", job)
            print(explain(fields, read_reason(own_number, fields.get("StartTime", ""))))
            return 0
    if real:
        os.execv(real, ["sacct", *words])
    return 127  # the exit code of a shell if a program is missing


def real_sacct(own: str, path: str) -> str | None:
    """Return Slurm's own sacct, which follows the replacement in PATH; None if there is none."""
    folders = path.split(os.pathsep)
    # two copies of a profile must not call each other
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


# States of jobs


def _answer_status(name: str, sacct: Sequence[str] | None) -> int:
    """Print `JOB|STATE` for each job of a name.

    Args:
        sacct: command that sends the same query to the database.
    """
    end = time.monotonic() + _PATIENCE_S
    if (listed := _ask_squeue(name, end)) is None:
        print("squeue does not answer: Slurm's controller is down or unreachable", file=sys.stderr)
        return 1
    states = states_of_squeue(listed, datetime.now())
    forgotten = remember(_OURS / "jobs" / name, states)
    for job, state in (_states_of_forgotten(forgotten, sacct, end) | states).items():
        print(f"{job}|{state}")
    return 0


def remember(file: Path, jobs: Iterable[str]) -> set[str]:
    """Add jobs to the file of seen jobs; return the seen jobs that are no longer listed.

    Args:
        file: file with one job per line.
    """
    seen = set(file.read_text().split()) if file.exists() else set()
    # squeue may list tasks of an array together, as 1_[2-3]
    if new := {job for job in jobs if _TASK.fullmatch(job)} - seen:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as lines:
            lines.writelines(f"{job}\n" for job in sorted(new))
    return seen.difference(jobs)


def _ask_squeue(name: str, end: float) -> str | None:
    """Return squeue's output; None if the controller does not answer before the end."""
    command = ["squeue", "--states=all", "--noheader", "--array", "--format=%i|%T|%e"]
    while (left := end - time.monotonic()) > 0:
        if (answer := _ask([*command, "--name", name], left)) is not None:
            return answer
        time.sleep(_RETRY_S)
    return None


def states_of_squeue(text: str, now: datetime) -> dict[str, str]:
    """Parse squeue's `JOB|STATE|END` lines.

    Args:
        now: local time, as squeue writes it.
    """
    states = {}
    # with SLURM_CLUSTERS set, squeue prints headings between the lines
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
    """Translate a state into one that the plugin knows."""
    word = state.split()[0].rstrip("+")  # "CANCELLED by 1000"
    return "FAILED" if word in _ENDED_BY_SLURM else word


def _states_of_forgotten(
    forgotten: Iterable[str], sacct: Sequence[str] | None, end: float
) -> dict[str, str]:
    """Return the states of jobs that the controller has forgotten, MinJobAge after their end.

    The database is asked even if no job is forgotten: a job may have started and
    ended between two queries.
    """
    found = {}
    if sacct and (text := _ask(sacct, max(end - time.monotonic(), _LEAST_S))) is not None:
        rows = [line.split("|") for line in text.splitlines() if "|" in line]
        found = {job: plain_state(state) for job, state, *_ in rows}
    elif forgotten and _has_accounting():
        return {}  # the database does not answer; a later query finds the states
    # The plugin treats UNKNOWN as success. Snakemake then looks for the outputs, which
    # Shardline's jobs seal last: if they are missing or unsealed, the job has failed.
    return {**dict.fromkeys(forgotten, "UNKNOWN"), **found}


def _has_accounting() -> bool:
    """Return whether Slurm has an accounting database; True if scontrol does not answer."""
    config = _ask(["scontrol", "show", "config"], 5)
    return config is None or "accounting_storage/slurmdbd" in config


# Reasons of failures


def job_fields(text: str) -> dict[str, str]:
    """Parse the output of `scontrol --oneliner show job` into its fields."""
    return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", text))


def explain(fields: Mapping[str, str], reason: str = "") -> str:
    """Return why a job failed and what to do, as a sentence.

    Args:
        fields: fields of `scontrol show job`.
        reason: message that the job wrote with `write_reason`.
    """
    state = fields.get("JobState", "")
    if state == "FAILED" and reason:
        return reason  # it contains its own remedy
    why = _WHY.get(state, "{JobState}, {Reason}").format_map(_Known(fields))
    return f"{why}; run the same command again to resume from there"


def write_reason(message: str) -> None:
    """Within a Slurm job, write why the job fails, so that the terminal can show it."""
    if job := os.environ.get("SLURM_JOB_ID"):
        path = _reason_file(job)
        with suppress(OSError):  # such as a full disk; the log contains the message too
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(message)


def read_reason(job: str, start: str) -> str:
    """Return the message that a job wrote with `write_reason`; empty without one.

    Args:
        start: start of the job, as Slurm prints it. Job IDs repeat after a
            cluster is set up again, so older messages are ignored.
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
    """Return a command's output; None if the command fails."""
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
