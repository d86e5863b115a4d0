"""Errors that a user can act on; everything else is a bug of ours and keeps its traceback."""

from importlib import import_module
from typing import Any

# Why a training is asked to stop, and what its user reads.
STOPS = {
    "preempted": "asked to end (SIGTERM)",
    "signal": "asked to stop (SIGUSR1)",
    "interrupted": "interrupted",
    "deadline": "the time limit is near",
    "requested": "asked to stop",
}


def uncounted(module: str) -> Any:
    """Import a module of ours that changes no result, by a name that identities do not follow."""
    return import_module(f"{__package__}.{module}")


class ShardlineError(Exception):
    """Base of all errors whose message alone tells the user what to do; no secret is in it."""

    exit_code = 1
    kind = "failed"  # how an attempt that it ends has ended, see `attempts`

    def __str__(self) -> str:
        return str(uncounted("redaction").mask(super().__str__()))


class ConfigError(ShardlineError):
    """The config, the run table or a named class is wrong."""

    exit_code = 2


class DataError(ShardlineError):
    """A source, a shard or a manifest is missing, corrupt or cannot be written."""

    exit_code = 3


class LaunchError(ShardlineError):
    """The ranks cannot be started, or do not form the world that was asked for."""

    exit_code = 4


class Stopped(ShardlineError):
    """A training was asked to stop: started again, it resumes.

    Args:
        reason: why it was asked.
        step: optimiser steps that are saved; None where none was begun.
        in_time: whether the ranks could save before they were ended.
    """

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: repeat it later

    def __init__(self, reason: str, step: int | None, *, in_time: bool = True) -> None:
        saved = f"saved at step {step}" if step else "nothing was trained yet"
        if not in_time:
            saved = (
                "the ranks were ended before they had saved; raise runtime.stop_grace_s if that is too "
                "short for a step and a training checkpoint"
            )
        super().__init__(f"{STOPS[reason]}: {saved}; the same command resumes from there")
        self.reason, self.step = reason, step
        self.kind = "stopped" if in_time else "killed"


class CrashLoop(ShardlineError):
    """A retry that could only end as the attempt before it did."""


class Diverged(ShardlineError):
    """A training's loss or weights are no numbers any more; a retry would do the same again."""

    exit_code = 6
    kind = "diverged"


NAME_FILE = "name"  # in a run's folder of the store: what messages call it
