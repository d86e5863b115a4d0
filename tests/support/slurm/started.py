"""A `snakemake` on a cluster that runs in the background, and its jobs as its user sees them."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import msgspec

from shardline.supervision.attempt_log import read_attempts
from tests.support.slurm.pipeline import Pipeline

PATIENCE_S = 900


class Started:
    """A pipeline that runs in the background."""

    def __init__(self, pipeline: Pipeline, *arguments: str) -> None:
        """Start it on the login machine."""
        self.cluster, self.path = pipeline.cluster, pipeline.path
        with (self.path / "told").open("w") as told:
            self.process: subprocess.Popen[str] = self.cluster.login.popen(
                *pipeline.command(*arguments), cwd=self.path, stdout=told
            )

    def told(self) -> str:
        """Return what it has printed."""
        return (self.path / "told").read_text()

    def end(self) -> int:
        """Wait for its end, and return the exit code."""
        return self.process.wait(PATIENCE_S)

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something holds while it runs."""

        def holds() -> bool:
            assert self.process.poll() is None, f"ended before {what}; it told\n{self.told()}"
            return bool(condition())

        try:
            self.cluster.wait_until(holds, what, timeout=PATIENCE_S)
        except Exception as error:
            logs = [path.read_text() for path in self.path.glob("logs/train*/*.log")]
            raise AssertionError(f"{error}\n{self.told()}\n" + "\n".join(logs)) from error

    def jobs(self) -> dict[str, tuple[str, str]]:
        """Return by the name of a job or task (`7` or `7_2`) its state, and the ID that it sees itself."""
        words = ("--noheader", "--states=all", "--array", "--format=%i|%T|%A|%P")
        lines = self.cluster.run("squeue", *words).stdout.split()
        rows = (line.split("|") for line in lines if line.endswith("|main"))
        return {name: (state, job) for name, state, job, _ in rows}

    def wait_for_states(self, what: str, **numbers: int) -> None:
        """Wait until so many jobs are in a state, such as `RUNNING=6`."""

        def reached() -> bool:
            states = [state for state, _ in self.jobs().values()]
            return all(states.count(state) == number for state, number in numbers.items())

        self.wait_until(reached, what)

    def requeue(self, job: str, *command: str) -> None:
        """Let Slurm end a job and queue it again, as a preemption does, and wait until it is queued.

        Args:
            job: Name of the job or task.
            command: What makes Slurm do so.
        """
        self.cluster.run(*(command or ("scontrol", "requeue")), job)
        self.wait_until(lambda: self.jobs()[job][0] == "PENDING", "a requeue")

    def saves(self, run: str) -> bool:
        """Return whether a training has saved its state."""
        return any(self.path.glob(f"store/work/{run}/checkpoints/step-*"))

    def attempts(self, run: str) -> list[dict[str, Any]]:
        """Return the attempts of a run, from its sealed provenance or its work folder."""
        sealed = self.path / "results" / "runs" / run / "provenance.json"
        if sealed.exists():
            return list(json.loads(sealed.read_text())["attempt_log"])
        (work,) = self.path.glob(f"store/work/{run}")
        return [msgspec.to_builtins(attempt) for attempt in read_attempts(work)]
