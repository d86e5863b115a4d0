"""The processes of one competitor, one for each rank, which take commands together."""

import json
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any, Self

import psutil
from benchmarks.reader.competitors import Competitor
from benchmarks.reader.environments import python_of

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 300
END_S = 5
_NO_REPLY = json.dumps({"error": f"the process ended, or was ended after {TIMEOUT_S} s"})


class CompetitorError(Exception):
    """A competitor failed to carry out a command; the message names the cause."""


class Crew:
    """The ranks of a competitor.

    Args:
        cache: folder of environments and logs.
        world_size: ranks, each a process.
        checkout: folder of a checkout whose Shardline reads, in place of the installed one, driven
            by its own benchmark.
        worker: the module that its processes run.

    Raises:
        CompetitorError: its environment cannot be made.
    """

    def __init__(
        self, competitor: Competitor, cache: Path, world_size: int = 1, checkout: Path | None = None,
        *, worker: str = "benchmarks.reader.worker",
    ) -> None:  # fmt: skip
        self.competitor, self.world_size = competitor, world_size
        self._path = {"PYTHONPATH": checkout.resolve() / "src"} if checkout else {}
        self._home, self._worker = (checkout or REPOSITORY).resolve(), worker
        self._rendezvous = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        try:
            python = python_of(competitor.environment, cache / "environments")
        except RuntimeError as error:
            raise CompetitorError(str(error)) from None
        self._log = cache / "logs" / f"{competitor.slug}-{world_size}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._ranks = [self._start(python, rank) for rank in range(world_size)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ask(self, do: str, **arguments: Any) -> list[dict[str, Any]]:
        """Give all ranks a command at once and return their replies.

        Raises:
            CompetitorError: a rank failed, or took longer than `TIMEOUT_S`.
        """
        per_rank = arguments.pop("per_rank", [{}] * self.world_size)
        timer = Timer(TIMEOUT_S, self._kill)
        timer.start()
        try:
            for process, own in zip(self._ranks, per_rank, strict=True):
                process.stdin.write(json.dumps({"do": do, **arguments, **own}) + "\n")
                process.stdin.flush()
            replies = [
                json.loads(process.stdout.readline() or _NO_REPLY) for process in self._ranks
            ]
        except OSError:
            replies = [json.loads(_NO_REPLY)]
        finally:
            timer.cancel()
        errors = [reply["error"] for reply in replies if "error" in reply]
        if errors:
            raise CompetitorError(f"{do}: {errors[0]} (see {self._log})")
        return replies

    def cpu_seconds(self) -> float:
        """Return the CPU time that the ranks have used until now."""
        times = [psutil.Process(process.pid).cpu_times() for process in self._ranks]
        return sum(time.user + time.system for time in times)

    def stop(self) -> None:
        """End the processes, by force after `END_S`."""
        for process in self._ranks:
            with suppress(OSError):
                process.stdin.close()
        for process in self._ranks:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        self._kill()
        self._rendezvous.cleanup()

    def _kill(self) -> None:
        """End the processes and what they started; a peer's own helpers may outlive it."""
        for process in self._ranks:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, python: Path, rank: int) -> subprocess.Popen[str]:
        store = Path(self._rendezvous.name) / "store"
        places = {"RANK": rank, "LOCAL_RANK": rank}
        # temporary files that peers leave behind are removed with the crew
        folders = {"TMPDIR": self._rendezvous.name}
        sizes = {"WORLD_SIZE": self.world_size, "LOCAL_WORLD_SIZE": self.world_size}
        own = places | sizes | folders | self._path
        command = [
            python, "-W", "ignore", "-m", self._worker, self.competitor.module,
            "--rank", rank, "--world-size", self.world_size, "--store", store,
        ]  # fmt: skip
        with self._log.open("w") as log:
            return subprocess.Popen(
                [str(part) for part in command],
                cwd=self._home,
                env=os.environ | {name: str(value) for name, value in own.items()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
