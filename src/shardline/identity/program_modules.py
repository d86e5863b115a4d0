"""The modules of a project as one program sees them: in several lists of folders."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from shardline.identity.code_index import CodeIndex, Folders
from shardline.identity.module_search import in_later_roots
from shardline.identity.outline import Outline


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

    index: CodeIndex
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
            for number, file in self.index.files_of(name, self.searched, self.alone).items():
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
        places = [self.index.locate(folders, name) for folders in self.searched]
        return any(
            place and (not place.file or place.file.name == "__init__.py") for place in places
        )

    def is_folder(self, name: str) -> bool:
        """Return whether a dotted name is a package without `__init__`."""
        if name not in self._folders:
            places = (self.index.locate(folders, name) for folders in self.searched)
            self._folders[name] = any(place and not place.file for place in places)
        return self._folders[name]
