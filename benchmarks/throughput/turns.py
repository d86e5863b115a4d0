"""Programs that train in turn: each does some steps when its turn comes, and reports what they took."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).parents[2]
PIPES = "THROUGHPUT_PIPES"  # environment variable: the folder of the pipes `go` and `done`


class Turn(NamedTuple):
    """What the counted steps of a turn took.

    Attributes:
        seconds: by the clock.
        cpu_s: of the process, all its threads together.
    """

    seconds: float
    cpu_s: float


class Turns:
    """A program's side: call `wait` before the first step, and `step_ended` behind each."""

    def __init__(self) -> None:
        folder = Path(os.environ[PIPES])
        self._go = (folder / "go").open(encoding="utf-8")
        self._done = (folder / "done").open("w", encoding="utf-8")
        self._left = self._counted = 0
        self._since = Turn(0.0, 0.0)

    def wait(self) -> None:
        """Wait for the next turn; its first step is not counted, since the caches are another program's."""
        self._counted = int(self._go.readline())
        self._left = 1 + self._counted

    def step_ended(self) -> None:
        """A step of a turn has ended."""
        self._left -= 1
        if self._left == self._counted:
            self._since = _now()
        elif not self._left:
            now = _now()
            turn = [end - start for end, start in zip(now, self._since, strict=True)]
            self._done.write(json.dumps(turn) + "\n")
            self._done.flush()
            self.wait()


def _now() -> Turn:
    return Turn(time.perf_counter(), time.process_time())


class Program:
    """The other side: a process that trains when it has its turn.

    Args:
        words: what Python is started with.
        folder: for its pipes and its output.
        variables: of its environment, besides this process's.
    """

    def __init__(self, words: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
        for name in ("go", "done"):
            os.mkfifo(folder / name)
        self._output = folder / "output"
        env = {**os.environ, **variables, PIPES: str(folder)}
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, *words], cwd=REPOSITORY, env=env, stdout=output, stderr=output
            )
        # both ways, so that neither end of a pipe waits for the other to be opened
        self._go = os.open(folder / "go", os.O_RDWR)
        self._done = os.open(folder / "done", os.O_RDWR | os.O_NONBLOCK)

    def turn(self, steps: int) -> Turn:
        """Let it do one step and then so many, and return what these took."""
        os.write(self._go, f"{steps}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            if self._process.poll() is not None:
                raise SystemExit(f"{self._process.args} ended:\n{self._output.read_text()}")
            try:
                answer += os.read(self._done, 1000)
            except BlockingIOError:
                time.sleep(0.01)
        return Turn(*json.loads(answer))

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        os.close(self._go)
        os.close(self._done)


def ratios(ours: Sequence[Any], bare: Sequence[Any]) -> list[float]:
    """Return the speed of ours as a share of the bare loop's, of each round."""
    return [loop / own for own, loop in zip(ours, bare, strict=True)]
