"""Whether two sides agree wherever identities say that they do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any

from tests.guard.bumps import VERSIONS
from tests.guard.values import Result

Results = Mapping[str, Result]
_ABSENT = "nothing"
_TEXT = 90


@dataclass(frozen=True)
class Verdict:
    """What a comparison found.

    Attributes:
        failures: a sentence for each result that changed and whose inputs did not.
        compared: keys of the results that were compared.
        apart: why others were not, by key.
    """

    failures: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    apart: dict[str, str] = field(default_factory=dict)


def compare(old: Results, new: Results, versions: Mapping[str, Mapping[str, int]]) -> Verdict:
    """Compare results whose versions are the same on both sides.

    Args:
        old: results of the earlier version, by key.
        new: those of the present one.
        versions: of the results to compare, by key; named in the remedy.
    """
    verdict = Verdict()
    changed = {key for key in new if _differs(old, new, key)}
    for key in versions:
        if reason := _apart(old, new, key):
            verdict.apart[key] = reason
            continue
        verdict.compared.append(key)
        if key in changed and not changed & set(_upstream(new, key)):
            names = " or ".join(sorted(versions[key]))
            follow = sum(key in _upstream(new, other) for other in changed)
            more = f", and {follow} results that are made from it" if follow else ""
            where = next(differences(old[key].values, new[key].values)) if key in old else _ABSENT
            verdict.failures.append(
                f"{key} has other values than before and the same result version: {where}{more}. If results are "
                f"meant to change, add a line to the history {names} in {VERSIONS} whose predicate holds for this "
                "case; else find what changed them"
            )
    return verdict


def _differs(old: Results, new: Results, key: str) -> bool:
    return key not in old or old[key].values != new[key].values


def _upstream(results: Results, key: str) -> Iterator[str]:
    for name in results[key].inputs:
        yield name
        yield from _upstream(results, name)


def _apart(old: Results, new: Results, key: str) -> str:
    """Return why a result may differ without another version: nothing kept it as the same result."""
    for name in (key, *_upstream(new, key)):
        if name not in old:
            continue
        before, now = old[name].identity, new[name].identity
        if before.get("environment") != now.get("environment"):
            return f"{name} has other packages: {next(differences(before['environment'], now['environment']))}"
        # the order of samples follows from the digest of the dataset's identity
        if name != key and new[name].stage == "data" and before != now:
            return f"{name} has another identity: {next(differences(before, now))}"
    return ""


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Tell where two JSON values differ, the first place first."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        for place, (one, other) in enumerate(zip_longest(old, new, fillvalue=_ABSENT)):
            yield from differences(one, other, f"{path}[{place}]")
    else:
        yield f"{path.removeprefix('.')}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = "".join(islice(repr(value), _TEXT + 1))
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."
