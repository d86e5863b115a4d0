"""Programs that train in turn on one device; see `benchmarks.turns`."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from benchmarks import turns


class Save(Protocol):
    """Saves a training checkpoint if it is due, else waits for the one being written."""

    def __call__(self, *, is_due: bool) -> float:
        """Return the seconds that the training stood still."""


class Turns(turns.Turns):
    """A program's side.

    Args:
        device: that the steps are computed on, and waited for at both ends of a turn.
        waited_s: the seconds that the program has waited for data so far.
        save: see `Save`; None: the program saves nothing.
    """

    def __init__(
        self, device: torch.device, waited_s: Callable[[], float] = lambda: 0.0, save: Save | None = None
    ) -> None:  # fmt: skip
        super().__init__()
        self._device, self._waited_s, self._save = device, waited_s, save
        self._since: dict[str, float] = {}
        self._stall_s = 0.0

    def wait(self) -> None:
        """Wait for the next turn, and for the write of a save of the last one."""
        super().wait()
        if self._save:
            self._save(is_due=False)

    def begun(self) -> None:
        """The steps that count begin, with a save where it is asked for."""
        self._since = self._now()
        self._stall_s = self._save(is_due=True) if self.asked["save"] and self._save else 0.0

    def measured(self) -> dict[str, float]:
        """Return `seconds`, `wait_s` for data, `stall_s` of the save, and of a GPU the peaks of its memory."""
        now = self._now()
        turn = {name: now[name] - self._since[name] for name in now}
        return {**turn, "stall_s": self._stall_s, **self._memory()}

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


class Program(turns.Program):
    """The other side."""

    def turn(self, steps: int, end: float, *, save: bool = False) -> dict[str, Any]:
        """Let it do so many steps, which begin with a save where it is asked for, and return what these took.

        Raises:
            Ended: the program ended, or the time was over.
        """
        self.begin(steps, save=save)
        turn: dict[str, Any] = self.end_of_turn(end)
        return turn
