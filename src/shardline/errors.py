"""Errors that a user can act on; everything else is a bug of ours and keeps its traceback."""


class ShardlineError(Exception):
    """Base of all errors whose message alone tells the user what to do."""

    exit_code = 1


class ConfigError(ShardlineError):
    """The config, the run table or a named class is wrong."""

    exit_code = 2


class DataError(ShardlineError):
    """A source, a shard or a manifest is missing, corrupt or cannot be written."""

    exit_code = 3


class LaunchError(ShardlineError):
    """The ranks cannot be started, or do not form the world that was asked for."""

    exit_code = 4
