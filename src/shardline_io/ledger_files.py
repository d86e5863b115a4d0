"""Names of the sample ledger's files: one per rank and attempt."""

from __future__ import annotations

import re

NAME = re.compile(r"from-(?P<start>\d+)-rank-(?P<rank>\d+)-of-\d+\.jsonl")


def file_name(start: int, rank: int, world_size: int) -> str:
    """Return the file name for a rank of an attempt; `NAME` matches it.

    Args:
        start: optimiser steps done when the attempt began.
    """
    return f"from-{start:09d}-rank-{rank:05d}-of-{world_size:05d}.jsonl"
