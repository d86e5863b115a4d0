"""Which runs repeat each other with another seed."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from shardline.core.intervals import but_seed
from shardline.report.run import Run

_SEED_IN_NAME = re.compile(r"_seed=[^_]+")


def repeats_of(runs: Iterable[Run]) -> list[list[Run]]:
    """Put runs together that differ in nothing but the seed, in the order in which they come."""
    found: dict[tuple[str, int], list[Run]] = {}
    num_seen: Counter[tuple[str, str]] = Counter()
    for run in runs:
        what, seed = _but_seed(run), json.dumps(run.setting("seed"))
        # the same seed again repeats nothing: it would make the spread too small
        found.setdefault((what, num_seen[what, seed]), []).append(run)
        num_seen[what, seed] += 1
    return list(found.values())


def name_of_repeats(names: Sequence[str]) -> str:
    """Return what runs that differ in the seed are called together."""
    short = {_SEED_IN_NAME.sub("", name) for name in names}
    return short.pop() if len(short) == 1 else f"{names[0]} and {len(names) - 1} more"


def _but_seed(run: Run) -> str:
    """Return everything that a run's result depends on, except for its seed."""
    document = dict(run.identity) or {"model": run.spec.get("model")}
    settings = document.get("settings") or run.spec.get("settings")
    evaluated = run.evaluation.get("identity")
    found = but_seed(
        {**document, "settings": settings}, evaluated if isinstance(evaluated, Mapping) else None
    )
    return json.dumps(found, sort_keys=True)
