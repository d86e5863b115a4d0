"""Files of the sample ledger: one per rank and attempt."""

from __future__ import annotations

import json
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
        if int(found["start"]) == start and int(found["world"]) != world_size:
            path.unlink(
                missing_ok=True
            )  # each rank removes them: nodes may have folders of their own
    path = folder / file_name(start, rank, world_size)
    return path.open("w", buffering=1, encoding="utf-8")


def remove_behind(folder: Path, step: int) -> None:
    """Remove the files of attempts that began behind a step, if there is a ledger."""
    if not folder.is_dir():
        return
    for path, found in files_of(folder):
        if int(found["start"]) > step:
            path.unlink(missing_ok=True)


def cut_behind(folder: Path, step: int) -> None:
    """Remove all that a ledger has of the steps behind a step, if there is a ledger."""
    remove_behind(folder, step)
    for path, _ in files_of(folder) if folder.is_dir() else ():
        scratch = path.with_name(f".{path.name}")
        with path.open(encoding="utf-8") as source, scratch.open("w", encoding="utf-8") as target:
            # an attempt that was killed may have written a part of its last line
            target.writelines(
                line for line in source if line.endswith("\n") and json.loads(line)["step"] <= step
            )
        scratch.replace(path)


def files_of(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    """Return the files of a ledger with the matches of their names."""
    matches = ((path, NAME.fullmatch(path.name)) for path in folder.iterdir())
    return [(path, match) for path, match in matches if match]
