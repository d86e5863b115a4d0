"""Loading of the sweeps of a config: base run, space, and all that decides the proposals."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, to_builtins

from shardline.config.bases import Study
from shardline.config.code_paths import resolve_class
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.settings.sweep_settings import SweepSettings
from shardline.config.spaces import Space
from shardline.config.stops import problems_with_base
from shardline.config.sweep_checks import SAMPLERS, problems_of_sweep, problems_of_trials
from shardline.config.sweep_values import Variant, problems_of_base, problems_of_values
from shardline.config.sweeps import SweepPlan
from shardline.core.canonical import digest
from shardline.core.errors import ConfigError
from shardline.core.suggest import suggest
from shardline.records.identities import IdentityDocument

_OWN = ("optuna", "numpy", "scipy")
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
    entries: Mapping[str, SweepSettings], project: Project, where: str, variant: Variant
) -> dict[str, SweepPlan]:
    """Return the sweeps of a config by id.

    Args:
        project: Project with the runs of the table.
        where: File of the config, the start of messages.
        variant: Function that returns the run of some settings, see `config.load.load_variant`.

    Raises:
        ConfigError: A sweep is invalid; the message lists its problems.
    """
    found: dict[str, SweepPlan] = {}
    for name, entry in entries.items():
        place = f"{where}: sweeps.{name}"
        _check(entry, place)
        plan = _plan(name, entry, project, place)
        if problems := [f"{place}{one}" for one in problems_of_values(project, plan, variant)]:
            raise ConfigError("\n".join(problems))
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
    problems = [*problems_with_base(entry, base, project), *problems_of_base(entry, base, project)]
    if problems := [f"{place}{one}" for one in problems]:
        raise ConfigError("\n".join(problems))
    return _plan_of(name, entry, base.document, table[entry.base], project, place)


def _check(entry: SweepSettings, place: str) -> None:
    if problems := [f"{place}{one}" for one in problems_of_sweep(entry)]:
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
        points = space.num_points
        trials = points if trials is UNSET else min(trials, points)
    assert isinstance(trials, int)  # `problems_of_sweep` rejects a missing number
    if problems := [f"{place}{one}" for one in problems_of_trials(entry, trials)]:
        raise ConfigError("\n".join(problems))
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
