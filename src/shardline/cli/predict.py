"""The command that uses a model: `predict`."""

import logging
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from shardline.cli.app import AsJson, app
from shardline.cli.asked_predictions import predict_rows
from shardline.cli.display.terminal import say, say_json
from shardline.config.load import load_project
from shardline.results.sealed_run import find_sealed_run


@app.command("predict")
def predict(
    context: typer.Context,
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Name or id of a run, or an earlier id.")
    ],
    rows: Annotated[
        list[str],
        typer.Argument(metavar="DATASET|FILES...", help="A dataset of the config, or files."),
    ],
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="File to be written, Parquet.")
    ] = Path("predictions.parquet"),
    split: Annotated[
        Literal["train", "validation", "test"],
        typer.Option(help="Which rows of a dataset; of files, all rows are predicted."),
    ] = "test",
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Use the present code, even if it differs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict the rows of a dataset or of files with a sealed model.

    Files are read as the data that the run was trained on, and need no labels. What was
    predicted before a command was killed is kept, and the same command resumes.
    Nothing is overwritten.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    project = load_project(config_file=context.obj)
    recorded = find_sealed_run(project, run)
    found = predict_rows(project, recorded, rows, split=split, output=output, force=force)
    if as_json:
        say_json(found)
    else:
        say(f"{found.rows:,} rows predicted by {recorded.title}: {found.output}")
