"""Texts as a terminal shows them: hidden characters spelled out, widths in cells, lines that break between words."""

import re
from datetime import timedelta

# Control characters but the line's end, which move the cursor or colour what follows; Unicode's
# Bidi_Control, which reorders what stands beside it; lone surrogates, which UTF-8 cannot hold.
_HIDDEN = re.compile(
    "[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_COLOURS = re.compile("\x1b\\[[0-9;?]*[A-Za-z]")


def visible(text: str) -> str:
    """Return a text without colours, whose other hidden characters are spelled, such as `⟨U+202E⟩`."""
    text = _COLOURS.sub("", text.replace("\r\n", "\n")).replace("\t", "    ")
    return _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def one_line(text: str) -> str:
    """Return a text as one visible line."""
    return visible(" ".join(text.split()))


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    from rich.cells import cell_len  # where nothing is shown it is not imported

    return cell_len(text)


def clip(text: str, width: int) -> str:
    """Return a text of at most so many columns; of a longer one the begin and `…`."""
    if cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, max(width - 1, 0)).rstrip()}…" if width > 0 else ""


def pad(text: str, width: int) -> str:
    """Return a text with spaces up to a width."""
    return text + " " * max(width - cells(text), 0)


def wrap(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return a text as lines that break between words; a word that is wider has a line of its own.

    Args:
        width: columns; None: lines break where the text does.
        indent: what each line begins with.
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
        lines.append((indent + own + row).rstrip())  # of a line without a word nothing is left
    return lines


def clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    return str(timedelta(seconds=round(max(seconds, 0))))


def number(value: float | None) -> str:
    """Return a number with four digits that count; None, which stands for NaN and infinity, as `nan`."""
    return "nan" if value is None else f"{value:.4g}"
