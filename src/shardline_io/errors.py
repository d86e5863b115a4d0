"""Errors that a user can act on; `shardline.core.errors` hands them on."""

from __future__ import annotations

from typing import Callable


def _as_it_is(text: str) -> str:
    return text


# What hides secrets in messages. Shardline puts its own in here; alone, this package names no
# value that a user has not written into the settings.
masks: list[Callable[[str], str]] = [_as_it_is]


class ShardlineError(Exception):
    """Base of all errors whose message alone tells the user what to do; no secret is in it."""

    exit_code = 1
    kind = "failed"  # how an attempt that it ends has ended, see `attempts`

    def __str__(self) -> str:
        return masks[-1](super().__str__())


class ConfigError(ShardlineError):
    """The config, the run table or a named class is wrong."""

    exit_code = 2


class DataError(ShardlineError):
    """A source, a shard or a manifest is missing, corrupt or cannot be written."""

    exit_code = 3


class LaunchError(ShardlineError):
    """The ranks cannot be started, or do not form the world that was asked for."""

    exit_code = 4
