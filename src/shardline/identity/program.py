"""The modules of a project as a program sees them, each outlined once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from shardline.identity.outline import Outline
from shardline.identity.search import Found, in_later_roots

Folders = tuple[Path, ...]


class Index(Protocol):
    """What a program asks of the `CodeIndex`, which imports this module."""

    def locate(self, folders: Folders, name: str) -> Found | None: ...  # noqa: D102

    def is_package(self, searched: Sequence[Folders], name: str) -> bool: ...  # noqa: D102

    def outline(self, path: Path, name: str, *, is_main: bool) -> Outline: ...  # noqa: D102

    def folders_added_by(self, path: Path, name: str) -> tuple[Path, ...]: ...  # noqa: D102

    def edits_sys_path(self, path: Path, name: str) -> bool: ...  # noqa: D102


def with_parents(name: str) -> list[str]:
    """Return the packages that a dotted name lies in, the outermost first, and the name."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


@dataclass
class Program:
    """Finds modules in several lists of folders; those of one name all count.

    Attributes:
        index: finds and parses.
        searched: lists of folders; what lies in a later one has its number behind its name.
        is_main: whether every module may run as `__main__`.
    """

    index: Index
    searched: list[Folders]
    is_main: bool = False
    files: dict[str, Path] = field(default_factory=dict)
    _found: dict[str, dict[str, Outline]] = field(default_factory=dict)
    _folders: dict[str, bool] = field(default_factory=dict)

    def find(self, name: str) -> dict[str, Outline]:
        """Return the modules of a dotted name by label."""
        if name not in self._found:
            self._found[name] = {}
            for number, folders in enumerate(self.searched):
                place = self.index.locate(folders, name)
                if place and place.file:
                    label = f"{name} ({number})" if number else name
                    self.files[label] = place.file
                    main = self.is_main or name == "__main__"
                    outline = self.index.outline(place.file, name, is_main=main)
                    self._found[name][label] = outline
        return self._found[name]

    def in_later_roots(self, labels: Iterable[str]) -> list[str]:
        """Return which of these modules lie in a later import root, if one edits `sys.path`."""
        files = {label: self.files[label] for label in labels}
        names = ((file, label.partition(" (")[0]) for label, file in files.items())
        if not any(self.index.edits_sys_path(file, name) for file, name in names):
            return []
        return in_later_roots(self.searched[0], files)

    def is_package(self, name: str) -> bool:
        """Return whether a dotted name is a package, with `__init__` or without."""
        return self.index.is_package(self.searched, name)

    def is_folder(self, name: str) -> bool:
        """Return whether a dotted name is a package without `__init__`."""
        if name not in self._folders:
            places = (self.index.locate(folders, name) for folders in self.searched)
            self._folders[name] = any(place and not place.file for place in places)
        return self._folders[name]
