"""The `shardline` command.

Modules of `shardline.results` compute what a command shows; `display` prints it.
"""

# ruff: noqa: F401, I001 - importing a module adds its commands, in the order in which the help lists them
from shardline.cli.app import EXIT_CODES, app, main
from shardline.cli import (
    new_project,
    run_commands,
    check,
    data,
    predict,
    find,
    accept,
    upkeep,
    remove,
    evidence,
    figures,
    drill,
)

__all__ = ["EXIT_CODES", "app", "main"]
