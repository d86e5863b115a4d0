"""The `shardline` command.

What a command shows is found by a module beside this package (`states`, `why`,
`garbage`, `verify`, `replay`, ...), and put on a terminal by `display`.
"""

# ruff: noqa: I001 - the help lists the commands in the order of their modules
from shardline.cli.app import EXIT_CODES, app, main
from shardline.cli import project, runs, accept, upkeep, checking, crate, drill

__all__ = [
    "EXIT_CODES",
    "accept",
    "app",
    "checking",
    "crate",
    "drill",
    "main",
    "project",
    "runs",
    "upkeep",
]
