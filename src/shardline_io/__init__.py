"""What a training program of any framework needs of its run; the standard library and NumPy alone.

A program that Shardline starts as a rank (`script: train.py`) reads its settings, its slice of each
global batch and the place to resume from here, and leaves its results here::

    import shardline_io as io

    for batch in io.train():            # this rank's slices, from the step that was saved last
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

# Looked up when asked for: Shardline itself imports parts of this package, and no run.
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
