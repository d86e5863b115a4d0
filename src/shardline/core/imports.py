"""Importing what a user names, with an error that shows the user's own frames alone."""

import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shardline.core.errors import ConfigError, ShardlineError
from shardline.core.known_errors import describe
from shardline.core.visible import from_here

_MAX_FRAMES = 4


def import_class(path: str, what: str) -> Any:
    """Import `module:Class`.

    Raises:
        ConfigError: the import fails; carries the user's own frames of the
            traceback, without those of Python's import system and ours.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ConfigError(f"{what}={path} does not import: {short_traceback(error)}") from error


def check_arguments(
    cls: Callable[..., Any], arguments: Mapping[str, Any], what: str, remedy: str, *,
    kind: type[ShardlineError] = ConfigError, written: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Refuse arguments that a class, which the user names, does not take.

    Args:
        what: the class, and the key that names it, as a message begins.
        remedy: what a message ends with.
        kind: of the error.
        written: the arguments that the user wrote, where there are others; None: all.

    Raises:
        ConfigError: or what `kind` is.
    """
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        given = arguments if written is None else written
        raise kind(f"{what} does not take {given} ({error}); {remedy}") from None


def short_traceback(error: BaseException) -> str:
    """Return the error's line, in our words where it is known, and the user's own frames, deepest last.

    Frames of installed packages, of Python's import system and of this library
    are left out.
    """
    package = Path(__file__).parents[1]
    ours = {package, package.with_name("shardline_io")}
    frames = [
        f"{from_here(frame.filename)}, line {frame.lineno}, in {frame.name}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        # in the project's folder only what lies below counts: the folder itself may have any name
        if not {"importlib", "site-packages"} & set(Path(from_here(frame.filename)).parts)
        and ours.isdisjoint(Path(frame.filename).parents)
        and not frame.filename.startswith("<")
    ]
    if isinstance(error, SyntaxError):
        frames.append(
            f"{from_here(error.filename or '')}, line {error.lineno}: {(error.text or '').strip()}"
        )
    return "\n  ".join([describe(error), *frames[-_MAX_FRAMES:]])
