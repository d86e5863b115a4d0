"""The `shardline` command.

What a command shows is found by a module beside this package (`states`, `why`,
`garbage`, `verify`, `replay`, ...), and put on a terminal by `display`.
"""

# ruff: noqa: I001 - the help lists the commands in the order of their modules
from shardline.cli.app import EXIT_CODES, app, main
from shardline.cli import project, runs, upkeep, checking, crate

__all__ = ["EXIT_CODES", "app", "checking", "crate", "main", "project", "runs", "upkeep"]
