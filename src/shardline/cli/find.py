"""The command `find`, which tries learning rates or sizes of a global batch."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from shardline.cli.app import AsJson, OnProfile, SetResources, app, resource_arguments
from shardline.cli.display.curves import show_batch, show_rates
from shardline.cli.display.terminal import say_json
from shardline.config.load import load_project
from shardline.core.package import check_unlocked
from shardline.records.base import encode
from shardline.results.find import find_batch, find_rates
from shardline.results.select import find_run


@app.command("find")
def find(
    context: typer.Context,
    setting: Annotated[
        Literal["lr", "batch"], typer.Argument(metavar="lr|batch", help="What to find.")
    ],
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or id of a run.")],
    profile: OnProfile = "profiles/local",
    set_resources: SetResources = None,
    as_json: AsJson = False,
) -> None:
    """Find a learning rate, or the largest global batch that fits into memory.

    lr      120 steps with a learning rate that grows from 1e-7 to 10; prints the
            loss, and the rate at which the loss falls fastest
    batch   a few steps with growing batches, on the planned ranks

    The run's ranks start on the profile's machines. Nothing is kept, and no result
    changes. The last line is for the config.
    """
    sys.path.insert(0, str(Path.cwd()))  # the user's modules
    project = load_project(config_file=context.obj)
    asked = find_run(project, run)
    check_unlocked(project.workdir)
    arguments = resource_arguments(set_resources)
    if setting == "lr":
        rates = find_rates(asked, config=context.obj, profile=profile, arguments=arguments)
        say_json(encode(rates)) if as_json else show_rates(rates)
    else:
        batch = find_batch(asked, config=context.obj, profile=profile, arguments=arguments)
        say_json(encode(batch)) if as_json else show_batch(batch)
