"""Where Shardline's errors are made while something is played."""

import sys
from typing import Any

import pytest

from shardline.errors import ShardlineError


def note_errors(patch: pytest.MonkeyPatch) -> set[tuple[str, int]]:
    """Have each error note the file and the line that makes it; returns what they fill."""
    made: set[tuple[str, int]] = set()
    init = ShardlineError.__init__

    def noted(self: ShardlineError, *args: Any, **named: Any) -> None:
        frame = sys._getframe(1)
        made.add((frame.f_code.co_filename, frame.f_lineno))
        init(self, *args, **named)

    patch.setattr(ShardlineError, "__init__", noted)
    return made
