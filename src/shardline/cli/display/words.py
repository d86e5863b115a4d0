"""Lines that a terminal breaks between words."""

import re
from collections.abc import Iterator

from rich.text import Text

ENDLESS = 1000  # columns of what is no terminal
_WORD = re.compile(r"\S+")


def wrapped(text: Text, width: int, hanging: int = 2) -> Iterator[Text]:
    """Yield a text as lines of at most so many columns; a word that is wider keeps a line to itself.

    Args:
        width: columns; from `ENDLESS` on lines break where the text does.
        hanging: columns by which the lines that continue one are indented, behind its own indentation.
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
    """Return the places of the words that begin a line."""
    breaks: list[int] = []
    begin, is_empty = 0, True
    for word in _WORD.finditer(line):
        room = width - (indent if breaks else 0)
        if not is_empty and Text(line[begin : word.end()]).cell_len > room:
            breaks.append(word.start())
            begin = word.start()
        is_empty = False
    return breaks
