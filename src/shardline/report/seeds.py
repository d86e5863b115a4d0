"""Which runs repeat each other with another seed."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from shardline.records.reports import ReportedRun

_SEED_IN_NAME = re.compile(r"_seed=[^_]+")


def repeats_of(runs: Iterable[ReportedRun]) -> list[list[ReportedRun]]:
    """Put runs together that differ in nothing but the seed, in the order in which they come."""
    found: dict[tuple[str, int], list[ReportedRun]] = {}
    num_seen: Counter[tuple[str, str]] = Counter()
    for run in runs:
        what, seed = run.all_but_seed, json.dumps(run.setting("seed"))
        # the same seed again repeats nothing: it would make the spread too small
        found.setdefault((what, num_seen[what, seed]), []).append(run)
        num_seen[what, seed] += 1
    return list(found.values())


def name_of_repeats(names: Sequence[str]) -> str:
    """Return what runs that differ in the seed are called together."""
    short = {_SEED_IN_NAME.sub("", name) for name in names}
    return short.pop() if len(short) == 1 else f"{names[0]} and {len(names) - 1} more"
