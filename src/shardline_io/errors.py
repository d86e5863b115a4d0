"""Errors that a user can act on; `shardline.core.errors` re-exports them."""

from __future__ import annotations

from typing import Callable


def _as_it_is(text: str) -> str:
    return text


# Functions that hide secrets in messages. Shardline appends its own. This package alone needs none:
# its messages only name values that a user wrote into the settings.
masks: list[Callable[[str], str]] = [_as_it_is]


class ShardlineError(Exception):
    """Base class of errors that a user can fix from the message alone; messages contain no secret."""

    exit_code = 1
    kind = "failed"  # recorded as the end of the attempt, see `attempts`

    def __str__(self) -> str:
        return masks[-1](super().__str__())


class ConfigError(ShardlineError):
    """Error in the config, the run table or a class that they name."""

    exit_code = 2


class DataError(ShardlineError):
    """A source, a shard or a manifest is missing or corrupt, or cannot be written."""

    exit_code = 3


class LaunchError(ShardlineError):
    """The ranks cannot be started, or do not form the requested world."""

    exit_code = 4
