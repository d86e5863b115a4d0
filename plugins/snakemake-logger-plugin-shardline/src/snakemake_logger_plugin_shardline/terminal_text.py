"""Texts for a terminal: hidden characters spelled out, widths in cells, lines that break between words."""

import re
from datetime import timedelta

# Control characters except the newline, which move the cursor or change colours; Unicode's
# Bidi_Control, which reorders text; lone surrogates, which UTF-8 cannot encode.
_HIDDEN = re.compile(
    "[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_COLOURS = re.compile("\x1b\\[[0-9;?]*[A-Za-z]")


def visible(text: str) -> str:
    """Return a text without colours, and with hidden characters spelled out, such as `⟨U+202E⟩`."""
    text = _COLOURS.sub("", text.replace("\r\n", "\n")).replace("\t", "    ")
    return _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def one_line(text: str) -> str:
    """Return a text as one visible line."""
    return visible(" ".join(text.split()))


def cells(text: str) -> int:
    """Return the number of a terminal's columns that a text needs."""
    from rich.cells import cell_len  # imported late, for processes that show nothing

    return cell_len(text)


def clip(text: str, width: int) -> str:
    """Return a text shortened to a number of columns; a shortened text ends with `…`."""
    if cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, max(width - 1, 0)).rstrip()}…" if width > 0 else ""


def pad(text: str, width: int) -> str:
    """Return a text padded with spaces to a width."""
    return text + " " * max(width - cells(text), 0)


def wrap(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return a text as lines that break between words; a longer word gets its own line.

    Args:
        width: columns; None to keep the text's own lines.
        indent: beginning of each line.
    """
    lines = []
    for line in visible(text).strip("\n").splitlines():
        own = line[: len(line) - len(line.lstrip())]
        if width is None or cells(indent + line) <= width:
            lines.append((indent + line).rstrip())
            continue
        row = ""
        for word in line.split():
            if row and cells(f"{indent}{own}{row} {word}") > width:
                lines.append(indent + own + row)
                row = word
            else:
                row = f"{row} {word}" if row else word
        lines.append((indent + own + row).rstrip())  # empty for a line without a word
    return lines


def clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    return str(timedelta(seconds=round(max(seconds, 0))))


def number(value: float | None) -> str:
    """Return a number with four significant digits; None, which stands for NaN and infinity, as `nan`."""
    return "nan" if value is None else f"{value:.4g}"
