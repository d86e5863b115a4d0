"""The command `check`, which finds mistakes before anything is built."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from shardline.cli.app import AsJson, StoreOfProfile, app, use_profile
from shardline.cli.display.terminal import say, say_json, waiting_for
from shardline.config.load import load_project
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.user_files import read_config
from shardline.core.errors import ConfigError, ShardlineError
from shardline.core.nested import merge
from shardline.results.check.all import check_runs
from shardline.results.check.checked_sweeps import check_sweeps, check_trials
from shardline.results.check.found import Finding, errors_of
from shardline.results.check.profiles import problems_of_profile, read_profile, snakemake_options
from shardline.results.findings import count
from shardline.results.select import find_run

_STYLES = {"error": "bold red", "warning": "yellow", "not checked": "dim", "read": "dim"}


@app.command("check")
def check(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="Names or ids; default: all runs of the config."),
    ] = None,
    profile: StoreOfProfile = None,
    as_json: AsJson = False,
) -> None:
    """Find mistakes in config, profile, models, data and machine before anything is built.

    Trains each distinct model for one step on two rows of its source, on the CPU.
    Models that passed before with the same code are skipped. Lists the mistakes
    that it finds; a mistake may hide others. Exits with code 2 if there are any.

    `snakemake` starts with the same check.
    """
    file = _profile_file(use_profile(context, profile))
    findings = show_check(context.obj, file, names or [], as_json=as_json)
    if errors_of(findings):
        raise typer.Exit(ConfigError.exit_code)


def show_check(
    config_file: Path, profile: Path | None, names: list[str], *, as_json: bool = False
) -> list[Finding]:
    """Check runs of the project in this process's folder, show the findings, and return them.

    Args:
        profile: File of a profile to check too.
        names: Names or ids of runs; none for all.
    """
    findings = list(_of_profile(profile))
    runs: dict[str, RunPlan] = {}
    try:
        project = load_project(_config(config_file, profile))
        runs = _chosen(project, names)
    except ShardlineError as error:
        findings += [Finding(kind="error", sentence=line) for line in str(error).splitlines()]
    else:
        with waiting_for("checking models"):
            findings += check_runs(project, runs, os.environ)
            sweeps = [plan for plan in project.sweeps.values() if plan.base in runs]
            findings += check_trials(project, sweeps)
            findings += check_sweeps(project, sweeps)
    _show(findings, len(runs), as_json=as_json)
    return findings


def _chosen(project: Project, names: list[str]) -> dict[str, RunPlan]:
    if not names:
        return project.runs
    keys = {id(run): key for key, run in project.runs.items()}
    return {keys[id(run)]: run for run in (find_run(project, name) for name in names)}


def _profile_file(name: str | None) -> Path | None:
    if not name:
        return None
    from snakemake.cli import get_profile_dir

    found = get_profile_dir(name)  # `use_profile` has checked that it exists
    return Path(found[1]) if found else None


def _of_profile(file: Path | None) -> Iterator[Finding]:
    if file:
        for sentence in problems_of_profile(read_profile(file), file, *snakemake_options()):
            yield Finding(kind="error", sentence=sentence)


def _config(config_file: Path, profile: Path | None) -> dict[str, Any]:
    """Return the config, with the values that the profile sets under `config`."""
    config = read_config(Path.cwd() / config_file)
    if profile:
        config = merge(config, read_profile(profile).get("config") or {})
    return config


def _show(findings: list[Finding], runs: int, *, as_json: bool) -> None:
    if as_json:
        say_json([vars(one) for one in findings])
        return
    for one in findings:
        head = "" if one.kind == "read" else f"{one.kind}: "
        say(f"{head}{one.text}", style=_STYLES[one.kind])
    errors = len(errors_of(findings))
    print_to = sys.stdout
    say(f"{count(runs, 'run')} checked, {count(errors, 'error') if errors else 'no error'}")
    print_to.flush()
