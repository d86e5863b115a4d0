"""Whether a training that was broken ended as one that was not."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardline.checkpoints.folder import list_saved
from shardline.supervision.attempts import read_attempts

# What counts of a training checkpoint, beside the weights; the rest are times and file names.
_STATE = ("optimizer_states", "lr_schedulers", "global_step", "epoch")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Where a training left what is compared.

    Attributes:
        work: the run's folder in the store.
        results: the folder of its sealed files.
    """

    work: Path
    results: Path

    @property
    def model(self) -> Path:
        """The sealed weights."""
        return self.results / "model.safetensors"

    def attempts(self) -> list[dict[str, Any]]:
        """Return its attempts, as sealed; as far as they are known where it is not."""
        path = self.results / "provenance.json"
        sealed = json.loads(path.read_text())["attempt_log"] if path.exists() else None
        return sealed or read_attempts(self.work)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a drill with one run.

    Attributes:
        ranks: of the run.
        reasons: why it did not survive; none if it did.
        steps_done, steps_lost: optimiser steps of all attempts, and those that were done again.
        seconds_lost: of the attempts, whose work was done again.
        commands: how often the user had to give the command.
        interruptions: what was done to the ranks: `ranks`, `place`, `step`.
        compared: whether `weights`, `optimizer` and `ledger` are those of an uninterrupted training.
        folder: where all of it lies, if it was kept.
    """

    drill: str
    profile: str
    ranks: int
    reasons: list[str]
    steps_done: int
    steps_lost: int
    seconds_lost: float
    attempts: int
    commands: int
    interruptions: list[dict[str, Any]]
    compared: dict[str, bool]
    folder: Path | None = None

    @property
    def verdict(self) -> str:
        """`survived` or `not survived`."""
        return "not survived" if self.reasons else "survived"

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {"verdict": self.verdict, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Drilled:
    """One run of a drill.

    Attributes:
        broken: where it left its files, while the drill's context lasts.
    """

    outcome: Outcome
    broken: Trained


def compare(broken: Trained, unbroken: Trained) -> dict[str, bool]:
    """Hold sealed weights, the last training checkpoint's state and the sample ledger against each other.

    Bit for bit, and for the ledger each sample of each step in its order.
    """
    from shardline.data.ledger import read_ledger

    is_sealed = broken.model.exists()
    return {
        "weights": is_sealed and broken.model.read_bytes() == unbroken.model.read_bytes(),
        "optimizer": is_sealed and _equal(_state(broken.work), _state(unbroken.work)),
        "ledger": is_sealed
        and read_ledger(broken.work / "ledger") == read_ledger(unbroken.work / "ledger"),
    }


def cost(attempts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the attempts did and lost, as they tell it themselves."""
    return {
        "steps_done": sum(attempt["steps_done"] or 0 for attempt in attempts),
        "steps_lost": sum(attempt["steps_lost"] or 0 for attempt in attempts),
        "seconds_lost": round(sum(attempt["lost_s"] or 0.0 for attempt in attempts), 1),
        "attempts": len(attempts),
    }


def why_not(compared: Mapping[str, bool], *, planned: int, struck: int, said: str) -> list[str]:
    """Return why a training did not survive, one sentence each.

    Args:
        planned, struck: how many faults there were to be, and how many there were.
        said: what its last command said at its end; empty where it ended well.
    """
    if struck < planned:
        return [
            f"{planned - struck} of {planned} faults never came about, so nothing is shown. {said}".strip()
        ]
    if said:
        return [said]
    others = [name for name, is_same in compared.items() if not is_same]
    return [f"not as in the training without a fault: {', '.join(others)}"] if others else []


def _state(work: Path) -> dict[str, Any]:
    import torch

    newest = list_saved(work / "checkpoints")[0]
    state = torch.load(newest.path / "state.pt", map_location="cpu", weights_only=True)
    return {key: state[key] for key in _STATE}


def _equal(first: Any, second: Any) -> bool:
    """Whether two states are the same, tensors bit for bit."""
    import torch

    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and _bits(first) == _bits(second)
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(_equal(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    return bool(first == second)


def _bits(tensor: Any) -> tuple[Any, ...]:
    import torch

    return tensor.dtype, tensor.shape, tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
