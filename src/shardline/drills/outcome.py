"""Compare a training with injected faults with the uninterrupted training, and write the resume certificate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from shardline.checkpoints.folder import list_saved
from shardline.provenance.actions import Action
from shardline.provenance.resume_certificates import write_certificate
from shardline.records.attempts import Attempt
from shardline.records.base import read_record
from shardline.records.certificates import Certified, Interruption, ResumeCertificate
from shardline.records.trainings import TrainingProvenance
from shardline.supervision.attempt_log import read_attempts

# Compared parts of a training checkpoint beside the weights. The other parts are times and file names.
_STATE = ("optimizer_states", "lr_schedulers", "global_step", "epoch")


@dataclass(frozen=True, kw_only=True)
class TrainedFiles:
    """Folders of a training to compare.

    Attributes:
        work: the run's folder in the store.
        results: folder of the sealed files.
    """

    work: Path
    results: Path

    @property
    def model(self) -> Path:
        """The sealed weights."""
        return self.results / "model.safetensors"

    @property
    def _sealed(self) -> Path:
        return self.results / "provenance.json"

    def provenance(self) -> TrainingProvenance | None:
        """Return the sealed provenance; None if the training was never sealed."""
        if not self._sealed.exists():
            return None
        return read_record(self._sealed, TrainingProvenance, remedy="run `shardline drill` again")

    def attempts(self) -> list[Attempt]:
        """Return the attempts of the training from its provenance, or those recorded so far."""
        found = self.provenance()
        return (found.attempt_log if found else None) or read_attempts(self.work)


@dataclass(frozen=True, kw_only=True)
class DrilledRun:
    """The outcome of a fault-injection test for one run.

    Attributes:
        verdict: `survived` or `not survived`.
        drill: Name of the test.
        profile: Snakemake profile.
        ranks: Number of ranks.
        reasons: Why the training did not survive; empty if it did.
        steps_done: Optimiser steps of all attempts.
        steps_lost: Steps that were repeated.
        seconds_lost: Time of the repeated work, in seconds.
        attempts: Number of attempts.
        commands: Number of times that the command had to be run.
        interruptions: The injected interruptions.
        compared: Whether `weights`, `optimizer` and `ledger` equal those of the uninterrupted training.
        folder: Folder of the test; null if it was removed.
    """

    verdict: str
    drill: str
    profile: str
    ranks: int
    reasons: list[str]
    steps_done: int
    steps_lost: int
    seconds_lost: float
    attempts: int
    commands: int
    interruptions: list[Interruption]
    compared: dict[str, bool]
    folder: Path | None = None


# A run's outcome, and its code, environment and machine for a certificate; None if nothing was sealed.
Drilled = tuple[DrilledRun, Certified | None]


def certify(drilled: Sequence[Drilled], action: Action) -> Path | None:
    """Write the certificate of a `resume` test, and return its path; None if a training was never sealed.

    Args:
        drilled: one outcome per number of ranks.
        action: action of the test, started before its trainings.
    """
    outcomes = [one for one, _ in drilled]
    parts = [identity for _, identity in drilled if identity]
    if len(parts) < len(outcomes):
        return None
    identity = structs.replace(
        parts[0],
        machine=sorted({name for part in parts for name in part.machine}),
        world_sizes=sorted(size for part in parts for size in part.world_sizes if size),
    )
    certificate = ResumeCertificate(
        identity=identity,
        interruptions=[one for outcome in outcomes for one in outcome.interruptions],
        compared={
            name: all(one.compared[name] for one in outcomes) for name in outcomes[0].compared
        },
        verdict=verdict_of([reason for one in outcomes for reason in one.reasons]),
        action=action.record(),
    )
    return write_certificate(certificate)


def compare(broken: TrainedFiles, unbroken: TrainedFiles) -> dict[str, bool]:
    """Return whether sealed weights, last training checkpoint and sample ledger are equal.

    Weights and checkpoints must be bit-identical. Ledgers must list the same samples in the same order.
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
    """Return done steps, lost steps and lost seconds as recorded by the attempts."""
    return {
        "steps_done": sum(attempt.steps_done or 0 for attempt in attempts),
        "steps_lost": sum(attempt.steps_lost or 0 for attempt in attempts),
        "seconds_lost": round(sum(attempt.lost_s or 0.0 for attempt in attempts), 1),
        "attempts": len(attempts),
    }


def why_not_survived(
    compared: Mapping[str, bool], *, planned: int, injected: int, failure: str
) -> list[str]:
    """Return the reasons why a training did not survive, one sentence each.

    Args:
        planned, injected: numbers of planned and injected faults.
        failure: reason why the last command failed; empty if it succeeded.
    """
    if injected < planned:
        missing = f"{planned - injected} of {planned} faults were not injected, so the test shows nothing."
        return [f"{missing} {failure}".strip()]
    if failure:
        return [failure]
    others = [name for name, is_same in compared.items() if not is_same]
    return [f"different from the training without a fault: {', '.join(others)}"] if others else []


def verdict_of(reasons: Sequence[str]) -> str:
    """Return `survived`, or `not survived` if there are reasons."""
    return "not survived" if reasons else "survived"


def _state(work: Path) -> dict[str, Any]:
    import torch

    newest = list_saved(work / "checkpoints")[0]
    state = torch.load(newest.path / "state.pt", map_location="cpu", weights_only=True)
    return {key: state[key] for key in _STATE}


def _equal(first: Any, second: Any) -> bool:
    """Return whether two states are equal and their tensors bit-identical."""
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
