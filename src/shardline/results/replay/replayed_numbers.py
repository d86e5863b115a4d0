"""Comparison of recorded numbers with replayed ones."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

EQUAL, WITHIN, DIFFERENT = "equal", "within the tolerance", "different"
# keys that an evaluation does not compute
_NOT_FOUND = {"run", "identity", "files", "action", "sha256"}
_MISSING = object()
_SIZE = "size"  # of a list, as a value beside its items


@dataclass(frozen=True, kw_only=True)
class Number:
    """Comparison of a recorded number, or a table of numbers, with the replayed one.

    Attributes:
        name: Dotted key in the evaluation.
        recorded: Recorded value, as text.
        replayed: Replayed value, as text.
        verdict: `equal`, `within the tolerance` or `different`.
        difference: Largest relative difference; None if a value is no number.
    """

    name: str
    recorded: str
    replayed: str
    verdict: str
    difference: float | None


def compare(
    recorded: Mapping[str, Any], replayed: Mapping[str, Any], tolerance: float
) -> list[Number]:
    """Compare all values of a recorded evaluation with those of its replay.

    Args:
        tolerance: Allowed difference of two numbers, as a share of the larger; 0 means exactly equal.
            Other values (class names, predicted classes) must be equal. With a tolerance, samples that a
            model describes are left out, since a last digit may change a text or a pixel.
    """
    is_described = recorded.get("measured_by") == "model"
    left_out = _NOT_FOUND | ({"samples"} if tolerance and is_described else set())
    before, after = (
        dict(_leaves({key: document[key] for key in document if key not in left_out}))
        for document in (recorded, replayed)
    )
    rows: dict[str, dict[str, tuple[object, object]]] = {}
    for path in before | after:  # a value that one side lacks is a difference
        pair = before.get(path, _MISSING), after.get(path, _MISSING)
        known = pair[1] if pair[0] is _MISSING else pair[0]
        rows.setdefault(_row(path, known), {})[path] = pair
    return [_compare(name, pairs, tolerance) for name, pairs in rows.items()]


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping) and value:
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
        yield f"{path}.{_SIZE}", len(value)
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, None  # as in a sealed file
    else:
        yield path, value
    for key, item in items:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _row(path: str, value: object) -> str:
    """Return the row of a value in the printed table: a table of numbers is one row."""
    top, _, rest = path.partition(".")
    if not _is_number(value) or path.endswith(f".{_SIZE}"):
        return "names and sizes"
    return path if top in ("metrics", "headline") or not rest else top


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _compare(name: str, pairs: Mapping[str, tuple[object, object]], tolerance: float) -> Number:
    distances = [_distance(*pair) for pair in pairs.values()]
    known = [distance for distance in distances if distance is not None]
    largest = None if len(known) < len(distances) else max(known)
    verdict = WITHIN if largest is not None and largest <= tolerance else DIFFERENT
    verdict = EQUAL if largest == 0 else verdict
    if len(pairs) == 1:
        ((before, after),) = pairs.values()
        shown = _text(before), _text(after)
    else:
        apart = sum(distance != 0 for distance in distances)
        shown = f"{len(pairs):,} values", f"{apart:,} differ" if apart else "the same"
    return Number(
        name=name, recorded=shown[0], replayed=shown[1], verdict=verdict, difference=largest
    )


def _distance(before: object, after: object) -> float | None:
    """Return the difference of two values as a share of the larger; None if one is no number."""
    if before == after:
        return 0.0
    if not (_is_number(before) and _is_number(after)):
        return None
    numbers = float(before), float(after)  # type: ignore[arg-type]
    return abs(numbers[0] - numbers[1]) / max(map(abs, numbers))


def _text(value: object) -> str:
    return "missing" if value is _MISSING else str(value)
