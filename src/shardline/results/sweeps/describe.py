"""Trials of a study for `shardline ls --study`, and the best of them as a row of the run table."""

import csv
import io
import json
from collections.abc import Container, Iterable, Mapping
from typing import Any

from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.run_table import FIXED_COLUMNS, literal_of, read_header
from shardline.config.sweeps import SweepPlan
from shardline.core.errors import ConfigError, DataError
from shardline.core.suggest import suggest
from shardline.records.base import encode
from shardline.records.sweeps import Trial
from shardline.results.sweeps.stopping import beaten_trials
from shardline.results.sweeps.trials import (
    best_of,
    read_proposal,
    read_trials,
    run_of_trial,
)


def find_sweep(project: Project, name: str) -> SweepPlan:
    """Return the sweep with a name or id.

    Raises:
        ConfigError: The config has no such sweep. The message suggests the nearest.
    """
    named = {one.name: one for one in project.sweeps.values()} | project.sweeps
    if name in named:
        return named[name]
    names = [one.name for one in project.sweeps.values()]
    hint = suggest(name, names) if names else "add one under `sweeps`"
    raise ConfigError(f'the config names no sweep "{name}"; {hint}')


def describe_trials(project: Project, plan: SweepPlan) -> list[dict[str, Any]]:
    """Return one record per trial: its state is `done`, `failed`, `excluded`, `proposed` or `new`.

    With rungs, a trial may also be `stopped`, or `waiting` for a promotion.
    """
    ended = {one.trial: one for one in read_trials(plan, project.layout)}
    best = best_of([*ended.values()], plan.settings.objective.mode)
    beaten = beaten_trials(plan, project.layout)
    return [
        {
            "study": plan.name,
            **encode(one),
            "epochs": plan.rungs[one.rung]
            if plan.unit == "epoch" and plan.rungs and one.values
            else None,
            "state": state,
            "best": best is not None and one.trial == best.trial,
        }
        for one, state in (
            _one(plan, project, number, ended, beaten) for number in range(plan.trials)
        )
    ]


def _one(
    plan: SweepPlan,
    project: Project,
    number: int,
    ended: Mapping[int, Trial],
    beaten: Container[int],
) -> tuple[Trial, str]:
    if found := ended.get(number):
        if not found.failure and found.rung < len(plan.rungs) - 1:
            return found, "stopped" if plan.median or number in beaten else "waiting"
        if not found.failure:
            return found, "done"
        return found, "failed" if found.runs else "excluded"
    path = plan.proposal(project.layout, number)
    if not path.exists():
        return Trial(trial=number, settings={}, row=[]), "new"
    proposal = read_proposal(path)
    return (
        Trial(trial=number, settings=proposal.settings, row=proposal.row, runs=proposal.runs),
        "proposed",
    )


def best_trial(project: Project, plan: SweepPlan) -> tuple[Trial, int]:
    """Return the best trial so far, and how many trials have ended.

    Raises:
        DataError: No trial has a value.
    """
    trials = read_trials(plan, project.layout)
    best = best_of(trials, plan.settings.objective.mode)
    if best is None:
        state = f"{len(trials)} failed" if trials else "none has ended"
        raise DataError(
            f"no trial of {plan.name} has a value ({state}); run `snakemake`, and `shardline ls --study {plan.name}`"
        )
    return best, len(trials)


def row_of_trial(project: Project, plan: SweepPlan, trial: int) -> dict[str, str]:
    """Return the cells of a run table's row, by column, that give the run of a trial's first training.

    With rungs, it is the longest run of the trial that is trained.
    """
    proposal = read_proposal(plan.proposal(project.layout, trial))
    rungs = range(len(plan.rungs) - 1, -1, -1) if plan.rungs else (None,)
    runs = [run_of_trial(project, plan, proposal, 0, rung) for rung in rungs]
    trained = (run for run in runs if run.has_model)
    run: RunPlan = next(trained, runs[0])
    row = run.row
    dataset = row.dataset if isinstance(row.dataset, str) else json.dumps(row.dataset)
    fixed = dict(zip(FIXED_COLUMNS, (f"{plan.name}-best", dataset, row.model), strict=True))
    return {**fixed, **{key: cell_of(value) for key, value in row.settings.items()}}


def in_table(project: Project, row: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the cells of a row in the order of the run table's columns, and the columns that the table lacks."""
    path = project.workdir / project.table
    header = read_header(path) if path.suffix == ".tsv" else []
    lacking = [column for column in row if column not in header] if header else []
    return {column: row.get(column, "") for column in (*header, *lacking)} or {**row}, lacking


def line_of(cells: Iterable[str]) -> str:
    """Return a line of the run table."""
    line = io.StringIO()
    csv.writer(line, delimiter="\t", lineterminator="").writerow(cells)
    return line.getvalue()


def cell_of(value: Any) -> str:
    """Return a setting's value as a cell of the run table, which is read as the same value."""
    if isinstance(value, list | dict):  # a list of values would be a grid
        return json.dumps([value], ensure_ascii=False)
    if isinstance(value, str) and literal_of(value) == value and value and value[0] not in "[{\"'#":
        return value
    return json.dumps(value, ensure_ascii=False)
