"""Training checkpoints of a script: folders that appear only once they are complete."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shardline_io import own_run
from shardline_io.errors import DataError
from shardline_io.stopping import alive

_WHOLE = re.compile(r"step-([0-9]{9})")
_LOOK_S, _WAIT_S = 0.05, 600.0


@dataclass(frozen=True)
class Saved:
    """A training checkpoint.

    Attributes:
        folder: folder with the saved files.
        step: optimiser steps done when it was saved.
    """

    folder: Path
    step: int

    @property
    def saved_s(self) -> float:
        """Time at which the last file was written, in seconds since 1970."""
        return max(path.stat().st_mtime for path in (self.folder, *self.folder.rglob("*")))


def resume() -> Saved | None:
    """Return the last complete training checkpoint; None if the training starts from scratch."""
    return last_saved(own_run.work_folder())


def last_saved(work: Path) -> Saved | None:
    """Return the last complete training checkpoint in a run's work folder; None if there is none."""
    found = [match for match in map(_WHOLE.fullmatch, _names(work)) if match]
    if not found:
        return None
    last = max(found, key=lambda match: int(match[1]))
    return Saved(work / last[0], int(last[1]))


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


@contextmanager
def checkpoint(step: int) -> Iterator[Path]:
    """Save a training checkpoint: yield the folder into which each rank may write its state.

    All ranks must enter the block. The checkpoint counts once every rank has left it; only then are
    earlier checkpoints deleted. If a process is killed before, the earlier checkpoint remains.

    Args:
        step: optimiser steps done.

    Raises:
        DataError: a rank does not leave the block within ten minutes.
    """
    work, world = own_run.work_folder(), own_run.world()
    name = f"step-{step:09d}"
    partial, whole = work / f"{name}.partial", work / name
    if whole.exists():  # the training resumed from this step and has done none since
        partial = work / f"{name}.again.partial"
    partial.mkdir(parents=True, exist_ok=True)
    alive()
    yield partial
    alive()
    marks = work / f"{partial.name}.ranks"
    marks.mkdir(exist_ok=True)
    (marks / str(world.rank)).write_text(json.dumps({"step": step}), encoding="utf-8")
    if world.rank:
        return
    _wait_for(marks, world.world_size)
    if whole.exists():
        shutil.rmtree(partial)
    else:
        partial.rename(whole)
    shutil.rmtree(marks)
    for other in _names(work):
        if other != name and _WHOLE.fullmatch(other):
            shutil.rmtree(work / other, ignore_errors=True)


def _wait_for(marks: Path, ranks: int) -> None:
    end = time.monotonic() + _WAIT_S
    while missing := sorted({str(rank) for rank in range(ranks)} - set(_names(marks))):
        if time.monotonic() > end:
            raise DataError(
                f"rank {', '.join(missing)} has not saved after {_WAIT_S:.0f} s (by {marks}), expected all {ranks} "
                "ranks; let every rank enter shardline_io.checkpoint at the same step"
            )
        alive()
        time.sleep(_LOOK_S)
