"""Files of the sample ledger: one for each rank and attempt, named by the step that the attempt resumed from."""

from __future__ import annotations

import re

NAME = re.compile(r"from-(?P<start>\d+)-rank-(?P<rank>\d+)-of-\d+\.jsonl")


def file_name(start: int, rank: int, world_size: int) -> str:
    """Return the name of an attempt's file, for which `NAME` matches.

    Args:
        start: optimiser steps that were done when the attempt began.
    """
    return f"from-{start:09d}-rank-{rank:05d}-of-{world_size:05d}.jsonl"
