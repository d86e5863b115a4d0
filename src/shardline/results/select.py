"""Selection of runs and datasets by the arguments of a command."""

import re
from collections.abc import Sequence

from shardline.config.layout import Kind, names_that_have_been
from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.project import Project
from shardline.core.errors import ConfigError
from shardline.core.package import check_unlocked
from shardline.core.suggest import did_you_mean
from shardline.results.states import IDENTITY

_MAX_MEANT = 3  # names in a suggestion


def find_run(project: Project, wanted: str) -> RunPlan:
    """Return the run with a name or id.

    Raises:
        ConfigError: The config has no such run. The message suggests the nearest.
    """
    named = project.named_runs()
    if run := named.get(wanted) or project.runs.get(wanted):
        return run
    for plan in project.sweeps.values():
        is_trial = re.fullmatch(re.escape(plan.name) + r"-\d+(\.\d+)?(-[es]\d+)?", wanted)
        if wanted in (plan.name, plan.id) or is_trial:
            what = "a trial of the sweep" if is_trial else "the sweep"
            raise ConfigError(
                f'the config names no run "{wanted}", which is {what} {plan.name}; `shardline ls --study {plan.name}` '
                f"lists its trials, and `shardline best {plan.name}` prints the best one as a row of the run table"
            )
    raise _unknown("run", wanted, [*named, *project.runs])


def find_dataset(project: Project, wanted: str) -> DatasetPlan:
    """Return the dataset with a name or id.

    Raises:
        ConfigError: No run of the config uses such a dataset. The message suggests the nearest.
    """
    named = {name: one for one in project.datasets.values() for name in one.names}
    if found := named.get(wanted) or project.datasets.get(wanted):
        return found
    raise _unknown("dataset that a run uses", wanted, [*named, *project.datasets])


def _unknown(kind: str, wanted: str, known: Sequence[str]) -> ConfigError:
    lower = wanted.lower()
    begun = [name for name in known if lower and name.lower().startswith(lower)]
    meant = begun or [name for name in known if lower and lower in name.lower()]
    offered = " or ".join(f'"{name}"' for name in meant[:_MAX_MEANT])
    nearest = did_you_mean(wanted, known, otherwise="`shardline ls` lists them", cutoff=0.4)
    remedy = f"did you mean {offered}?" if offered else nearest
    return ConfigError(f'the config names no {kind} "{wanted}"; {remedy}')


def ids_of_runs(project: Project, names: Sequence[str]) -> list[str]:
    """Return the ids of runs in the config, or of earlier runs with results or checkpoints.

    Raises:
        ConfigError: A name is unknown. The message suggests the nearest.
    """
    named, layout = project.named_runs(), project.layout
    known = {
        **{name: run.id for name, run in named.items()},
        **{run.id: run.id for run in named.values()},
    }
    found = []
    for name in names:
        is_id = bool(IDENTITY.fullmatch(name))
        is_earlier = is_id and (
            layout.run(name).exists() or name in names_that_have_been(layout, "run")
        )
        if name not in known and not is_earlier:
            raise _unknown("run", name, list(known))
        found.append(known.get(name, name))
    return list(dict.fromkeys(found))


def find_targets(project: Project, names: Sequence[str]) -> list[tuple[Kind, str]]:
    """Return kind and id of runs, datasets and sweeps, datasets first.

    Args:
        names: Names, ids or earlier ids; none selects everything of the config that exists.

    Raises:
        ConfigError: A name is unknown. The message suggests the nearest.
    """
    known: list[tuple[Kind, str, str]] = [
        ("dataset", name, item.id) for item in project.datasets.values() for name in item.names
    ]
    known += [("run", name, run.id) for name, run in project.named_runs().items()]
    known += [("study", one.name, one.id) for one in project.sweeps.values()]
    if not names:
        report: tuple[Kind, str, str] = ("report", "", project.report.parent.name)
        every = dict.fromkeys((kind, item) for kind, _, item in [*known, report])
        return [(kind, item) for kind, item in every if project.layout.exists(kind, item)]
    found: list[tuple[Kind, str]] = []
    kinds: tuple[Kind, ...] = ("dataset", "run", "study")
    for name in names:
        meant = [(kind, item) for kind, word, item in known if name in (word, item)]
        meant = meant or [(kind, name) for kind in kinds if project.layout.exists(kind, name)]
        if not meant:
            kinds_meant = "run, dataset or sweep" if project.sweeps else "run or dataset"
            raise _unknown(kinds_meant, name, [word for _, word, _ in known])
        found += meant
    return sorted(dict.fromkeys(found), key=lambda target: target[0])


def datasets_to_repair(project: Project, names: Sequence[str]) -> list[tuple[Kind, str]]:
    """Return kind and id of datasets, as `find_targets` does.

    Raises:
        ConfigError: No name is given, or a name is unknown or that of a run.
        ShardlineError: Snakemake runs in the project.
    """
    if not names:
        raise ConfigError("verify --repair names no dataset, expected one; add a dataset's name")
    check_unlocked(project.workdir)
    targets = {name: find_targets(project, [name]) for name in names}
    for name, found in targets.items():
        if all(kind == "run" for kind, _ in found):
            raise ConfigError(
                f'verify --repair names the run "{name}", expected a dataset; '
                f"delete {project.layout.run(found[0][1])} and run the pipeline again"
            )
    every = (target for found in targets.values() for target in found)
    return [(kind, item) for kind, item in dict.fromkeys(every) if kind == "dataset"]
