"""Programs that train in turn on one device: each does some steps when its turn comes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

REPOSITORY = Path(__file__).parents[2]
PIPES = "SHARDLINE_SUITE_PIPES"  # environment variable: the folder of the pipes `go` and `done`
_POLL_S = 0.01


class Save(Protocol):
    """Saves a training checkpoint if it is due, else waits for the one being written."""

    def __call__(self, *, is_due: bool) -> float:
        """Return the seconds that the training stood still."""


class Turns:
    """A program's side: call `wait` before the first step, and `step_ended` behind each.

    Args:
        device: that the steps are computed on, and waited for at both ends of a turn.
        waited_s: the seconds that the program has waited for data so far.
        save: see `Save`; None: the program saves nothing.
    """

    def __init__(
        self, device: torch.device, waited_s: Callable[[], float] = lambda: 0.0, save: Save | None = None
    ) -> None:  # fmt: skip
        folder = Path(os.environ[PIPES])
        self._device, self._waited_s, self._save = device, waited_s, save
        self._go = (folder / "go").open(encoding="utf-8")
        self._done = (folder / "done").open("w", encoding="utf-8")
        self._asked: dict[str, Any] = {}
        self._left = 0
        self._since: dict[str, float] = {}
        self._stall_s = 0.0

    def wait(self) -> None:
        """Wait for the next turn; its first step is not counted, since the caches are another program's."""
        self._asked = json.loads(self._go.readline())
        self._left = 1 + self._asked["steps"]
        if self._save:
            self._save(is_due=False)

    def step_ended(self) -> None:
        """A step of a turn has ended."""
        self._left -= 1
        if self._left == self._asked["steps"]:
            self._since = self._now()
            if self._asked["save"] and self._save:
                self._stall_s = self._save(is_due=True)
        elif not self._left:
            now = self._now()
            turn = {name: now[name] - self._since[name] for name in now}
            self._done.write(
                json.dumps({**turn, "stall_s": self._stall_s, **self._memory()}) + "\n"
            )
            self._done.flush()
            self._stall_s = 0.0
            self.wait()

    def _now(self) -> dict[str, float]:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return {"seconds": time.perf_counter(), "wait_s": self._waited_s()}

    def _memory(self) -> dict[str, int]:
        if self._device.type != "cuda":
            return {}
        return {
            "allocated": torch.cuda.max_memory_allocated(self._device),
            "reserved": torch.cuda.max_memory_reserved(self._device),
        }


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
        folder.mkdir(parents=True)
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

    def begin(self, steps: int, *, save: bool = False) -> None:
        """Have it do one step and then so many, which begin with a save where it is asked for."""
        os.write(self._go, json.dumps({"steps": steps, "save": save}).encode() + b"\n")

    def end_of_turn(self, end: float) -> dict[str, float]:
        """Return what the turn took.

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
        turn: dict[str, float] = json.loads(answer)
        return turn

    def turn(self, steps: int, end: float, *, save: bool = False) -> dict[str, float]:
        """Let it do so many steps, and return what these took."""
        self.begin(steps, save=save)
        return self.end_of_turn(end)

    def tail(self) -> str:
        """Return the end of its output."""
        return self._output.read_text(errors="replace")[-1500:]

    def end(self) -> None:
        """Kill it, with the processes that it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._go)
        os.close(self._done)
