"""Comparison of two recorded runs: identities, circumstances and metrics."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardline.config.causes import Cause, find_causes
from shardline.core.intervals import Interval, but_seed, sampling_interval, seed_interval
from shardline.core.variables import compared
from shardline.records.base import encode
from shardline.records.trainings import TrainingProvenance
from shardline.results.sealed_run import SealedRun, newest_evaluation
from shardline.results.staleness import causes_of_trainings, read_definitions

_UNSET = "unset"
_JUDGED = (
    "settings",
    "versions",
    "environment",
    "code",
)  # parts of an evaluation's identity document


@dataclass(frozen=True, kw_only=True)
class Change:
    """One held-out metric of both runs.

    Attributes:
        metric: Name of the metric.
        old: Value of the first run, or None.
        new: Value of the second run, or None.
        interval: Ends of the 95 % interval of `new - old`; None if the noise is unknown.
        basis: Basis of the interval: `seeds` (repeats with other seeds), `sampling` (the choice of
            held-out samples) or empty.
        verdict: Whether the difference may be noise, in words.
        headline: `min` or `max`, the better end, if this is the headline metric of both runs; else empty.
    """

    metric: str
    old: float | None
    new: float | None
    interval: Interval | None
    basis: str
    verdict: str
    headline: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison of two runs.

    Attributes:
        old: Title of the first run.
        new: Title of the second run.
        causes: Differences in the identities: settings, model, dataset, code, environment.
        circumstances: Differences that no identity contains: installed packages, hardware, commits.
        metrics: Held-out metrics of both runs.
    """

    old: str
    new: str
    causes: list[Cause]
    circumstances: list[Cause]
    metrics: list[Change]


def compare_runs(old: SealedRun, new: SealedRun) -> Comparison:
    """Compare two recorded runs; texts describe the change from the first to the second.

    Raises:
        DataError: A recorded file cannot be read, or is damaged.
    """
    return Comparison(
        old=old.title,
        new=new.title,
        causes=list(_causes(old, new)),
        circumstances=[*_acceptances(old, new), *_circumstances(old.provenance, new.provenance)],
        metrics=list(_changes(old, new)),
    )


def _causes(old: SealedRun, new: SealedRun) -> Iterator[Cause]:
    """Yield the differences in the identities, then those in the evaluations only."""
    definitions = _definitions(old, new)
    causes = causes_of_trainings(old.layout, old.identity, new.identity, definitions)
    yield from causes
    known = {cause.text for cause in causes}
    yield from (cause for cause in _evaluation_causes(old, new) if cause.text not in known)


def _evaluation_causes(old: SealedRun, new: SealedRun) -> Iterator[Cause]:
    if not (old.evaluation and new.evaluation):
        return
    before, after = (
        {key: one.identity.get(key, {}) for key in _JUDGED}
        for one in (old.evaluation, new.evaluation)
    )
    for cause in find_causes(before, after, _definitions(old, new)):
        yield Cause("evaluation", cause.text)


def _definitions(
    old: SealedRun, new: SealedRun
) -> tuple[Mapping[str, object], Mapping[str, object]]:
    return read_definitions(old.folder), read_definitions(new.folder)


# --- differences that no identity contains ------------------------------------------------------


def _acceptances(*runs: SealedRun) -> Iterator[Cause]:
    for run in runs:
        if run.accepted:
            yield Cause("accepted", f"{run.title}: {run.accepted}")


def _circumstances(
    old: TrainingProvenance | None, new: TrainingProvenance | None
) -> Iterator[Cause]:
    if not (old and new):
        return
    tellers = {
        "installed": _installed,
        "hardware": _hardware,
        "variable": _variables,
        "commit": _commits,
    }
    for kind, tell in tellers.items():
        before, after = tell(old), tell(new)
        for key in sorted(before.keys() | after.keys()):
            pair = before.get(key, _UNSET), after.get(key, _UNSET)
            if pair[0] != pair[1]:
                yield Cause(kind, f"{key} {_text(pair[0])} -> {_text(pair[1])}")


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _installed(provenance: TrainingProvenance) -> dict[str, object]:
    environment = provenance.environment
    conda = {"conda packages": len(environment.conda)} if environment.conda else {}
    return {
        **(environment.packages or {}),
        **conda,
        "python": environment.python,
        "image": environment.image,
        "platform": provenance.software.get("platform"),
    }


def _hardware(provenance: TrainingProvenance) -> dict[str, object]:
    resources = provenance.resources
    world = {key: value for key, value in encode(provenance.world).items() if key != "ranks"}
    return {
        **world,
        "devices": provenance.devices,
        "host": provenance.host,
        **(
            {"num_cpus": resources.num_cpus, "memory_bytes": resources.memory_bytes}
            if resources
            else {}
        ),
    }


def _variables(provenance: TrainingProvenance) -> dict[str, Any]:
    return compared(provenance.action.variables if provenance.action else {})


def _commits(provenance: TrainingProvenance) -> dict[str, str]:
    found = {"project": provenance.git, "shardline": provenance.shardline_git}
    return {
        name: f"{state.commit[:12]}{' with changes' if state.dirty else ''}"
        for name, state in found.items()
        if state and state.commit
    }


# --- metrics ------------------------------------------------------------------------------------


def _changes(old: SealedRun, new: SealedRun) -> Iterator[Change]:
    values = [one.evaluation.metrics if one.evaluation else {} for one in (old, new)]
    is_comparable = _samples(old) == _samples(new)
    is_repeat = _but_seed(old) == _but_seed(new)
    repeats = [_repeats(each) for each in (old, new)]
    headlines = [_headline(each) for each in (old, new)]
    first, mode = headlines[0] if headlines[0] == headlines[1] else ("", "")
    metrics = dict.fromkeys([*values[0], *values[1]])
    for metric in sorted(metrics, key=lambda one: one != first):  # the headline comes first
        before, after = (of.get(metric) for of in values)
        interval, basis = None, ""
        if is_repeat:
            verdict = "only the seed differs: this is noise"
        elif before is None or after is None:
            verdict = "measured for one run only"
        elif not is_comparable:
            verdict = "measured on other samples: not comparable"
        else:
            interval, basis = _noise(old, repeats, metric, before, after)
            verdict = _verdict(before, after, interval, basis)
        yield Change(
            metric=metric, old=before, new=after, interval=interval, basis=basis, verdict=verdict,
            headline=mode if metric == first else "",
        )  # fmt: skip


def _headline(recorded: SealedRun) -> tuple[str, str]:
    headline = recorded.evaluation and recorded.evaluation.headline
    return (headline.metric, headline.mode) if headline else ("", "")


def _samples(recorded: SealedRun) -> list[object]:
    """Return the facts that identify the evaluated samples of a run."""
    found = recorded.evaluation
    fold = recorded.spec.settings.get("fold")
    return [
        recorded.spec.mix,
        fold,
        *((found.task, found.split, found.num_samples) if found else ()),
    ]


def _verdict(old: float | None, new: float | None, interval: Interval | None, basis: str) -> str:
    if old == new:
        return "equal"
    if interval is None:
        return "noise unknown: train each run with several seeds"
    noise = {"seeds": "the spread over seeds", "sampling": "the choice of held-out samples"}[basis]
    if interval[0] <= 0 <= interval[1]:
        return f"may be noise: within {noise}"
    return f"more than {noise}"


def _noise(
    old: SealedRun, repeats: Sequence[Sequence[SealedRun]], metric: str, before: float, after: float
) -> tuple[Interval | None, str]:
    if interval := seed_interval(*(_values(each, metric) for each in repeats)):
        return interval, "seeds"
    evaluation = old.evaluation
    if (
        metric != "accuracy"
        or evaluation is None
        or evaluation.measured_by == "model"  # whose accuracy may count pixels
        or not evaluation.num_samples
        or not 0 <= min(before, after) <= max(before, after) <= 1
    ):
        return None, ""
    return sampling_interval(before, after, evaluation.num_samples), "sampling"


def _repeats(recorded: SealedRun) -> list[SealedRun]:
    """Return the run and the sealed runs that differ only in the seed, one for each seed."""
    own, found = _but_seed(recorded), {}
    for file in sorted(recorded.layout.folder_of("run").glob("*/identity.json")):
        evaluation = newest_evaluation(file.parent)
        if evaluation is None:
            continue
        other = SealedRun(id=file.parent.name, layout=recorded.layout, evaluation_file=evaluation)
        if _but_seed(other) == own:
            found[other.identity["settings"]["seed"]] = other
    return list(found.values())


def _values(repeats: Sequence[SealedRun], metric: str) -> list[float]:
    found = (each.evaluation.metrics.get(metric) for each in repeats if each.evaluation)
    return [value for value in found if value is not None]


def _but_seed(recorded: SealedRun) -> tuple[Any, Any]:
    return but_seed(recorded.identity, recorded.evaluation.identity if recorded.evaluation else {})
