"""The commands that let others check a result: `replay`, `diff`, `lineage`, `export`."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from shardline.cli.app import AsJson, app
from shardline.cli.display.evidence_views import (
    show_comparison,
    show_export,
    show_lineage,
    show_replay,
)
from shardline.cli.display.terminal import say_json, waiting_for
from shardline.cli.profile import configured_store
from shardline.config.layout import ResultsLayout
from shardline.config.load import load_project
from shardline.core.errors import DataError
from shardline.results.diff import compare_runs
from shardline.results.export.export_run import export_run
from shardline.results.lineage.tracer import trace
from shardline.results.replay.replay_run import replay
from shardline.results.sealed_run import find_sealed_run

_Run = Annotated[str, typer.Argument(metavar="RUN", help="Name or id of a run, or an earlier id.")]
_Force = Annotated[
    bool,
    typer.Option(
        "--force", metavar="", help="Use the present code and packages, even if they differ."
    ),
]


@app.command("replay")
def replay_run(
    context: typer.Context,
    run: _Run,
    tolerance: Annotated[
        float,
        typer.Option(metavar="REL", min=0, help="Relative difference that is allowed; 0: none."),
    ] = 0.0,
    force: _Force = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a sealed model again, and compare every recorded number with the result.

    Sealed files are verified against their checksums first, each shard as it is read.
    Code and packages must be those of the recorded evaluation. Nothing is written.
    Exit code 3 if a number differs.
    """
    project = load_project(config_file=context.obj)
    recorded = find_sealed_run(project, run)
    with waiting_for(f"evaluating {recorded.title}"):
        found = replay(project, recorded, tolerance=tolerance, force=force)
    if as_json:
        say_json({**vars(found), "equal": found.is_equal})
    else:
        show_replay(found)
    if not found.is_equal:
        raise typer.Exit(DataError.exit_code)


@app.command("diff")
def diff(
    context: typer.Context,
    first: _Run,
    second: _Run,
    as_json: AsJson = False,
) -> None:
    """List what differs between two runs: settings, data, code, environment, and metrics.

    Each difference of a metric stands beside its 95 % interval: from the spread over
    seeds if both runs were repeated, else from the choice of held-out samples.
    """
    project = load_project(config_file=context.obj)
    found = compare_runs(find_sealed_run(project, first), find_sealed_run(project, second))
    say_json(found) if as_json else show_comparison(found)


@app.command("lineage")
def lineage(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="In the results or the store.")],
    shape: Annotated[
        Literal["text", "dot"],
        typer.Option("--format", help="A tree, or a graph in Graphviz's language."),
    ] = "text",
    as_json: AsJson = False,
) -> None:
    """List what made a file: its action, the files that it read, and so on to the sources.

    Only sealed files are read. Exit code 3 if the file is not what its action wrote.
    """
    found = trace(file, _layout(context.obj))
    if as_json:
        say_json(found.document())
    elif shape == "dot":
        typer.echo(found.dot())
    else:
        show_lineage(found)
    if found.problem:
        if as_json or shape == "dot":
            typer.echo(found.problem, err=True)
        raise typer.Exit(DataError.exit_code)


def _layout(config_file: Path) -> ResultsLayout:
    """Return where results and store lie, from the one key of the config that names the store."""
    layout = ResultsLayout(root=Path.cwd())
    named = os.environ.get("SHARDLINE_STORE") or configured_store(layout, config_file)
    return replace(layout, named_store=Path(named))


@app.command("export")
def export(
    context: typer.Context,
    run: _Run,
    to: Annotated[
        Literal["onnx", "torchscript", "safetensors", "huggingface"],
        typer.Option("--to", help="Format of the written model."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to be made; left out, exports/RUN-FORMAT."),
    ] = None,
    force: _Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a sealed model for others, with a model card, and compare it with the original.

    The folder holds the model, config.json and README.md, and appears only if the
    outputs on held-out rows are the original's. onnx and torchscript take features as
    stored: the normalisation is inside. Nothing is overwritten.
    """
    project = load_project(config_file=context.obj)
    recorded = find_sealed_run(project, run)
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    with waiting_for(f"exporting {recorded.title}"):
        done = export_run(project, recorded, to=to, output=output, force=force)
    say_json(done) if as_json else show_export(done)
