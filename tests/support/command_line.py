"""The `shardline` command, called as its user does."""

import re

from typer.testing import CliRunner, Result

from shardline.cli import app


def shardline(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, arguments)


def lines(result: Result) -> list[list[str]]:
    """Return each line's cells."""
    return [re.split(r"\s{2,}", line.strip()) for line in result.stdout.splitlines()]
