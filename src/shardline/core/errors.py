"""Errors that a user can act on. Any other exception is a bug and keeps its traceback."""

from importlib import import_module
from typing import Any

from shardline_io.errors import ConfigError, DataError, LaunchError, ShardlineError, masks

__all__ = [
    "CODE_ERROR", "STOPS", "ConfigError", "CrashLoop", "DataError", "Diverged", "LaunchError",
    "ShardlineError", "Stopped", "exit_code_of", "import_outside_identity", "is_final", "is_final_end",
]  # fmt: skip

# Reasons to stop a training, with their texts in messages.
STOPS = {
    "preempted": "asked to end (SIGTERM)",
    "signal": "asked to stop (SIGUSR1)",
    "interrupted": "interrupted",
    "deadline": "the time limit is near",
    "requested": "asked to stop",
}


def import_outside_identity(module: str) -> Any:
    """Import a module of `shardline.core` that changes no result, hidden from identities of user code."""
    return import_module(f"{__package__}.{module}")


def _mask(text: str) -> str:
    return str(import_outside_identity("redaction").mask(text))


masks.append(_mask)


# Exit code of a rank whose model or other user code raised an error that a retry would raise again.
CODE_ERROR = 5
_PROGRAMMING_ERRORS = (
    TypeError, AttributeError, NameError, LookupError, ValueError, ArithmeticError, AssertionError,
    NotImplementedError, ImportError, SyntaxError,
)  # fmt: skip


def exit_code_of(error: Exception) -> int:
    """Return the exit code for an error that is not Shardline's: `CODE_ERROR`, or 1 if a retry may help.

    A RuntimeError of torch repeats for certain only if it is about shapes or types. Others may come from a device or
    a network.
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
    """Stop of a training on request; the training resumes when it is started again.

    Args:
        reason: key of `STOPS`.
        step: number of saved optimiser steps; None if training had not begun.
        in_time: whether the ranks saved before they were killed.
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
    """A retry would end like the attempt before it.

    Args:
        reason: how both attempts ended.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class Diverged(ShardlineError):
    """NaN or infinity in the loss or weights of a training; a retry would repeat it."""

    exit_code = 6
    kind = "diverged"


# Errors of the system that last. Others, of a disk, network or machine, may be gone in the next attempt.
_LASTING = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)  # fmt: skip


def is_final_end(kind: str, code: int) -> bool:
    """Return whether another attempt would end the same way: the config, data or model is wrong.

    Args:
        kind: kind of the end, see `ShardlineError.kind`.
        code: exit code of the attempt.
    """
    return kind == "diverged" or code in (ConfigError.exit_code, DataError.exit_code, CODE_ERROR)


def is_final(error: BaseException) -> bool:
    """Return whether another attempt would end with the same error.

    An error of a file system or network is not final, since it may work again.
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
    """Return an error and its causes, including those hidden by `raise ... from None`."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
