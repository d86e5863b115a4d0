"""Loading of the sweeps of a config: base run, space, and all that decides the proposals."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, to_builtins

from shardline.config.bases import Study
from shardline.config.code_paths import resolve_class
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.settings.sweep_settings import SweepSettings
from shardline.config.spaces import Space, kind_of, problems_of_space
from shardline.config.stops import problems_of_stop, problems_with_base
from shardline.config.sweeps import SweepPlan
from shardline.core.canonical import digest
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


def study_of(
    name: str,
    entries: Mapping[str, SweepSettings],
    base: IdentityDocument,
    project: Project,
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
    entries: Mapping[str, SweepSettings], project: Project, where: str
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


def _plan(name: str, entry: SweepSettings, project: Project, place: str) -> SweepPlan:
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
    name: str, entry: SweepSettings, base: IdentityDocument, key: str, project: Project, place: str
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


def _code(entry: SweepSettings, project: Project, place: str) -> dict[str, Any]:
    """Return the definitions in the user's code that proposals depend on."""
    paths = {"sampler": entry.sampler} if ":" in entry.sampler else {}
    if entry.constraints is not UNSET:
        paths["constraints"] = str(entry.constraints)
    for key, path in paths.items():
        resolve_class(path, {}, project.code, f"{place}.{key}")
    return {"paths": paths, **project.documents.definitions(paths)} if paths else {}


def _packages(sampler: str) -> tuple[str, ...]:
    return SAMPLERS.get(sampler, _OWN)


def _version(package: str, project: Project, place: str) -> str:
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
