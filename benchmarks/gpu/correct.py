"""Checks of correctness: a world of one, number formats, bits, resumes, FSDP2 and page-locked batches."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.models import KILL_AT, PAGE_LOCKED
from benchmarks.gpu.outcome import Line, NotRun, Wrong
from benchmarks.gpu.project import Run, Training, small_run

from shardline.checkpoints.folder import last_step, list_saved

_KILLED_BY = -9
_SAVE_AT, _KILL_STEP = 4, 13  # steps; an epoch has 8
_FIRST_SCALE = 65536.0  # of torch's gradient scaler


@dataclass
class Bench:
    """Where checks work, and what they share.

    Attributes:
        folder: for all that they write.
        accelerator: `gpu` or `cpu`.
        threads: CPU threads of an operation.
        end: of the check that runs now, by the monotonic clock.
    """

    folder: Path
    accelerator: str
    threads: int
    end: float = 0.0
    _whole: dict[str, tuple[Run, Training]] = field(default_factory=dict)

    @property
    def is_gpu(self) -> bool:
        """Whether trainings use a GPU."""
        return self.accelerator == "gpu"

    def needs_gpu(self, why: str) -> None:
        """Leave a check out on a CPU.

        Raises:
            NotRun: trainings use the CPU.
        """
        if not self.is_gpu:
            raise NotRun(f"{why} needs a GPU")

    def whole(self, precision: str = "32-true", strategy: str = "ddp") -> tuple[Run, Training]:
        """Return a run, and its training that nothing ended; trained once, whoever asks."""
        key = f"{precision}-{strategy}"
        if key not in self._whole:
            settings = {"precision": precision, "strategy": strategy}
            run = small_run(self.folder / "small", self.accelerator, **settings)
            self._whole[key] = (run, self.complete(run.training("whole")))
        return self._whole[key]

    def complete(self, training: Training, **variables: str) -> Training:
        """Run a training that has to succeed before the check's time is over."""
        return training.complete(self.end, self.threads, **variables)


def world(bench: Bench) -> Iterator[Line]:
    """A training of one rank, sealed, over the device's own backend."""
    _, whole = bench.whole()
    found = whole.json("provenance.json")["world"]
    expected = "nccl" if bench.is_gpu else "gloo"
    if found["world_size"] != 1 or found["backend"] != expected:
        raise Wrong(
            f"world_size={found['world_size']} over {found['backend']}, expected 1 over {expected}"
        )
    (rank,) = found["ranks"]
    yield Line(
        name="world", state="passed", text=f"1 rank over {expected} on {rank['device_name']}"
    )


def bits(bench: Bench) -> Iterator[Line]:
    """32-bit floats: the same bits of a second training, and of one that was killed and resumed."""
    run, whole = bench.whole()
    again = bench.complete(run.training("again"))
    _same(whole, again, "a second training")
    yield Line(name="bits", state="passed", text="two trainings have the same weights, bit for bit")
    yield _resumed(bench, "resume")


def bf16(bench: Bench) -> Iterator[Line]:
    """bf16-mixed, killed and resumed."""
    yield _resumed(bench, "bf16-mixed", precision="bf16-mixed")


def fp16(bench: Bench) -> Iterator[Line]:
    """16-mixed, killed after the scaler has lowered its scale, and resumed."""
    bench.needs_gpu("16-mixed")
    yield _resumed(bench, "16-mixed", precision="16-mixed")


def fsdp(bench: Bench) -> Iterator[Line]:
    """FSDP2 with one rank, killed and resumed from its shard."""
    yield _resumed(bench, "fsdp", precision="bf16-mixed", strategy="fsdp")


def locked(bench: Bench) -> Iterator[Line]:
    """Batches lie in page-locked memory before they are copied."""
    bench.needs_gpu("page-locked memory")
    _, whole = bench.whole()
    found = [line for line in whole.output().splitlines() if PAGE_LOCKED in line]
    if not found or not all(line.endswith("True") for line in found):
        raise Wrong(f"the first training batch is not page-locked: {found}")
    yield Line(name="page-locked", state="passed", text="the first training batch is page-locked")


def _resumed(bench: Bench, name: str, **settings: str) -> Line:
    run, whole = bench.whole(**settings)
    training = run.training("killed", checkpoint={"every_steps": _SAVE_AT})
    code = training.attempt(bench.end, bench.threads, **{KILL_AT: str(_KILL_STEP)})
    if code != _KILLED_BY:
        raise Wrong(f"exit code {code} at the kill, expected {_KILLED_BY}; {training.tail()}")
    checkpoints = training.folder / "work/checkpoints"
    step = last_step(checkpoints)
    if not 0 < step <= _KILL_STEP:
        raise Wrong(f"the newest training checkpoint has step {step}, expected 1 to {_KILL_STEP}")
    text = f"killed at step {_KILL_STEP}, resumed from {step}: the same weights, bit for bit"
    if settings.get("precision") == "16-mixed":
        text += f"; the scaler's scale was {_scale_of(list_saved(checkpoints)[0].path):g}"
    bench.complete(training)
    resumed = training.json("provenance.json")["training"]["resumed_step"]
    if resumed != step:
        raise Wrong(f"resumed from step {resumed}, expected {step}")
    _same(whole, training, f"a training killed at step {_KILL_STEP}")
    return Line(name=name, state="passed", text=text, figures={"resumed_step": step})


def _same(whole: Training, other: Training, what: str) -> None:
    digests = [
        hashlib.sha256((one.folder / "results/model.safetensors").read_bytes()).hexdigest()
        for one in (whole, other)
    ]
    if digests[0] != digests[1]:
        raise Wrong(f"{what} has weights {digests[1][:12]}, the first one {digests[0][:12]}")


def _scale_of(checkpoint: Path) -> float:
    state = torch.load(checkpoint / "state.pt", map_location="cpu", weights_only=True)
    scale = find_scale(state)
    if scale is None:
        raise Wrong(f"the training checkpoint {checkpoint.name} has no state of a gradient scaler")
    if scale == _FIRST_SCALE:
        raise Wrong(
            f"the gradient scaler's scale is still {scale:g}, so that a resume would prove nothing"
        )
    return scale


def find_scale(state: Any) -> float | None:
    """Return the scale of a gradient scaler's state, wherever it lies in a training checkpoint's."""
    if not isinstance(state, dict):
        return None
    if {"scale", "growth_factor"} <= state.keys():
        return float(state["scale"])
    found = (find_scale(value) for value in state.values())
    return next((scale for scale in found if scale is not None), None)
