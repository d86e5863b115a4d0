"""Scaling studies: one run of the table, trained at several sizes."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from shardline.config.project import Run
from shardline.config.runs import Row, check_name
from shardline.config.schema import suggest
from shardline.errors import ConfigError
from shardline.studies import Size, Study

_SIZE = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")


def load_scaling(
    entries: Mapping[str, Any], runs: Mapping[str, Run], load: Callable[[Row, Run], Run],
    where: str,
) -> tuple[tuple[Study, ...], dict[str, Run]]:  # fmt: skip
    """Return the studies, and by id the runs that they need beside those of the table.

    Args:
        entries: `scaling` of the config.
        runs: of the table, by id.
        load: gives the run of a row that changes settings of another run's.
        where: the config's file, as messages begin.

    Raises:
        ConfigError: there is no such run, a size is malformed, stands twice or is
            impossible, or a name is taken; the message names the key.
    """
    by_name = {run.name: run for run in runs.values()}
    derived: dict[str, Run] = {}
    studies = []
    for name, entry in entries.items():
        place = f"{where}: scaling.{name}"
        if (base := by_name.get(entry["run"])) is None:
            raise ConfigError(
                f"{place}.run={entry['run']} is not a run of {_table(runs)}; "
                f"{suggest(entry['run'], by_name)}"
            )
        sizes = []
        for nodes, devices, row in _rows(base, entry, place):
            run = _of_table(load(row, base), base, runs)
            if not run.row.in_table:
                _check_free(run, {**by_name, **derived})
                derived[run.name] = run
            sizes.append(Size(nodes=nodes, devices=devices, run=run.id))
        studies.append(Study(name=name, run=base.name, mode=entry["mode"], sizes=tuple(sizes)))
    return tuple(studies), {run.id: run for run in derived.values()}


def _rows(base: Run, entry: Mapping[str, Any], place: str) -> Iterator[tuple[int, int, Row]]:
    """Yield each size with its row; the first is to be loaded before the second is asked for."""
    sizes = entry["sizes"]
    if len(sizes) < 2:
        raise ConfigError(f"{place}.sizes lists {len(sizes)} sizes; list two or more to compare")
    first = 0
    for index, size in enumerate(sizes):
        where = f"{place}.sizes[{index}]={size}"
        if not (match := _SIZE.fullmatch(size)):
            raise ConfigError(f"{where} is not nodes x devices; write it as 2x4")
        if size in sizes[:index]:
            raise ConfigError(f"{where} stands twice; drop one")
        nodes, devices = map(int, match.groups())
        first = first or nodes * devices
        yield nodes, devices, _row(base, entry["mode"], nodes, devices, first, where)


def _row(base: Run, mode: str, nodes: int, devices: int, first: int, where: str) -> Row:
    """Return the base run's row with another geometry.

    Args:
        first: ranks of the study's first size, whose global batch is the base run's.
    """
    changed, name = (
        {"nodes": nodes, "devices": devices},
        f"{base.name}_nodes={nodes}_devices={devices}",
    )
    batch = base.settings["global_batch"]
    # the first size was loaded, so its ranks divide the batch
    if mode == "weak" and nodes * devices != first:
        changed["global_batch"] = batch * nodes * devices // first
        name += f"_global_batch={changed['global_batch']}"
    row = replace(
        base.row, name=name, where=where, settings={**base.row.settings, **changed}, in_table=False
    )
    check_name(row)
    return row


def _of_table(run: Run, base: Run, runs: Mapping[str, Run]) -> Run:
    """Return the table's run that is the same training, if there is one."""
    return next((known for known in (base, *runs.values()) if known.digest == run.digest), run)


def _check_free(run: Run, known: Mapping[str, Run]) -> None:
    other = known.get(run.name)
    if other and other.digest != run.digest:
        raise ConfigError(
            f'{run.row.where}: the name "{run.name}" is taken by {other.row.where}; rename that run'
        )


def _table(runs: Mapping[str, Run]) -> str:
    return next(iter(runs.values())).row.where.partition(" row ")[0]
