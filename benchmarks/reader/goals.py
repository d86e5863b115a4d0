"""What the reader should reach, and whether it did."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.reader.competitors import BY_HAND, LIMITS, OURS, PEERS, REFERENCES
from benchmarks.reader.competitors.settings import WINDOW_BYTES

Results = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure and its limit.

    Attributes:
        is_most: the limit is the most that is allowed, not the least.
    """

    text: str
    value: float
    limit: float
    is_most: bool = False

    def document(self) -> dict[str, Any]:
        """Return the goal as JSON can hold it, with whether it is met."""
        is_met = self.value <= self.limit if self.is_most else self.value >= self.limit
        return asdict(self) | {"is_met": is_met}


def evaluate_goals(results: Results) -> list[dict[str, Any]]:
    """Return the goals that these results have figures for."""
    found = [*_speed(results), *_two_ranks(results), *_stalls(results), *_memory(results)]
    return [goal.document() for goal in found]


def medians(results: Results, shape: str, batch: int, ranks: int) -> dict[str, float]:
    """Return samples a second by competitor in one cell."""
    return {
        entry["competitor"]: entry["median"]
        for entry in results.get("speed", [])
        if (entry["shape"], entry["batch"], entry["ranks"]) == (shape, batch, ranks)
        and "median" in entry
    }


def fastest(rates: dict[str, float], names: tuple[str, ...]) -> float:
    """Return the best rate among these competitors; 0 where none was measured."""
    return max((rates[name] for name in names if name in rates), default=0.0)


def _speed(results: Results) -> Iterator[Goal]:
    for shape, factor in (("wide", 10), ("narrow", 50)):
        rates = medians(results, shape, 256, 1)
        others = {
            "the faster reference": REFERENCES,
            "the best peer as documented": PEERS,
            "the best peer by hand": BY_HAND,
        }
        for text, names in others.items():
            if OURS in rates and fastest(rates, names):
                value = rates[OURS] / fastest(rates, names)
                yield Goal(text=f"{shape}, batch 256, times {text}", value=value, limit=factor)
        if shape == "wide" and {OURS, LIMITS[0]} <= rates.keys():
            value = rates[OURS] / rates[LIMITS[0]]
            yield Goal(text="wide, batch 256, share of the memory copy", value=value, limit=0.25)


def _two_ranks(results: Results) -> Iterator[Goal]:
    cells = {(e["shape"], e["batch"]) for e in results.get("speed", []) if e["ranks"] == 2}
    for shape, batch in sorted(cells, reverse=True):
        rates = medians(results, shape, batch, 2)
        if OURS in rates and fastest(rates, REFERENCES):
            text = f"{shape}, batch {batch}, 2 ranks, times the faster reference"
            yield Goal(text=text, value=rates[OURS] / fastest(rates, REFERENCES), limit=6)


def _stalls(results: Results) -> Iterator[Goal]:
    for entry in results.get("stalls", []):
        if entry["competitor"] == OURS:
            text = (
                f"longest time to a window's first batch over the median's, step: {entry['step']}"
            )
            yield Goal(text=text, value=entry["ratio_max"], limit=2, is_most=True)


def _memory(results: Results) -> Iterator[Goal]:
    memory = results.get("memory")
    if memory:
        limit = 2 * WINDOW_BYTES / 1e6 + 300
        text = f"anonymous memory's growth over {memory['trained_gb']:.0f} GB, MB"
        yield Goal(text=text, value=memory["growth_mb"], limit=limit, is_most=True)
        drift = memory["last_mb"] - memory["first_mb"]
        yield Goal(
            text="of it from the first window to the last, MB", value=drift, limit=20, is_most=True
        )
