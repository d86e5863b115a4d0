"""Sweeps of the config: base run, space, identity, and what each trial waits for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from msgspec import UNSET, to_builtins

from shardline.config.bases import Study
from shardline.config.layout import ResultsLayout
from shardline.config.plans import RunPlan
from shardline.config.rungs import AnySlot, Brackets, Slot
from shardline.config.settings.sweep_settings import MedianSettings, SweepSettings
from shardline.config.spaces import Space, kind_of, problems_of_space
from shardline.config.stops import (
    halving_of,
    median_of,
    problems_of_stop,
    problems_with_base,
    rungs_of,
)
from shardline.core.canonical import digest, short_digest
from shardline.core.errors import ConfigError
from shardline.core.metric_names import split_of
from shardline.core.suggest import suggest
from shardline.records.identities import IdentityDocument

# Distributions whose versions decide the proposals of each sampler.
SAMPLERS: dict[str, tuple[str, ...]] = {
    "grid": (),
    "random": ("optuna", "numpy"),
    "sobol": ("numpy", "scipy"),
    "tpe": ("optuna", "numpy", "scipy"),
    "cmaes": ("cmaes", "numpy"),
    "gp": ("optuna", "numpy", "scipy", "torch"),
}
_OWN = ("optuna", "numpy", "scipy")
_MOST = 100_000
VERSION = 1  # of what Shardline itself decides about proposals


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """A sweep of the config.

    Attributes:
        name: Name in the config.
        base: Key of the base run in the project.
        settings: Entry of the config.
        document: All that decides the proposals except results and numbers of trials.
        trials: Number of trials.
        ended: Number of trials and promotions with a result, for a report on an unfinished study; None for all.
    """

    name: str
    base: str
    settings: SweepSettings
    document: dict[str, Any]
    trials: int
    ended: int | None = None

    @cached_property
    def id(self) -> str:
        """Digest of the document; names the folder."""
        return short_digest(self.document)

    @cached_property
    def space(self) -> Space:
        """The settings that vary."""
        return Space(self.settings.space)

    def parallel(self, trial: int) -> int:
        """Return how many trials may train at the same time when a trial is proposed."""
        return max(self.schedule.items(), key=lambda item: (item[0] <= trial, item[0]))[1]

    @cached_property
    def schedule(self) -> dict[int, int]:
        """Number of parallel trials, by the first trial that it applies to."""
        given = self.settings.parallel
        return {0: given} if isinstance(given, int) else {int(key): n for key, n in given.items()}

    @property
    def at_once(self) -> int:
        """Return how many trainings may run at the same time at most."""
        return min(max(self.schedule.values()), self.trials) * self.settings.seeds

    @cached_property
    def halving(self) -> Brackets | None:
        """Promotions of `stop.halving`; None without it."""
        return halving_of(self.settings)

    @cached_property
    def median(self) -> MedianSettings | None:
        """The rule of `stop.median`; None without it."""
        return median_of(self.settings)

    @cached_property
    def rungs(self) -> list[int]:
        """Epochs of each rung; empty if every trial trains to its end."""
        return rungs_of(self.settings)

    @cached_property
    def slots(self) -> list[AnySlot]:
        """All trials and promotions."""
        return [
            *range(self.trials),
            *(self.halving.slots(self.trials) if self.halving else ()),
        ]

    @cached_property
    def _news(self) -> list[list[AnySlot]]:
        assert self.halving
        return self.halving.news(self.trials, self.parallel)

    def needs(self, slot: AnySlot) -> tuple[AnySlot | None, list[AnySlot]]:
        """Return the slot whose proposal a proposal continues, and the slots whose results it is the first to know."""
        if isinstance(slot, Slot):
            assert self.halving
            return self.halving.needs(slot)
        before = slot - 1 if slot else None
        if self.halving:
            return before, self._news[slot]
        return before, [*range(self.visible(slot - 1), self.visible(slot))]

    @cached_property
    def _visible(self) -> list[int]:
        if self.halving:
            counts = [sum(isinstance(one, int) for one in new) for new in self._news]
            return [*accumulate(counts)]
        found, most = [], 0
        for trial in range(self.trials):
            most = max(most, trial - self.parallel(trial) + 1)
            found.append(most)
        return found

    def visible(self, trial: int) -> int:
        """Return how many trials, counted from the first, have results when a trial is proposed."""
        return self._visible[trial] if trial >= 0 else 0

    def proposal(self, layout: ResultsLayout, slot: AnySlot) -> Any:
        """Return the path of a proposal."""
        return layout.study(self.id) / str(slot) / "proposal.json"

    def results(self, layout: ResultsLayout, slot: AnySlot) -> list[Any]:
        """Return the paths of the results of a trial or promotion, one for each training."""
        folder = layout.study(self.id) / str(slot)
        return [folder / f"result-{repeat}.json" for repeat in range(self.settings.seeds)]

    def until_now(self, layout: ResultsLayout) -> "SweepPlan":
        """Return the sweep with the number of trials that have a result, for the identity of a report."""
        if self.summary(layout).exists():
            return self
        number = sum(
            all(path.exists() for path in self.results(layout, slot)) for slot in self.slots
        )
        return replace(self, ended=number)

    def summary(self, layout: ResultsLayout) -> Any:
        """Return the path of the finished study."""
        return layout.study(self.id) / f"study-{self.trials}.json"


def study_of(
    name: str,
    entries: Mapping[str, SweepSettings],
    base: IdentityDocument,
    project: Any,
    where: str,
) -> Study:
    """Return the study of a sweep, as a row that combines its trials depends on it.

    Args:
        name: Key of `sweeps`.
        base: Identity document of its base run.
        project: Project with layout, code and lock.
        where: File of the config, the start of messages.

    Raises:
        ConfigError: The sweep is invalid; the message lists its problems.
    """
    place = f"{where}: sweeps.{name}"
    _check(entries[name], place)
    plan = _plan_of(name, entries[name], base, "", project, place)
    path = plan.summary(project.layout)
    return Study(identity=digest(plan.document), trials=plan.trials, path=path)


def load_sweeps(
    entries: Mapping[str, SweepSettings], project: Any, where: str
) -> dict[str, SweepPlan]:
    """Return the sweeps of a config by id.

    Args:
        project: Project with the runs of the table.
        where: File of the config, the start of messages.

    Raises:
        ConfigError: A sweep is invalid; the message lists its problems.
    """
    found: dict[str, SweepPlan] = {}
    for name, entry in entries.items():
        place = f"{where}: sweeps.{name}"
        _check(entry, place)
        plan = _plan(name, entry, project, place)
        if plan.id in found:
            raise ConfigError(
                f"{place} and sweeps.{found[plan.id].name} are the same search; drop one, or change its seed"
            )
        found[plan.id] = plan
    return found


def _plan(name: str, entry: SweepSettings, project: Any, place: str) -> SweepPlan:
    table = {known: key for key, run in project.runs.items() for known in run.names}
    if entry.base not in table:
        raise ConfigError(
            f"{place}.base={entry.base} is not a run of {project.table}; {suggest(entry.base, table)}"
        )
    base: RunPlan = project.runs[table[entry.base]]
    if problems := [f"{place}{one}" for one in problems_with_base(entry, base, project)]:
        raise ConfigError("\n".join(problems))
    return _plan_of(name, entry, base.document, table[entry.base], project, place)


def _check(entry: SweepSettings, place: str) -> None:
    if problems := [f"{place}{one}" for one in _problems(entry)]:
        raise ConfigError("\n".join(problems))


def _plan_of(
    name: str, entry: SweepSettings, base: IdentityDocument, key: str, project: Any, place: str
) -> SweepPlan:
    """Return the plan of a sweep.

    Args:
        base: Identity document of the base run.
        key: Key of the base run in the project.
    """
    try:
        space = Space(entry.space)
    except ConfigError as error:
        raise ConfigError(f"{place}.space{error}") from None
    trials = entry.trials
    if entry.sampler == "grid":
        points = sum(1 for _ in space.grid())
        trials = points if trials is UNSET else min(trials, points)
    assert isinstance(trials, int)  # `_problems` rejects a missing number
    document = {
        "stage": "sweep",
        "base": base,
        "settings": _counted(entry),
        "code": _code(entry, project, place),
        "versions": {
            "sweep": VERSION,
            **{package: _version(package, project, place) for package in _packages(entry.sampler)},
        },
    }
    return SweepPlan(name=name, base=key, settings=entry, document=document, trials=trials)


def _counted(entry: SweepSettings) -> dict[str, Any]:
    """Return the settings that decide what is proposed; a later number of parallel trials extends a study."""
    plain: dict[str, Any] = to_builtins(entry)
    first = entry.parallel if isinstance(entry.parallel, int) else entry.parallel["0"]
    space = to_builtins(Space(entry.space).dimensions)
    kept = {key: plain[key] for key in ("sampler", "seeds", "seed", "objective")}
    stop = {"stop": {k: one for k, one in plain["stop"].items() if one}} if plain["stop"] else {}
    return {**kept, **stop, "space": space, "parallel": first}


def _code(entry: SweepSettings, project: Any, place: str) -> dict[str, Any]:
    """Return the definitions in the user's code that proposals depend on."""
    from shardline.config.code_paths import resolve_class

    paths = {"sampler": entry.sampler} if ":" in entry.sampler else {}
    if entry.constraints is not UNSET:
        paths["constraints"] = str(entry.constraints)
    for key, path in paths.items():
        resolve_class(path, {}, project.code, f"{place}.{key}")
    return {"paths": paths, **project.documents.definitions(paths)} if paths else {}


def _packages(sampler: str) -> tuple[str, ...]:
    return SAMPLERS.get(sampler, _OWN)


def _version(package: str, project: Any, place: str) -> str:
    """Return the version that the lock pins, or else the installed version."""
    from importlib.metadata import PackageNotFoundError, version

    if pinned := project.lock.versions.get(package):
        return str(pinned)
    try:
        return version(package)
    except PackageNotFoundError:
        raise ConfigError(
            f"{place}.sampler needs the package {package}, which is neither in the lock nor installed; run "
            "`pip install 'shardline[sweeps]'`, or set sampler: grid"
        ) from None


def _problems(entry: SweepSettings) -> Iterator[str]:
    sampler, space = entry.sampler, entry.space
    of_space = [*problems_of_space(space)]
    yield from (f".space{problem}" for problem in of_space)
    if sampler not in SAMPLERS and ":" not in sampler:
        yield f".sampler={sampler} is no sampler, and no import path; {suggest(sampler, SAMPLERS)}"
    if entry.trials is UNSET and sampler != "grid":
        yield f".trials is missing; set the number of trials, which only sampler: grid can count ({sampler} cannot)"
    elif entry.trials is not UNSET and entry.trials > _MOST:
        yield f".trials={entry.trials}, expected at most {_MOST}; lower it"
    yield from _problems_of_parallel(entry.parallel)
    yield from problems_of_stop(entry)
    if split_of(entry.objective.metric) != "val":
        yield (
            f".objective.metric={entry.objective.metric} is not named as a metric of the validation split, which alone "
            "may choose; name one such as val_loss, or log it under such a name"
        )
    if of_space:
        return
    ranges = [key for key, one in _kinds(space) if one != "choices"]
    if sampler == "grid" and ranges:
        yield f".space.{ranges[0]} is a range, of which a grid has no points; list values, or set another sampler"
    choices = [key for key, one in _kinds(space) if one == "choices"]
    if sampler == "cmaes" and (choices or any(getattr(one, "when", {}) for one in space.values())):
        key = choices[0] if choices else "when"
        yield f".space.{key}: cmaes varies only ranges without conditions; write a range, or set sampler: tpe"


def _kinds(space: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the kind of values of each setting of a space."""
    return [
        (key, "choices" if isinstance(one, list) else kind_of(one)) for key, one in space.items()
    ]


def _problems_of_parallel(given: int | Mapping[str, int]) -> Iterator[str]:
    if isinstance(given, int):
        return
    for key in given:
        if not (key.isascii() and key.isdecimal()):
            yield f".parallel.{key} is not the number of a trial; write it as {{0: 8, 60: 16}}"
    if "0" not in given:
        yield ".parallel lists no number for trial 0; write it as {0: 8, 60: 16}"
