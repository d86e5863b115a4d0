"""Images, tables and texts of a model as files and texts, for trackers."""

import base64
import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET

from shardline.records.metrics import Logged, MetricLine

_PART = re.compile(r"[^\w\-. ]")


def numbered(line: MetricLine) -> list[tuple[str, Logged]]:
    """Return the entries of a step by name; entries of one name are numbered from 0."""
    entries = line.logged or []
    number, found = Counter(one.name for one in entries), Counter[str]()
    named = []
    for one in entries:
        named.append((one.name if number[one.name] == 1 else f"{one.name}/{found[one.name]}", one))
        found[one.name] += 1
    return named


def png_of(entry: Logged) -> bytes:
    """Return the PNG file of an image; empty for another entry."""
    return base64.b64decode(entry.png) if entry.png else b""


def files_of(line: MetricLine) -> Iterator[tuple[str, bytes]]:
    """Yield relative path and content of a file for each image (PNG), table (CSV) and text of a step."""
    for name, one in numbered(line):
        path = f"{_path(name)}/{line.step:08d}"
        if one.png:
            yield f"{path}.png", png_of(one)
        elif one.rows is not UNSET:
            yield f"{path}.csv", csv_table(one.columns or [], one.rows).encode()
        else:
            yield f"{path}.txt", (one.text or "").encode()


def csv_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table as CSV."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    return file.getvalue()


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value: Any) -> str:
    return "" if value is None else re.sub(r"\s+", " ", str(value)).replace("|", "\\|")


def _path(name: str) -> str:
    """Return a relative path for a name, with its slashes as folders."""
    path = "/".join(_PART.sub("_", part).strip(". ")[:80] or "_" for part in name.split("/"))
    # two names must not share a file
    return path if path == name else f"{path}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
