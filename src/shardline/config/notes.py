"""Notes on runs, `config/notes/{name}.md`: shown in the report, part of no run's identity."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shardline.core.errors import ConfigError
from shardline.core.redaction import mask

FOLDER = Path("config/notes")
_FENCE = "---"


@dataclass(frozen=True, kw_only=True)
class Note:
    """What somebody wrote about a run.

    Attributes:
        name: the run's.
        text: Markdown, shown as it is written.
        tags: from the YAML between two lines `---` at the file's start.
    """

    name: str
    text: str
    tags: tuple[str, ...] = ()


def read_notes(workdir: Path, names: Iterable[str]) -> dict[str, Note]:
    """Return the notes on runs of these names, by name.

    Raises:
        ConfigError: a note is not UTF-8, or its tags are not a list of texts.
    """
    folder = workdir / FOLDER
    there = {path.stem for path in folder.glob("*.md")} if folder.is_dir() else set()
    return {name: _read(folder / f"{name}.md", name) for name in names if name in there}


def _read(path: Path, name: str) -> Note:
    shown = FOLDER / path.name
    try:
        text = path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"{shown}: cannot be read ({found}); save it as UTF-8") from None
    head: Mapping[str, Any] = {}
    if text.startswith(f"{_FENCE}\n") and f"\n{_FENCE}\n" in f"{text}\n":
        front, _, text = f"{text}\n".removeprefix(f"{_FENCE}\n").partition(f"{_FENCE}\n")
        head = _front_matter(front, shown)
    tags = head.get("tags") or []
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise ConfigError(f"{shown}: tags={tags} is not a list of texts; write [baseline, paper]")
    return Note(name=name, text=mask(text.strip()), tags=tuple(map(mask, tags)))


def _front_matter(text: str, shown: Path) -> Mapping[str, Any]:
    try:
        head = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{shown}: the lines between --- are not valid YAML ({' '.join(str(error).split())}); correct them"
        ) from None
    if not isinstance(head, Mapping) or set(head) - {"tags"}:
        raise ConfigError(f"{shown}: between the lines --- only `tags` is known; drop the rest")
    return head
