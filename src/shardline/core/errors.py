"""Errors that a user can act on; everything else is a bug of ours and keeps its traceback."""

from importlib import import_module
from typing import Any

from shardline_io.errors import ConfigError, DataError, LaunchError, ShardlineError, masks

__all__ = [
    "CODE_ERROR", "STOPS", "ConfigError", "CrashLoop", "DataError", "Diverged", "LaunchError",
    "ShardlineError", "Stopped", "exit_code_of", "import_outside_identity", "is_final", "is_final_end",
]  # fmt: skip

# Why a training is asked to stop, and what its user reads.
STOPS = {
    "preempted": "asked to end (SIGTERM)",
    "signal": "asked to stop (SIGUSR1)",
    "interrupted": "interrupted",
    "deadline": "the time limit is near",
    "requested": "asked to stop",
}


def import_outside_identity(module: str) -> Any:
    """Import a module of ours that changes no result, by a name that identities do not follow."""
    return import_module(f"{__package__}.{module}")


def _mask(text: str) -> str:
    return str(import_outside_identity("redaction").mask(text))


masks.append(_mask)


# Exit code of a rank whose model, or another class of the user's, raised what it would raise again.
CODE_ERROR = 5
_PROGRAMMING_ERRORS = (
    TypeError, AttributeError, NameError, LookupError, ValueError, ArithmeticError, AssertionError,
    NotImplementedError, ImportError, SyntaxError,
)  # fmt: skip


def exit_code_of(error: Exception) -> int:
    """Return the exit code for an error that is not ours: `CODE_ERROR`, or 1 where a retry may help.

    Of torch's RuntimeErrors only those of shapes and types repeat for certain; others come of a device or a network.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "MisconfigurationException" in kinds:  # Lightning's, which is not imported here
        return CODE_ERROR
    is_shape = type(error) is RuntimeError and any(
        words in str(error)
        for words in ("shapes cannot be multiplied", "The size of tensor", "must have the same dtype",
                      "does not require grad", "is invalid for input of size")
    )  # fmt: skip
    return CODE_ERROR if isinstance(error, _PROGRAMMING_ERRORS) or is_shape else 1


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
                "the ranks were killed before they saved; raise runtime.stop_grace_s if it is too short "
                "for one step and a training checkpoint"
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


# What another attempt may find repaired: a disk, a network or a machine, and no file's name or content.
_LASTING = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)  # fmt: skip


def is_final_end(kind: str, code: int) -> bool:
    """Return whether an attempt that ended so would end so again: by an error of config, data or model.

    Args:
        kind: of the end, see `ShardlineError.kind`.
        code: exit code.
    """
    return kind == "diverged" or code in (ConfigError.exit_code, DataError.exit_code, CODE_ERROR)


def is_final(error: BaseException) -> bool:
    """Return whether another attempt would end with the same error.

    A file system or a network that failed on the way may work again.
    """
    if isinstance(error, Stopped) or not isinstance(error, ShardlineError):
        return False
    if isinstance(error, CrashLoop) or error.kind == "diverged":
        return True
    is_transient = any(
        isinstance(one, OSError) and not isinstance(one, _LASTING) for one in _chain(error)
    )
    return is_final_end(error.kind, error.exit_code) and not is_transient


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return an error and those that it came of, also where `raise ... from None` hides them."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
