"""The commands for existing files: `gc`, `verify`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from shardline.cli.app import AsJson, Yes, app, ask
from shardline.cli.display.terminal import say, say_json, waiting_for
from shardline.cli.display.upkeep_views import say_freed, show_garbage, show_repair, show_verdict
from shardline.config.layout import Kind, names_that_have_been, title_of
from shardline.config.load import load_project
from shardline.config.project import Project
from shardline.config.user_files import read_config
from shardline.core.errors import DataError
from shardline.core.package import check_unlocked
from shardline.results.dependents import tell_dependents
from shardline.results.findings import VerifyResult
from shardline.results.gc import Garbage, delete, find_garbage, last_results, runs_among
from shardline.results.select import datasets_to_repair, find_targets


@app.command("gc")
def collect_garbage(
    context: typer.Context,
    wants_deletion: Annotated[
        bool, typer.Option("--delete", metavar="", help="Delete the listed files.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """List, or delete, files in results and store that the config no longer uses.

    A deleted result is computed again when its settings come back. If two
    projects share a store and made the same result, the list may contain files
    that the other project needs: read it before you delete.
    """
    project = load_project(config_file=context.obj)
    garbage = find_garbage(project, read_config(context.obj)["datasets"])
    dependents = tell_dependents(project, runs_among(project, garbage))
    if not as_json:
        remedy = "" if wants_deletion else "; `shardline gc --delete` deletes them"
        show_garbage(garbage, last_results(project, garbage), remedy)
        for sentence in dependents:
            say(sentence)
    if wants_deletion and garbage:
        if not yes:
            ask("Delete them?", "gc --delete", "deletes", quiet=as_json)
        check_unlocked(project.workdir)
        _delete(garbage, quiet=as_json)
    if as_json:
        num_bytes = sum(item.bytes for item in garbage)
        document = {"deleted": wants_deletion, "bytes": num_bytes, "items": garbage}
        say_json({**document, "dependents": dependents})


def _delete(garbage: Sequence[Garbage], *, quiet: bool) -> None:
    freed = 0
    try:
        for item in delete(garbage):
            freed += item.bytes
    finally:
        if not quiet:
            say_freed(freed)


@app.command("verify")
def verify(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|DATASET",
            help="Names or ids; default: everything of the config that exists.",
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", metavar="", help="Delete a dataset's bad shards."),
    ] = False,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", metavar="", help="Verify the whole store and the history of names too."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify shards and sealed files against manifests, identities and provenance.

    Reads every byte of shards and pack plans. Without names, it also verifies the
    links in results/. Exits with code 3 if anything is wrong.

    --deep also reads every byte of the training checkpoints. It verifies attempts
    and markers against their seals, statistics and pack plans against the
    dataset's rows, ledgers against the planned order, and the history of names.

    --repair deletes the bad shards of the named datasets. The next `snakemake`
    rebuilds only the parts with these shards.
    """
    # they import NumPy, which other commands do not need
    from shardline.results.verify import verify_target
    from shardline.results.verify_names import verify_names

    project = load_project(config_file=context.obj)
    targets = (datasets_to_repair if repair else find_targets)(project, names or [])
    titles = _titles(project, targets)
    verdicts = []
    for (kind, item), title in zip(targets, titles, strict=True):
        with waiting_for(f"reading {title}"):
            verdict = verify_target(project, kind, item, deep=deep)
        verdicts.append(verdict)
        if not as_json:
            show_verdict(verdict, title, width=max(map(len, titles)))
        if repair:
            _repair(project, verdict, title, quiet=as_json)
    if targets and not names:
        verdicts.append(verify_names(project.layout, deep=deep))
        if not as_json:
            show_verdict(verdicts[-1], verdicts[-1].id, width=max(map(len, titles)))
    bad = sum(bool(verdict.problems) for verdict in verdicts)
    if as_json:
        say_json(verdicts)
    elif not verdicts:
        say("Nothing to verify: nothing that the config names exists yet.")
    elif (len(verdicts) > 1 or bad) and not repair:
        say(f"\n{len(verdicts)} verified, {bad or 'none'} with problems")
    if bad and not repair:
        raise typer.Exit(DataError.exit_code)


def _titles(project: Project, targets: Sequence[tuple[Kind, str]]) -> list[str]:
    """Return name and id of each run, dataset and report, as printed."""
    names = {
        **names_that_have_been(project.layout, "run"),
        **names_that_have_been(project.layout, "dataset"),
        **{one.id: [one.name] for one in project.sweeps.values()},
    }
    return [title_of(item, names) for _, item in targets]


def _repair(project: Project, verdict: VerifyResult, title: str, *, quiet: bool) -> None:
    from shardline.results.repair import repair_dataset

    parts = repair_dataset(project, verdict) if verdict.problems else []
    if quiet:
        return
    if not verdict.problems:
        say(f"nothing to repair: {title} is undamaged, and nothing was changed")
        return
    manifest = project.layout.declared.manifest(verdict.id)
    show_repair(verdict, parts, manifest)
