"""Shardline for training scripts of any framework; needs only Python's standard library and NumPy.

Shardline starts a script (`script: train.py`) once per rank. Through this package the script reads
its settings, its batches and its last training checkpoint, and writes its results::

    import shardline_io as io

    for batch in io.train():            # this rank's batches, from the last checkpoint on
        loss = my_step(batch["features"], batch["labels"])
        io.log(batch.step, train_loss=loss)
        if batch.step % 100 == 0:
            with io.checkpoint(batch.step) as folder:
                my_save(folder)
    io.save_model(my_weights())
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Imported on first use: Shardline itself imports parts of this package where there is no run.
_HOMES = {
    "own_run": ("RankPlace", "manifest", "model_args", "output_folder", "schema", "settings", "work_folder", "world"),
    "streams": ("Batch",),
    "batches": ("held_out", "num_steps", "test", "train", "validation"),
    "checkpoints": ("Saved", "checkpoint", "resume"),
    "results": ("log", "save_model", "write_evaluation"),
    "stopping": ("alive", "should_stop", "stop"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
