"""Programs that train in turn: each does some steps when its turn comes, and reports what they took.

A program is a process, which two named pipes join to the one that measures: a line of JSON each way for a turn.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
PIPES = "BENCHMARK_PIPES"  # environment variable: the folder of the pipes `go` and `done`
_POLL_S = 0.01
_TAIL_CHARACTERS = 1500


class Turns:
    """A program's side: call `wait` before the first step, and `step_ended` behind each.

    Attributes:
        asked: what the present turn is, with its `steps`.
    """

    def __init__(self) -> None:
        folder = Path(os.environ[PIPES])
        self._go = (folder / "go").open(encoding="utf-8")
        self._done = (folder / "done").open("w", encoding="utf-8")
        self.asked: dict[str, Any] = {"steps": 0}
        self._left = 0

    def wait(self) -> None:
        """Wait for the next turn; its first step is not counted, since the caches are another program's."""
        self.asked = json.loads(self._go.readline())
        self._left = 1 + self.asked["steps"]

    def step_ended(self) -> None:
        """A step of a turn has ended."""
        self._left -= 1
        if self._left == self.asked["steps"]:
            self.begun()
        elif not self._left:
            self._done.write(json.dumps(self.measured()) + "\n")
            self._done.flush()
            self.wait()

    def begun(self) -> None:
        """The steps that count begin."""

    def measured(self) -> Any:
        """Return what these steps took, as JSON."""


class Ended(Exception):
    """A program ended before its turn was over; the text is the end of its output."""


class TimeOver(Ended):
    """The time was over before a program was at its end."""


class Program:
    """The other side: a process that trains when it has its turn.

    Args:
        words: what Python is started with.
        folder: for its pipes and its output.
        variables: of its environment, besides this process's.
    """

    def __init__(self, words: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("go", "done"):
            os.mkfifo(folder / name)
        self._output = folder / "output"
        env = {**os.environ, **variables, PIPES: str(folder)}
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, *words], cwd=REPOSITORY, env=env, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        # both ways, so that neither end of a pipe waits for the other to be opened
        self._go = os.open(folder / "go", os.O_RDWR)
        self._done = os.open(folder / "done", os.O_RDWR | os.O_NONBLOCK)

    def begin(self, steps: int, **asked: Any) -> None:
        """Have it do one step and then so many.

        Args:
            asked: what else its side gets to know of the turn.
        """
        os.write(self._go, json.dumps({"steps": steps, **asked}).encode() + b"\n")

    def end_of_turn(self, end: float = float("inf")) -> Any:
        """Return what the turn took, see `Turns.measured`.

        Args:
            end: by the monotonic clock, when there is no more time.

        Raises:
            Ended: the program ended.
            TimeOver: the time was over.
        """
        answer = b""
        while not answer.endswith(b"\n"):
            if self._process.poll() is not None:
                raise Ended(self.tail())
            if time.monotonic() > end:
                raise TimeOver(f"its time was over; {self.tail()}")
            try:
                answer += os.read(self._done, 4096)
            except BlockingIOError:
                time.sleep(_POLL_S)
        return json.loads(answer)

    def tail(self) -> str:
        """Return the end of its output."""
        return self._output.read_text(errors="replace")[-_TAIL_CHARACTERS:]

    def end(self) -> None:
        """Kill it, with the processes that it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._go)
        os.close(self._done)
