"""Training checkpoints of a program: a folder that is there whole, or not at all."""

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
        folder: what was saved in it.
        step: optimiser steps that were done.
    """

    folder: Path
    step: int

    @property
    def saved_s(self) -> float:
        """When its last file was written, in seconds since the epoch."""
        return max(path.stat().st_mtime for path in (self.folder, *self.folder.rglob("*")))


def resume() -> Saved | None:
    """Return the last whole training checkpoint, None where the training begins."""
    return last_saved(own_run.work_folder())


def last_saved(work: Path) -> Saved | None:
    """Return the last whole training checkpoint in a run's folder of them."""
    found = [match for match in map(_WHOLE.fullmatch, _names(work)) if match]
    if not found:
        return None
    last = max(found, key=lambda match: int(match[1]))
    return Saved(work / last[0], int(last[1]))


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


@contextmanager
def checkpoint(step: int) -> Iterator[Path]:
    """Save the state of the training: all ranks enter, each may write into the same folder.

    The folder appears under its name once every rank has left the block; only then are the earlier
    ones deleted. A process that is killed before leaves the earlier checkpoint as it was.

    Args:
        step: optimiser steps that are done.

    Raises:
        DataError: a rank does not leave the block within ten minutes.
    """
    work, world = own_run.work_folder(), own_run.world()
    name = f"step-{step:09d}"
    partial, whole = work / f"{name}.partial", work / name
    if whole.exists():  # a resumed training that has done no step since
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
                f"{marks} lacks rank {', '.join(missing)} after {_WAIT_S:.0f} s, expected all {ranks} ranks; let every "
                "rank enter shardline_io.checkpoint at the same step"
            )
        alive()
        time.sleep(_LOOK_S)
