"""The commands for checking and sharing a result: `replay`, `diff`, `lineage`, `export`, `crate`."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from shardline.cli.app import AsJson, app
from shardline.cli.display.evidence_views import (
    show_comparison,
    show_export,
    show_lineage,
    show_replay,
)
from shardline.cli.display.terminal import say, say_json, waiting_for
from shardline.cli.profile import configured_store
from shardline.config.layout import ResultsLayout
from shardline.config.load import load_project
from shardline.core.errors import DataError
from shardline.results.diff import compare_runs
from shardline.results.lineage.tracer import trace
from shardline.results.replay.replay_run import replay
from shardline.results.sealed_run import find_sealed_run

_Run = Annotated[str, typer.Argument(metavar="RUN", help="Name, id or earlier id of a run.")]
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
        typer.Option(metavar="REL", min=0, help="Largest allowed relative difference."),
    ] = 0.0,
    force: _Force = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a sealed model again, and compare every number with the recorded one.

    Verifies the sealed files against their checksums first, and each shard while
    reading it. Code and packages must be those of the recorded evaluation.
    Writes nothing. Exits with code 3 if a number differs.
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
    """Compare two runs: settings, data, code, environment and metrics.

    Prints the 95 % interval of each metric's difference, from the spread over
    seeds if both runs were repeated, else from the choice of held-out samples.
    For a stale run, compares the latest sealed result of its name.
    """
    project = load_project(config_file=context.obj)
    old, new = (find_sealed_run(project, one, or_earlier=True) for one in (first, second))
    found = compare_runs(old, new)
    say_json(found) if as_json else show_comparison(found)


@app.command("lineage")
def lineage(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File in the results or the store.")],
    shape: Annotated[
        Literal["text", "dot"],
        typer.Option("--format", help="Print a tree, or a graph for Graphviz."),
    ] = "text",
    as_json: AsJson = False,
) -> None:
    """Trace a file back to its sources: the action that wrote it, its inputs, their actions, ...

    Reads only sealed files. Exits with code 3 if the file differs from what its
    action wrote.
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
    """Return the layout of results and store; only `runtime.store` of the config is read."""
    layout = ResultsLayout(root=Path.cwd())
    named = os.environ.get("SHARDLINE_STORE") or configured_store(layout, config_file)
    return replace(layout, named_store=Path(named))


@app.command("export")
def export(
    context: typer.Context,
    run: _Run,
    to: Annotated[
        Literal["onnx", "torchscript", "safetensors", "huggingface"],
        typer.Option("--to", help="Format of the exported model."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to create; default: exports/RUN-FORMAT."),
    ] = None,
    force: _Force = False,
    as_json: AsJson = False,
) -> None:
    """Export a sealed model with a model card, and compare it with the original.

    The folder contains the model, config.json and README.md. It appears only if
    the model's outputs on held-out rows match the original's. Models in onnx and
    torchscript contain the normalisation: give them features as stored.
    Nothing is overwritten.
    """
    from shardline.results.export.export_run import export_run

    project = load_project(config_file=context.obj)
    recorded = find_sealed_run(project, run)
    sys.path.insert(0, str(Path.cwd()))  # the user's modules
    with waiting_for(f"exporting {recorded.title}"):
        done = export_run(project, recorded, to=to, output=output, force=force)
    say_json(done) if as_json else show_export(done)


@app.command("crate")
def pack_crate(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Zip file to write; an existing one is replaced.")
    ] = Path("crate.zip"),
    wants_zip: Annotated[
        bool, typer.Option("--zip", metavar="", help="Pack the crate into FILE.")
    ] = False,
    with_data: Annotated[
        bool, typer.Option("--with-data", metavar="", help="Pack models and shards too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Describe the report and the files behind it as an RO-Crate.

    --zip packs report, settings, metrics, evaluations, provenance, manifests and
    workflow, described by the Provenance Run Crate profile. The same files give
    the same zip. In the unzipped crate, `shardline lineage` works; with
    --with-data, `verify` and `replay` work too.
    """
    from shardline.provenance.crate.pack import write_zip

    project = load_project(config_file=context.obj)
    facts: dict[str, Any] = {"metadata": project.crate, "exists": project.crate.exists()}
    if wants_zip:
        with waiting_for(f"packing {file}"):
            files = write_zip(project, file, config=context.obj, with_data=with_data)
        facts |= {"zip": file, "files": files, "bytes": file.stat().st_size}
    if as_json:
        say_json(facts)
    elif wants_zip:
        say(f"{file}: {facts['files']} files, {facts['bytes'] / 1e6:,.1f} MB")
    else:
        missing = "" if facts["exists"] else " (does not exist yet: run the pipeline)"
        say(f"metadata: {project.crate}{missing}\npack it: shardline crate --zip {file}")
