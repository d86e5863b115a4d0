"""Loading of scaling studies, whose runs are a run of the table on other numbers of machines and devices."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from shardline.config.load_runs import checked_settings, load_run
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.resolved import Size, Study
from shardline.config.run_table import Row, check_name
from shardline.config.settings import Plain
from shardline.config.settings.config import StudySettings
from shardline.core.errors import ConfigError
from shardline.core.suggest import suggest

_SIZE = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")


def load_scaling(
    entries: Mapping[str, StudySettings], project: Project, defaults: Plain, where: str
) -> tuple[Study, ...]:
    """Return the studies, and add their runs that are not in the table to the project.

    Args:
        entries: `scaling` of the config.
        project: Project with the runs of the table.
        defaults: Settings of all rows.
        where: File of the config, the start of messages.

    Raises:
        ConfigError: The run is unknown, a size is invalid, impossible or listed twice, or a name is
            taken; the message names the key.
    """
    of_table = project.named_runs()
    studies = []
    for name, entry in entries.items():
        place = f"{where}: scaling.{name}"
        if (run := of_table.get(entry.run)) is None:
            raise ConfigError(
                f"{place}.run={entry.run} is not a run of {project.table}; "
                f"{suggest(entry.run, of_table)}"
            )
        row = next(row for row in run.rows if row.name == entry.run)
        base = replace(run, rows=(row,))
        sizes = []
        for nodes, devices, sized in _rows(base, entry, place):
            checked = checked_settings(project, sized, defaults, base.parts)
            measured = load_run(project, sized, base.parts, *checked, base.bases)
            measured = _of_table(measured, project)
            sizes.append(Size(nodes=nodes, devices=devices, run=measured.id))
        studies.append(Study(name=name, run=row.name, mode=entry.mode, sizes=tuple(sizes)))
    return tuple(studies)


def _rows(base: RunPlan, entry: StudySettings, place: str) -> Iterator[tuple[int, int, Row]]:
    """Yield each size with its row; the caller must load each row before the next."""
    sizes = entry.sizes
    if len(sizes) < 2:
        raise ConfigError(f"{place}.sizes lists {len(sizes)} sizes; list two or more to compare")
    first = 0
    for index, size in enumerate(sizes):
        where = f"{place}.sizes[{index}]={size}"
        if not (match := _SIZE.fullmatch(size)):
            raise ConfigError(f"{where} is not nodes x devices; write it as 2x4")
        if size in sizes[:index]:
            raise ConfigError(f"{where} is listed twice; drop one")
        nodes, devices = map(int, match.groups())
        first = first or nodes * devices
        yield nodes, devices, _row(base, entry.mode, nodes, devices, first, where)


def _row(base: RunPlan, mode: str, nodes: int, devices: int, first: int, where: str) -> Row:
    """Return the base run's row with another geometry.

    Args:
        first: Number of ranks of the first size, which has the global batch of the base run.
    """
    changed, name = (
        {"nodes": nodes, "devices": devices},
        f"{base.name}_nodes={nodes}_devices={devices}",
    )
    batch = base.settings.global_batch
    # the first size was loaded, so its ranks divide the batch
    if mode == "weak" and nodes * devices != first:
        changed["global_batch"] = batch * nodes * devices // first
        name += f"_global_batch={changed['global_batch']}"
    row = replace(
        base.row, name=name, where=where, settings={**base.row.settings, **changed}, in_table=False
    )
    check_name(row)
    return row


def _of_table(run: RunPlan, project: Project) -> RunPlan:
    """Return the equal run of the table; add the run to the project if there is none."""
    if (known := project.runs.get(run.id)) and known.in_table:
        return known
    named = project.named_runs().get(run.name)
    if named and named.id != run.id:
        raise ConfigError(
            f'{run.row.where}: the name "{run.name}" is taken by {named.row.where}; rename that run'
        )
    return named or project.add_run(run)
