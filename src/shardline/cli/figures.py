"""The commands `plot` and `table`: curves and results for papers."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from shardline.cli.app import AsJson, app
from shardline.cli.display.curves import show_curves
from shardline.cli.display.terminal import say, say_json
from shardline.core.extras import naming_extras
from shardline.core.files import writing
from shardline.notebook.project import Project


@app.command("plot")
def plot(
    context: typer.Context,
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names or ids of runs.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Metric to draw; can be repeated. Default: the monitored one."
        ),
    ] = None,
    axis: Annotated[
        Literal["step", "epoch", "wall_s"], typer.Option(help="Horizontal axis.")
    ] = "step",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="PNG, SVG or PDF file to write; without it, the terminal.",
        ),
    ] = None,
) -> None:
    """Draw learning curves, on the terminal or into a file.

    Runs that train now have their curves so far.
    """
    from shardline.notebook.figures import curves, save

    if output is not None:
        with naming_extras():  # whose extra has pandas too
            import vl_convert  # noqa: F401
    project = Project(config=context.obj)
    frames = {name: project[name].metrics() for name in runs}
    names = metric or project.monitored(runs)
    chart = curves(frames, names, x=axis)
    if output is None:
        for name in names:
            show_curves({run: frame for run, frame in frames.items() if name in frame}, name, axis)
        return
    save(chart, output)
    say(f"written: {output}")


@app.command("table")
def table(
    context: typer.Context,
    form: Annotated[
        Literal["csv", "latex", "markdown"], typer.Option("--format", help="Format of the table.")
    ] = "markdown",
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Settings and metrics to show, separated by commas."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write; without it, the terminal."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the results as a table, with means over seeds and folds.

    A value over several seeds or folds is the mean ± half of its 95 % confidence
    interval. CSV has the ends of the interval as columns.
    """
    from shardline.notebook.tables import results_table, write_table

    asked = [name.strip() for name in columns.split(",")] if columns else []
    found = results_table(Project(config=context.obj), asked)
    for sentence in found.attrs["left_out"]:
        say(sentence, is_error=True)
    if as_json:
        say_json(found.reset_index().to_dict("records"))
        return
    text = write_table(found, form)
    if output is None:
        typer.echo(text, nl=False)
        return
    with writing(output):
        output.write_text(text)
    say(f"written: {output}")
