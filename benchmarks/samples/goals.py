"""What samples should reach, and whether they do; a ratio is the median of the rounds' ratios."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.samples.competitors import BY_HAND, LIMIT, LOOP, LOOP_ALONE, OURS
from benchmarks.samples.task import BOXES, PHOTOS, TOKENS
from benchmarks.samples.training import cold_ratios

Results = dict[str, Any]
_NOT_PEERS = (OURS, LIMIT, LOOP, LOOP_ALONE)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure, how it spreads, and its limit.

    Attributes:
        least, most: of the rounds.
        is_most: the limit is the most that is allowed, not the least.
    """

    text: str
    value: float
    least: float
    most: float
    limit: float
    is_most: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the figure keeps the limit."""
        return self.value <= self.limit if self.is_most else self.value >= self.limit


def goals(results: Results) -> list[Goal]:
    """Return the goals that these results have figures for."""
    return [*_speed(results), *_cold(results), *_stalls(results), *_packing(results)]


def cell(results: Results, work: str, workers: int | None) -> dict[str, dict[str, Any]]:
    """Return the entries of a cell by competitor."""
    return {
        entry["competitor"]: entry
        for entry in results.get(work, [])
        if entry["workers"] == workers and "clock" in entry
    }


def _speed(results: Results) -> Iterator[Goal]:
    photos, both = cell(results, PHOTOS, 0), cell(results, PHOTOS, 2)
    name = "photos, one core,"
    yield from _ratios(f"{name} of the decoder alone", photos, (LIMIT,), 0.9)
    yield from _ratios(f"{name} times the best peer", photos, peers(photos), 1.5)
    by_hand = peers(photos, by_hand=True)
    yield from _ratios(f"{name} times the best peer with our decoder by hand", photos, by_hand, 1.5)
    yield from _ratios("photos, two workers, times the best peer", both, peers(both), 1.5)
    tokens, boxes = cell(results, TOKENS, None), cell(results, BOXES, None)
    yield from _ratios("tokens, times the best library peer", tokens, peers(tokens), 5)
    yield from _ratios("tokens, times nanoGPT's loop as written", tokens, (LOOP,), 1)
    yield from _ratios("tokens, times its loop for inputs alone", tokens, (LOOP_ALONE,), 1)
    yield from _ratios("boxes, times the best peer", boxes, peers(boxes), 5)
    by_hand = peers(boxes, by_hand=True)
    yield from _ratios("boxes, times the best peer by hand", boxes, by_hand, 5)


def peers(entries: dict[str, dict[str, Any]], *, by_hand: bool = False) -> tuple[str, ...]:
    """Return the libraries among competitors, as documented or by hand."""
    names = (name for name in entries if name not in _NOT_PEERS)
    return tuple(name for name in names if name.endswith(BY_HAND) == by_hand)


def _ratios(
    text: str, entries: dict[str, dict[str, Any]], others: tuple[str, ...], limit: float
) -> Iterator[Goal]:
    """Yield our rate over the best of some others', by CPU time and by the clock."""
    found = [entries[name] for name in others if name in entries]
    if OURS not in entries or not found:
        return
    for how, named in (("cpu", "CPU time"), ("clock", "clock")):
        best = max(found, key=lambda one: statistics.median(one[how]))
        ratios = [a / b for a, b in zip(entries[OURS][how], best[how], strict=True)]
        against = f"; {best['competitor']}" if len(found) > 1 else ""
        yield _goal(f"{text} ({named}{against})", ratios, limit)


def _goal(text: str, values: list[float], limit: float, *, is_most: bool = False) -> Goal:
    return Goal(
        text=text,
        value=statistics.median(values),
        least=min(values),
        most=max(values),
        limit=limit,
        is_most=is_most,
    )


def _cold(results: Results) -> Iterator[Goal]:
    if results.get("cold"):
        value, least, most = cold_ratios(results["cold"])
        text = "photos, cold page cache, of the slower of reading and decoding (clock)"
        yield Goal(text=text, value=value, least=least, most=most, limit=1)


def _stalls(results: Results) -> Iterator[Goal]:
    for entry in results.get("stalls", []):
        text = f"time to a window's first batch over the median step, {entry['workers']} threads"
        yield Goal(
            text=text,
            value=entry["ratio_median"],
            least=entry["ratio_median"],
            most=entry["ratio_max"],
            limit=2,
            is_most=True,
        )


def _packing(results: Results) -> Iterator[Goal]:
    found = results.get("packing") or []
    if found:
        ours, best = found[0]["waste"], min(one["waste"] for one in found[1:])
        value = ours / best
        text = f"waste of packs ({ours:.4f}) over Grain's least ({best:.4f})"
        yield Goal(text=text, value=value, least=value, most=value, limit=1, is_most=True)
