"""Whether a training with injected faults ended as the uninterrupted training."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardline.checkpoints.folder import list_saved
from shardline.records.attempts import Attempt
from shardline.records.base import read_record
from shardline.records.runs import TrainingProvenance
from shardline.supervision.attempts import read_attempts

# What counts of a training checkpoint, beside the weights; the rest are times and file names.
_STATE = ("optimizer_states", "lr_schedulers", "global_step", "epoch")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Folders of a training whose files are compared.

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

    def attempts(self) -> list[Attempt]:
        """Return the training's attempts: the sealed ones, or those recorded so far."""
        path = self.results / "provenance.json"
        if not path.exists():
            return read_attempts(self.work)
        sealed = read_record(path, TrainingProvenance, remedy="drill again").attempt_log
        return sealed or read_attempts(self.work)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a fault-injection test for one run.

    Attributes:
        ranks: number of the run's ranks.
        reasons: why the training did not survive; empty if it did.
        steps_done, steps_lost: optimiser steps of all attempts, and those that were done again.
        seconds_lost: seconds of the attempts whose work was done again.
        commands: how often the user had to give the command.
        interruptions: the injected faults: `ranks`, `place`, `step`.
        compared: whether `weights`, `optimizer` and `ledger` are those of an uninterrupted training.
        folder: the test's folder, if it was kept.
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
        """Return the outcome for programs."""
        return {"verdict": self.verdict, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Drilled:
    """One run of a fault-injection test.

    Attributes:
        broken: folders of the training with faults, while the test's context lasts.
    """

    outcome: Outcome
    broken: Trained


def compare(broken: Trained, unbroken: Trained) -> dict[str, bool]:
    """Compare sealed weights, the last training checkpoint's state and the sample ledger.

    Equal means bit for bit, and for the ledger each sample of each step in its order.
    """
    from shardline.data.ledger import read_ledger

    is_sealed = broken.model.exists()
    return {
        "weights": is_sealed and broken.model.read_bytes() == unbroken.model.read_bytes(),
        "optimizer": is_sealed and _equal(_state(broken.work), _state(unbroken.work)),
        "ledger": is_sealed
        and read_ledger(broken.work / "ledger") == read_ledger(unbroken.work / "ledger"),
    }


def cost(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return the steps and seconds of the attempts, done and lost, as the attempts recorded them."""
    return {
        "steps_done": sum(attempt.steps_done or 0 for attempt in attempts),
        "steps_lost": sum(attempt.steps_lost or 0 for attempt in attempts),
        "seconds_lost": round(sum(attempt.lost_s or 0.0 for attempt in attempts), 1),
        "attempts": len(attempts),
    }


def why_not_survived(
    compared: Mapping[str, bool], *, planned: int, injected: int, failure: str
) -> list[str]:
    """Return why a training did not survive, one sentence each.

    Args:
        planned, injected: how many faults were planned, and how many were injected.
        failure: why the last command failed; empty if it succeeded.
    """
    if injected < planned:
        missing = (
            f"{planned - injected} of {planned} faults were not injected, so nothing is shown."
        )
        return [f"{missing} {failure}".strip()]
    if failure:
        return [failure]
    others = [name for name, is_same in compared.items() if not is_same]
    return [f"different from the training without a fault: {', '.join(others)}"] if others else []


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
