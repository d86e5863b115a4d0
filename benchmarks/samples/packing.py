"""How much of packs is filled up: rows of log-normal lengths, packed by Grain and by Shardline."""

import time
from typing import Any

import numpy as np
from benchmarks.reader.competitors import Competitor
from benchmarks.reader.crew import Crew
from benchmarks.samples.formats import WORKER
from benchmarks.samples.plan import Plan

from shardline_io.order.best_fit import plan_packs

LENGTH = 2048
BINS = (30, 100, 1000)  # Grain's documentation shows tens of them
GRAIN = Competitor(name="Grain", module="grain", format="grain", environment="grain")


def measure(plan: Plan) -> list[dict[str, Any]]:
    """Return packs, the share of their places that is filled up, and the seconds that they took.

    Grain also copies the values; its seconds are no competitor of the plan's.

    Raises:
        CompetitorError: Grain failed.
    """
    drawn = np.random.default_rng(21).lognormal(5.5, 1, plan.rows).astype(np.int64)
    lengths = np.clip(drawn, 1, LENGTH)
    path = plan.cache / "data" / f"lengths-{plan.rows}.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, lengths)
    start = time.perf_counter()
    ours = len(plan_packs(lengths, LENGTH).used)
    results = [{"competitor": "Shardline", "packs": ours, "seconds": time.perf_counter() - start}]
    with Crew(GRAIN, plan.cache, worker=WORKER) as crew:
        for bins in BINS:
            (reply,) = crew.ask("pack", lengths=str(path), length=LENGTH, bins=bins)
            results.append({"competitor": f"Grain, {bins} packs at a time", **reply})
    values = int(lengths.sum())
    return [one | {"waste": 1 - values / (one["packs"] * LENGTH)} for one in results]
