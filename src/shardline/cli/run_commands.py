"""The commands for the runs of the config: `ls`, `best`, `report`, `why`, `preflight`."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from shardline.cli.app import (
    AsJson,
    OnProfile,
    SetResources,
    StoreOfProfile,
    app,
    resource_arguments,
    use_profile,
)
from shardline.cli.display.sweep_views import show_trials
from shardline.cli.display.terminal import say, say_json
from shardline.cli.display.upkeep_views import show_explanation, show_runs
from shardline.config.load import load_project
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.core.errors import LaunchError
from shardline.core.files import read_json
from shardline.core.package import remake
from shardline.launch.preflight.preflight_table import PreflightReport
from shardline.records.base import encode
from shardline.results.findings import count
from shardline.results.outcomes import present_report
from shardline.results.select import find_run
from shardline.results.staleness import explain
from shardline.results.states import describe_runs
from shardline.results.sweeps.describe import (
    best_trial,
    describe_trials,
    find_sweep,
    in_table,
    line_of,
    row_of_trial,
)


@app.command("ls")
def list_runs(
    context: typer.Context,
    study: Annotated[
        str, typer.Option("--study", metavar="NAME", help="List the trials of a sweep.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the runs of the config with state, headline metric and id.

    [green]done[/green]     trained and evaluated
    [cyan]trained[/cyan]  trained; the evaluation is missing or stale
    [yellow]running[/yellow]  trains now: step, rate, time left
    [red]failed[/red]   a job failed; the error and its log are listed
    [yellow]stopped[/yellow]  stopped early; the next `snakemake` resumes it
    [magenta]stale[/magenta]    its code, data or settings changed: `shardline why RUN`
    [blue]new[/blue]      never trained under this name
    """
    project = load_project(config_file=context.obj)
    if study:
        plan = find_sweep(project, study)
        trials = describe_trials(project, plan)
        say_json(trials) if as_json else show_trials(plan, trials)
        return
    records = describe_runs(project)
    if as_json:
        say_json(records)
        return
    show_runs(records)
    if report := present_report(project):
        say(f"report: {report}")


@app.command("best")
def best(
    context: typer.Context,
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Name of a sweep.")],
    as_json: AsJson = False,
) -> None:
    """Print the best trial of a sweep as a row for the run table.

    The trial is the best of those that have ended, by the validation metric of the
    sweep's objective. The first line is the header, in the order of the table.
    Paste the second line into the table: the run is trained already, and the next
    `snakemake` evaluates it on the held-out rows.
    """
    project = load_project(config_file=context.obj)
    plan = find_sweep(project, study)
    trial, ended = best_trial(project, plan)
    row, lacking = in_table(project, row_of_trial(project, plan, trial.trial))
    if as_json:
        say_json({"study": plan.name, **encode(trial), "ended": ended, "row": row})
        return
    print(line_of(row))
    print(line_of(row.values()))
    if lacking:
        say(
            f"{project.table} lacks {', '.join(lacking)}; add the columns to its header",
            is_error=True,
        )
    metric, seeds = plan.settings.objective.metric, plan.settings.seeds
    mean = f"the mean of {seeds} seeds, of which the row has the first; " if seeds > 1 else ""
    say(
        f"trial {trial.trial}: {metric} {trial.value:#.4g}, {mean}best of {ended} of {plan.trials} trials by "
        "validation",
        is_error=True,
    )


@app.command("report")
def report(context: typer.Context, as_json: AsJson = False) -> None:
    """Write the report of the results that exist now.

    Snakemake writes the report itself. Use this command while trainings run, or
    after Snakemake crashed. The report also lists runs without a result, with the
    cause.
    """
    done = subprocess.run(
        [sys.executable, "-m", "shardline.pipeline.late_report"],
        input=json.dumps({"config_file": str(context.obj)}),
        text=True,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:  # the program has printed the error
        raise typer.Exit(done.returncode)
    found = json.loads(done.stdout.splitlines()[-1])
    if as_json:
        say_json(found)
        return
    states = "".join(f", {number} {state}" for state, number in found["outcomes"].items())
    say(f"{count(found['results'], 'run')} with a result{states}")
    say(f"report: {found['report']}")


@app.command("why")
def why(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or id of a run.")],
    profile: StoreOfProfile = None,
    as_json: AsJson = False,
) -> None:
    """List what changed since a run was trained.

    Compares the run's identity document with the nearest older one: that of a
    sealed run of the same name, else the one with the fewest differences.
    """
    use_profile(context, profile)
    project = load_project(config_file=context.obj)
    explanation = explain(project, find_run(project, run))
    if as_json:
        say_json({**vars(explanation), "run": explanation.run.id})
    else:
        show_explanation(explanation)


@app.command("preflight")
def preflight(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN", help="Names or ids; default: one run per number of nodes and devices."
        ),
    ] = None,
    profile: OnProfile = "profiles/local",
    set_resources: SetResources = None,
    as_json: AsJson = False,
) -> None:
    """Check a run's ranks, devices and network paths without training.

    Starts the ranks on the profile's machines, with its launcher. Prints the
    device of each rank, and latency and bandwidth between ranks. Every training
    starts with the same check.
    """
    project = load_project(config_file=context.obj)
    runs = [find_run(project, name) for name in names or []] or _one_of_each_geometry(project)
    arguments = resource_arguments(set_resources)
    found = _preflight(runs, config=context.obj, profile=profile, arguments=arguments)
    if as_json:
        say_json({run.id: vars(report) for run, report in found})
        return
    for run, report in found:
        say(f"\n{run.name} ({run.id})\n{report.table()}")


def _one_of_each_geometry(project: Project) -> list[RunPlan]:
    """Return the first run of each number of nodes and devices, and of each accelerator."""
    first: dict[tuple[object, ...], RunPlan] = {}
    for run in project.runs.values():
        asked = run.settings
        first.setdefault((asked.nodes, asked.devices, asked.accelerator), run)
    return list(first.values())


def _preflight(
    runs: Sequence[RunPlan], *, config: Path, profile: str, arguments: Sequence[str]
) -> Iterator[tuple[RunPlan, PreflightReport]]:
    """Run the preflight checks again with Snakemake, and yield their reports.

    Args:
        config: Config file of the project.
        profile: Snakemake profile, which decides where the ranks start.
        arguments: Further arguments for Snakemake.

    Raises:
        LaunchError: A preflight check failed. Snakemake has printed the reason.
    """
    found = {run.id: run.layout.declared.preflight(run.id) for run in runs}
    is_done = remake(found.values(), config=config, profile=profile, arguments=arguments)
    for run in runs:
        if found[run.id].exists():
            document = read_json(found[run.id], remedy="run `shardline preflight` again")
            yield run, PreflightReport(**document)
    if not is_done:
        raise LaunchError(
            "the preflight check failed; the reason is printed above and recorded in logs/run_preflight/"
        )
