"""Files of the sample ledger: one per rank and attempt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TextIO

NAME = re.compile(r"from-(?P<start>\d+)-rank-(?P<rank>\d+)-of-(?P<world>\d+)\.jsonl")


def file_name(start: int, rank: int, world_size: int) -> str:
    """Return the file name for a rank of an attempt; `NAME` matches it.

    Args:
        start: optimiser steps done when the attempt began.
    """
    return f"from-{start:09d}-rank-{rank:05d}-of-{world_size:05d}.jsonl"


def open_file(folder: Path, *, start: int, rank: int, world_size: int) -> TextIO:
    """Open the file of a rank for an attempt, and remove the files whose steps the attempt repeats.

    These are files of attempts that began later, before a rollback or with a training checkpoint that is damaged
    by now, and files of other ranks that began at the same step.

    Args:
        start: optimiser steps done when the attempt began.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_behind(folder, start)
    for path, found in files_of(folder):
        # each rank removes them: nodes may have folders of their own
        if int(found["start"]) == start and int(found["world"]) != world_size:
            path.unlink(missing_ok=True)
    path = folder / file_name(start, rank, world_size)
    return path.open("w", buffering=1, encoding="utf-8")


def remove_behind(folder: Path, step: int) -> None:
    """Remove the files of attempts that began behind a step."""
    for path, found in files_of(folder):
        if int(found["start"]) > step:
            path.unlink(missing_ok=True)


def files_of(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    """Return the files of a ledger with the matches of their names."""
    matches = ((path, NAME.fullmatch(path.name)) for path in folder.iterdir())
    return [(path, match) for path, match in matches if match]
