"""Files below a folder or behind a pattern, and what lies beside them and is not read."""

import glob
import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from shardline.core.errors import DataError
from shardline.core.found_files import is_hidden, problem_of, shown

# Why a file is not read.
HIDDEN, OTHERS, UNUSABLE, BARREN = (
    "hidden", "of another kind", "cannot be read", "folders without any",
)  # fmt: skip
_LOOP = "is a link to a folder that it lies in, so that it has no end; remove the link"
_SHOWN = 5


@dataclass(kw_only=True)
class FileSearch:
    """A search for the files of one source.

    Attributes:
        workdir: the project's folder.
        where: key of the config, as messages begin.
        may_skip: whether a file that cannot be read is left out, by `on_bad`; None of a source without that setting.
        not_read: what was found and is not read, by the reason.
    """

    workdir: Path
    where: str
    may_skip: bool | None = None
    not_read: dict[str, dict[str, None]] = field(default_factory=dict)

    def matching(self, pattern: str) -> list[Path]:
        """Return the files that a pattern matches, sorted; a file whose name is written out is read in any case.

        Raises:
            DataError: one cannot be read; names it.
        """
        if (self.workdir / pattern).is_file():  # its name may hold what would be a pattern
            return [Path(os.path.normpath(self.workdir / pattern))]
        # to look into .git and .venv, which lie at a project's root, takes long
        hidden = not pattern.startswith("**")
        # Path.glob refuses absolute patterns
        matches = glob.glob(pattern, root_dir=self.workdir, recursive=True, include_hidden=hidden)  # noqa: PTH207
        written = frozenset(PurePath(pattern).parts)
        loops = _Loops(str(self.workdir))
        found = []
        for match in sorted(matches):
            path = os.path.normpath(self.workdir / match)
            if os.path.isdir(path):  # noqa: PTH112
                continue
            if any(is_hidden(part) for part in PurePath(match).parts if not _spells(written, part)):
                self._note(HIDDEN, path)
            elif link := loops.link_above(os.path.dirname(path)):  # noqa: PTH120
                self._leave_out(link, _LOOP)
            elif self._is_usable(path):
                found.append(Path(path))
        return found

    def below(self, folder: Path, wanted: re.Pattern[str]) -> list[Path]:
        """Return the files below a folder whose names are wanted, sorted by path; links to folders are followed.

        Raises:
            DataError: one cannot be read; names it.
        """
        top = os.path.normpath(folder)
        found, barren = self._walk(top, wanted, (os.path.realpath(top),))
        around = {os.path.dirname(os.path.dirname(path)) for path in found}  # noqa: PTH120
        for path in barren:
            if os.path.dirname(path) in around:  # noqa: PTH120
                self._note(BARREN, path)
        return [Path(path) for path in sorted(found) if self._is_usable(path)]

    def _walk(
        self, folder: str, wanted: re.Pattern[str], above: tuple[str, ...]
    ) -> tuple[list[str], list[str]]:
        """Return the wanted files below a folder, and the folders there without any.

        Args:
            above: where the folder, and those that it was reached by, really lie; the folder is last.
        """
        found: list[str] = []
        barren: list[str] = []
        for entry in self._entries(folder):
            if is_hidden(entry.name):
                self._note(HIDDEN, entry.path)
            elif os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():  # noqa: PTH112
                real = f"{above[-1]}{os.sep}{entry.name}"
                real = os.path.realpath(entry.path) if entry.is_symlink() else real
                if real in above:
                    self._leave_out(entry.path, _LOOP)
                    continue
                inside, without = self._walk(entry.path, wanted, (*above, real))
                found += inside
                barren += without if inside else [entry.path]
            elif wanted.fullmatch(entry.name):
                found.append(entry.path)
            else:
                self._note(OTHERS, entry.path)
        return found, barren

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self._leave_out(folder, f"cannot be listed ({error.strerror}); fix its permissions")
            return []

    def _is_usable(self, path: str) -> bool:
        if problem := problem_of(path, self._name(path)):
            self._leave_out(path, problem)
        return not problem

    def _leave_out(self, path: str, problem: str) -> None:
        if not self.may_skip:
            skip = ", or leave such out with source.on_bad: skip" if self.may_skip is False else ""
            raise DataError(f"{self.where}.source.files: {shown(self._name(path))} {problem}{skip}")
        self._note(UNUSABLE, path)

    def _note(self, reason: str, path: str) -> None:
        self.not_read.setdefault(reason, {})[shown(self._name(path))] = None

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self.workdir}{os.sep}")

    def summary(self) -> dict[str, Any]:
        """Return how many files are not read for each reason, and the first of them."""
        return {
            reason: {"count": len(names), "first": [*names][:_SHOWN]}
            for reason, names in self.not_read.items()
        }


def _spells(pattern: frozenset[str], part: str) -> bool:
    """Return whether a pattern's own parts ask for a name: by the name itself, or for all with a dot."""
    return part in pattern or (
        part.startswith(".") and any(one[:1] == "." and one not in (".", "..") for one in pattern)
    )


class _Loops:
    """Which folders were reached by a link to a folder above them."""

    def __init__(self, top: str) -> None:
        self._known: dict[str, str] = {top: "", "": ""}

    def link_above(self, folder: str) -> str:
        """Return the link that a folder was reached by and that leads back; empty where there is none."""
        if folder not in self._known:
            parent = os.path.dirname(folder)  # noqa: PTH120
            found = self.link_above(parent) if parent != folder else ""
            if not found and os.path.islink(folder):  # noqa: PTH114
                real, around = os.path.realpath(folder), os.path.realpath(parent)
                found = folder if f"{around}{os.sep}".startswith(f"{real}{os.sep}") else ""
            self._known[folder] = found
        return self._known[folder]
