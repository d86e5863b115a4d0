"""Lines, tables and JSON on a terminal, or into a pipe."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from math import isfinite
from os import environ
from pathlib import Path
from typing import Any, TextIO, cast

from msgspec import Struct, structs
from rich.console import Console
from rich.status import Status
from rich.text import Text

from shardline.core.visible import escaped, from_here, visible


class _Visible:
    """Stream that spells out hidden characters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console(*, is_error: bool = False) -> Console:
    """Return a console with the width of the terminal; a pipe gets whole lines."""
    given = sys.stderr if is_error else sys.stdout
    # a pipe has no width, so its lines are as long as they need to be; a dumb
    # terminal gets 80 unless width and height are both named
    fits = given.isatty() or "COLUMNS" in environ
    width, height = (None, None) if fits else (ENDLESS, 25)
    stream = cast(TextIO, _Visible(given))
    return Console(
        file=stream, width=width, height=height, highlight=False, markup=False, emoji=False
    )


def say(line: str | Text, style: str = "", *, is_error: bool = False) -> None:
    """Print a line; a line that is too wide breaks between words.

    Paths in the present folder are printed relative to the folder.

    Args:
        is_error: Print to standard error.
    """
    out = console(is_error=is_error)
    text = Text(from_here(line)) if isinstance(line, str) else line
    for part in wrapped(text, out.width):
        out.print(part, style=style, soft_wrap=True)


def say_json(document: object) -> None:
    """Print a value as JSON: records by their fields, NaN as null, paths relative to the present folder."""
    text = json.dumps(_plain(document), indent=1, ensure_ascii=False, allow_nan=False)
    print(from_here(escaped(text)))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, Path):
        return str(value)
    return _plain(structs.asdict(value) if isinstance(value, Struct) else vars(value))


def waiting_for(what: str) -> Status:
    """Return a context that prints a status while it is open, only on a terminal."""
    return console().status(what)


ENDLESS = 1000  # columns of a pipe
_WORD = re.compile(r"\S+")


def wrapped(text: Text, width: int, hanging: int = 2) -> Iterator[Text]:
    """Yield a text in lines of limited width; a wider word gets its own line.

    Args:
        width: Columns of a line; from `ENDLESS` on, lines break only where the text does.
        hanging: Columns by which continued lines are indented further.
    """
    for line in text.split("\n", allow_blank=True):
        if width >= ENDLESS or line.cell_len <= width:
            yield line
            continue
        own = len(line.plain) - len(line.plain.lstrip())
        indent = min(own + hanging, width // 2)
        for number, part in enumerate(line.divide(_breaks(line.plain, width, indent))):
            part.rstrip()
            yield Text(" " * indent).append_text(part) if number else part


def _breaks(line: str, width: int, indent: int) -> list[int]:
    """Return the offsets of the words that start a line."""
    breaks: list[int] = []
    begin, is_empty = 0, True
    for word in _WORD.finditer(line):
        room = width - (indent if breaks else 0)
        if not is_empty and Text(line[begin : word.end()]).cell_len > room:
            breaks.append(word.start())
            begin = word.start()
        is_empty = False
    return breaks
