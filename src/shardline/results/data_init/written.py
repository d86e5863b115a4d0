"""An entry of `datasets` with comments, as text, and its insertion into a config."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from shardline.core.errors import ConfigError
from shardline.core.files import write_bytes


@dataclass(kw_only=True)
class Entry:
    """A guessed entry of `datasets`.

    Attributes:
        name: Name of the dataset.
        source: Settings of the source.
        comments: Comments on settings, by key: why the value was chosen, and what to change.
        notes: Further comments.
        shards: Number of shards.
        read: What is understood of the data with this entry, see `records.understood`; empty if it is not readable.
    """

    name: str
    source: dict[str, Any]
    comments: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    shards: int | str = "auto"
    read: dict[str, Any] = field(default_factory=dict)

    def lines(self, indent: str = "  ") -> Iterator[str]:
        """Yield the lines of the entry below `datasets:`."""
        yield f"{indent}{self.name}:"
        yield f"{indent * 2}source:"
        for key, value in self.source.items():
            comment = f" # {self.comments[key]}" if key in self.comments else ""
            yield f"{indent * 3}{key}: {flow(value)}{comment}"
        yield from (f"{indent * 3}# {note}" for note in self.notes)
        yield f"{indent * 2}shards: {self.shards}"

    @property
    def text(self) -> str:
        """The entry as a block `datasets:`."""
        return "\n".join(["datasets:", *self.lines()]) + "\n"

    @property
    def settings(self) -> dict[str, Any]:
        """The entry as settings."""
        return {"source": self.source, "shards": self.shards}


def flow(value: Any) -> str:
    """Return a value as YAML in one line."""
    text = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False
    )
    return text.strip().removesuffix("...").strip()


def add_entry(config: Path, entry: Entry) -> None:
    """Insert an entry below `datasets:` of a config, and leave all other lines as they are.

    Raises:
        ConfigError: The config has no such line, or a dataset of that name.
    """
    try:
        text = config.read_text(encoding="utf-8")
        known = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{config}: cannot be read ({reason}); correct it, or leave out --write"
        ) from None
    place = re.search(r"^datasets:[ \t]*(#.*)?$", text, re.MULTILINE)
    if not isinstance(known, dict) or place is None:
        raise ConfigError(
            f"{config}: has no line `datasets:`, expected one; leave out --write, and paste the printed entry"
        )
    if entry.name in (known.get("datasets") or {}):
        raise ConfigError(
            f"{config}: datasets.{entry.name} exists already; give another name with --name"
        )
    below = re.search(r"^([ ]+)[^\s#]", text[place.end() :], re.MULTILINE)
    lines = "\n".join(entry.lines(below[1] if below else "  "))
    changed = f"{text[: place.end()]}\n{lines}{text[place.end() :]}"
    write_bytes(config, changed.encode())
