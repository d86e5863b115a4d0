"""Results of a script: weights, metrics and evaluation, written by rank 0."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from shardline_io import own_run
from shardline_io.checkpoints import resume
from shardline_io.shards import header_of
from shardline_io.stopping import alive

_BEGAN = time.monotonic()
_METRICS = "metrics.jsonl"


class _Log:
    """Metrics of all attempts, without steps after the checkpoint that this attempt resumed from."""

    def __init__(self) -> None:
        self._kept = own_run.work_folder() / _METRICS
        saved = resume()
        last = saved.step if saved else 0
        lines = self._kept.read_text(encoding="utf-8").splitlines() if self._kept.exists() else []
        records = [json.loads(line) for line in lines if line.endswith("}")]
        records = [record for record in records if record["step"] <= last]
        self.seconds = max([record.get("wall_s", 0.0) for record in records], default=0.0)
        text = "".join(json.dumps(record) + "\n" for record in records)
        for path in (self._kept, own_run.output_folder() / _METRICS):
            path.write_text(text, encoding="utf-8")

    def add(self, record: Mapping[str, float]) -> None:
        for path in (self._kept, own_run.output_folder() / _METRICS):
            with path.open("a", encoding="utf-8") as file:
                print(json.dumps(record), file=file)


_log: _Log | None = None


def log(step: int, *, epoch: int | None = None, **metrics: float) -> None:
    """Record metrics of a step for the report's curves; does nothing on ranks other than 0.

    A resumed training continues the curves and drops metrics of steps after its checkpoint.

    Args:
        step: optimiser steps done.
        epoch: current epoch, from 0.
        metrics: numbers by name, such as `train_loss` and `val_loss`.
    """
    global _log
    alive()
    if own_run.world().rank:
        return
    _log = _log or _Log()
    record: dict[str, float] = {"step": int(step)}
    if epoch is not None:
        record["epoch"] = int(epoch)
    record["wall_s"] = round(_log.seconds + time.monotonic() - _BEGAN, 3)
    _log.add({**record, **{name: float(value) for name, value in metrics.items()}})


def write_evaluation(
    metrics: Mapping[str, float], num_samples: int, *, headline: tuple[str, str] | None = None
) -> None:
    """Write the evaluation by which the report ranks runs; does nothing on ranks other than 0.

    Args:
        metrics: numbers by name; the report ranks runs by `accuracy` or `mse`.
        num_samples: number of held-out rows evaluated.
        headline: another metric to rank runs by, and its mode (`max` or `min`).
    """
    alive()
    if own_run.world().rank:
        return
    document = {
        "metrics": {name: float(value) for name, value in metrics.items()},
        "num_samples": int(num_samples),
        **({"headline": {"metric": headline[0], "mode": headline[1]}} if headline else {}),
    }
    (own_run.output_folder() / "evaluation.json").write_text(json.dumps(document), encoding="utf-8")


def save_model(weights: Mapping[str, ArrayLike]) -> None:
    """Write the weights as `model.safetensors`; does nothing on ranks other than 0.

    Args:
        weights: arrays, or values that NumPy converts to arrays, by name. For `bfloat16` and 8-bit
            floating types, use the writer of the package safetensors instead.

    Raises:
        KeyError: NumPy or the safetensors format lacks the type of an array.
    """
    alive()
    if own_run.world().rank:
        return
    arrays = {name: np.asarray(value, order="C") for name, value in weights.items()}
    header = header_of(arrays)
    path: Path = own_run.output_folder() / "model.safetensors"
    with path.open("wb") as file:
        file.write(header)
        for array in arrays.values():
            file.write(array.tobytes())
            alive()
