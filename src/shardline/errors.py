"""Errors that a user can act on: the public names of `shardline.core.errors`."""

from shardline.core.errors import (
    ConfigError,
    CrashLoop,
    DataError,
    Diverged,
    LaunchError,
    ShardlineError,
    Stopped,
)

__all__ = [
    "ConfigError",
    "CrashLoop",
    "DataError",
    "Diverged",
    "LaunchError",
    "ShardlineError",
    "Stopped",
]
