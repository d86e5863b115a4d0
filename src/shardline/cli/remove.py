"""The commands `rm` and `rerun`, which delete a run or train it again."""

from typing import Annotated

import typer

from shardline.cli.app import AsJson, OnProfile, SetResources, Yes, app, ask, resource_arguments
from shardline.cli.display.terminal import say, say_json
from shardline.cli.display.upkeep_views import say_freed, show_garbage, show_rerun
from shardline.config.load import load_project
from shardline.core.errors import ConfigError, DataError
from shardline.core.package import check_unlocked
from shardline.results.dependents import tell_dependents
from shardline.results.removal import find_runs, kept_by_others, remove_runs
from shardline.results.rerun import rerun
from shardline.results.select import find_run, ids_of_runs


@app.command("rm")
def remove(
    context: typer.Context,
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names or ids.")],
    wants_deletion: Annotated[
        bool, typer.Option("--delete", metavar="", help="Delete the listed files.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """List, or delete, all files of a run: results, training checkpoints, links.

    If the config still names the run, the next `snakemake` trains it from the
    first step. Datasets stay, and so do files that another result has accepted.
    """
    project = load_project(config_file=context.obj)
    ids = ids_of_runs(project, runs)
    items, dependents = find_runs(project, ids), tell_dependents(project, ids)
    if not items:
        raise ConfigError(f"{', '.join(runs)} has no files; `shardline ls` lists the runs")
    if not as_json:
        show_garbage(items, [], "" if wants_deletion else "; `shardline rm --delete` deletes them")
        for title in kept_by_others(project, ids):
            say(f"{title} has accepted one of these runs; the accepted files stay")
        for sentence in dependents:
            say(sentence)
    if wants_deletion:
        if not yes:
            ask("Delete them?", "rm --delete", "deletes", quiet=as_json)
        freed = sum(item.bytes for item in remove_runs(project, ids, items))
        if not as_json:
            say_freed(freed)
    if as_json:
        num_bytes = sum(item.bytes for item in items)
        document = {"deleted": wants_deletion, "bytes": num_bytes, "items": items}
        say_json({**document, "dependents": dependents})


@app.command("rerun")
def rerun_run(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or id of a run in the config.")],
    profile: OnProfile = "profiles/local",
    set_resources: SetResources = None,
    as_json: AsJson = False,
) -> None:
    """Train a sealed run again, and compare weights and metrics with its result.

    Writes the rerun to results/reruns/ID/N; the result stays as it is.
    Exits with code 3 if any bit of the weights differs.
    """
    project = load_project(config_file=context.obj)
    asked = find_run(project, run)
    check_unlocked(project.workdir)
    found = rerun(
        asked, config=context.obj, profile=profile, arguments=resource_arguments(set_resources)
    )
    if as_json:
        say_json({**vars(found), "equal": found.is_equal})
    else:
        show_rerun(found)
    if not found.is_equal:
        raise typer.Exit(DataError.exit_code)
