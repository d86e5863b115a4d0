"""The command that looks for mistakes before anything is built: `check`."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from shardline.cli.app import AsJson, app
from shardline.cli.display.terminal import say, say_json, waiting_for
from shardline.config.load import load_project
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.user_files import read_config
from shardline.core.errors import ConfigError, ShardlineError
from shardline.core.nested import merge
from shardline.results.check.all import check_runs
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
        typer.Argument(metavar="RUN", help="Names or ids; left out, all runs of the config."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for mistakes of config, profile, models, data and machine, before anything is built.

    Each distinct model does one training step on two rows of its source, on the CPU;
    models that were found well before are known by their code. All mistakes are
    listed at once. Exit code 2 if there is any. `snakemake` begins with the same check.
    """
    findings = list(_of_profile(context))
    runs: dict[str, RunPlan] = {}
    try:
        project = load_project(_config(context))
        runs = _chosen(project, names or [])
    except ShardlineError as error:
        findings += [Finding(kind="error", sentence=line) for line in str(error).splitlines()]
    else:
        with waiting_for("checking models"):
            findings += check_runs(project, runs, os.environ)
    _show(findings, len(runs), as_json=as_json)
    if errors_of(findings):
        raise typer.Exit(ConfigError.exit_code)


def _chosen(project: Project, names: list[str]) -> dict[str, RunPlan]:
    if not names:
        return project.runs
    keys = {id(run): key for key, run in project.runs.items()}
    return {keys[id(run)]: run for run in (find_run(project, name) for name in names)}


def _profile_file(context: typer.Context) -> Path | None:
    name = context.parent and context.parent.params.get("profile")
    if not name:
        return None
    from snakemake.cli import get_profile_dir

    found = get_profile_dir(str(name))  # that it is there, the group has checked
    return Path(found[1]) if found else None


def _of_profile(context: typer.Context) -> Iterator[Finding]:
    if file := _profile_file(context):
        for sentence in problems_of_profile(read_profile(file), file, *snakemake_options()):
            yield Finding(kind="error", sentence=sentence)


def _config(context: typer.Context) -> dict[str, Any]:
    """Return the config, with what the profile sets of it."""
    config = read_config(Path.cwd() / context.obj)
    if file := _profile_file(context):
        config = merge(config, read_profile(file).get("config") or {})
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
