"""The modules of a project as a program sees them, each outlined once."""

from collections.abc import Collection, Iterable, Sequence
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


def files_of(
    index: Index, name: str, searched: Sequence[Folders], alone: Folders = ()
) -> dict[int, Path]:
    """Return the files of a dotted name by the number of the list of folders that has it.

    Args:
        index: finds modules.
        name: of the module.
        searched: lists of folders; each has its own file, also if another has the same.
        alone: folders that are searched one by one behind these, for other files.
    """
    found: dict[int, Path] = {}
    for number, folders in enumerate([*searched, *((folder,) for folder in alone)]):
        place = index.locate(folders, name)
        if place and place.file and (number < len(searched) or place.file not in found.values()):
            found[number] = place.file
    return found


@dataclass
class Program:
    """Finds modules in several lists of folders; those of one name all count.

    Attributes:
        index: finds and parses.
        searched: lists of folders; what lies in a later one has its number behind its name.
        alone: import roots that are searched by themselves as well, since code edits `sys.path`
            and may take an earlier one out; only what is found nowhere before counts.
        is_main: whether every module may run as `__main__`.
    """

    index: Index
    searched: list[Folders]
    alone: Folders = ()
    is_main: bool = False
    files: dict[str, Path] = field(default_factory=dict)
    _found: dict[str, dict[str, Outline]] = field(default_factory=dict)
    _folders: dict[str, bool] = field(default_factory=dict)

    def find(self, name: str) -> dict[str, Outline]:
        """Return the modules of a dotted name by label."""
        if name not in self._found:
            self._found[name] = {}
            for number, file in files_of(self.index, name, self.searched, self.alone).items():
                label = f"{name} ({number})" if number else name
                self.files[label] = file
                main = self.is_main or name == "__main__"
                self._found[name][label] = self.index.outline(file, name, is_main=main)
        return self._found[name]

    def edits_sys_path(self, labels: Iterable[str]) -> bool:
        """Return whether one of these modules changes `sys.path` in any way."""
        names = ((self.files[label], label.partition(" (")[0]) for label in labels)
        return any(self.index.edits_sys_path(file, name) for file, name in names)

    def in_later_roots(self, labels: Collection[str]) -> list[str]:
        """Return which of these modules lie in a later import root, if one edits `sys.path`."""
        if not self.edits_sys_path(labels):
            return []
        return in_later_roots(self.searched[0], {label: self.files[label] for label in labels})

    def is_package(self, name: str) -> bool:
        """Return whether a dotted name is a package, with `__init__` or without."""
        return self.index.is_package(self.searched, name)

    def is_folder(self, name: str) -> bool:
        """Return whether a dotted name is a package without `__init__`."""
        if name not in self._folders:
            places = (self.index.locate(folders, name) for folders in self.searched)
            self._folders[name] = any(place and not place.file for place in places)
        return self._folders[name]
