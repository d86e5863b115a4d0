"""Files of a source: patterns and folders, splits, what is not read, and the number of shards."""

import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from shardline.config.settings import Plain
from shardline.config.settings.config import FilesOfSplits
from shardline.core.errors import ConfigError, DataError
from shardline.core.found_files import (
    BARREN,
    HIDDEN,
    OTHER_CASE,
    OTHERS,
    UNUSABLE,
    NotRead,
    is_hidden,
    problem_of,
    shown,
    unreadable,
)  # fmt: skip
from shardline.core.urls import download_path, is_url, without_secrets

_LOOP = "is a link to a folder above it, which is an endless loop; remove the link"
_SHOWN = 5


@dataclass(kw_only=True)
class FileSearch:
    """A search for the files of one source.

    Attributes:
        workdir: Folder of the project.
        where: Key of the config, the start of messages.
        may_skip: Whether `on_bad` skips unreadable files; None for a source without that setting.
        not_read: Files that were found but are not read, by reason.
    """

    workdir: Path
    where: str
    may_skip: bool | None = None
    not_read: dict[str, dict[str, None]] = field(default_factory=dict)

    def matching(self, pattern: str) -> list[Path]:
        """Return the files that a pattern matches, sorted. An exact name also finds hidden files.

        Raises:
            DataError: A file cannot be read.
        """
        if (self.workdir / pattern).is_file():  # its name may hold what would be a pattern
            path = os.path.normpath(self.workdir / pattern)
            return [Path(path)] if self._is_usable(path) else []
        # searching .git and .venv, in the root of a project, takes long
        hidden = not pattern.startswith("**")
        # Path.glob refuses absolute patterns
        matches = glob.glob(  # noqa: PTH207
            in_any_case(pattern), root_dir=self.workdir, recursive=True, include_hidden=hidden
        )
        name = os.path.basename(pattern)  # noqa: PTH119
        written = frozenset(PurePath(pattern).parts)
        loops = _Loops(str(self.workdir))
        found = []
        for match in sorted(matches):
            path = os.path.normpath(self.workdir / match)
            if os.path.isdir(path):  # noqa: PTH112
                continue
            if any(is_hidden(part) for part in PurePath(match).parts if not _spells(written, part)):
                self._note(HIDDEN, path)
            elif name not in ("", "**") and not fnmatchcase(os.path.basename(path), name):  # noqa: PTH119
                self._note(OTHER_CASE, path)
            elif link := loops.link_above(os.path.dirname(path)):  # noqa: PTH120
                self._leave_out(link, _LOOP)
            elif self._is_usable(path):
                found.append(Path(path))
        return found

    def below(self, folder: Path, wanted: re.Pattern[str]) -> list[Path]:
        """Return the files below a folder with matching names, sorted by path; follow links to folders.

        Raises:
            DataError: A file cannot be read.
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
        """Return the matching files below a folder, and the folders without any.

        Args:
            above: Real paths of the folders above, and of this folder as the last.
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
            elif (
                "." not in entry.name and entry.is_symlink() and problem_of(entry.path, entry.name)
            ):
                self._is_usable(entry.path)  # as a folder of a class may be
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

    def summary(self) -> NotRead:
        """Return the number and first names of the files that are not read, by reason."""
        return {
            reason: {"count": len(names), "first": [*names][:_SHOWN]}
            for reason, names in self.not_read.items()
        }


def in_any_case(pattern: str) -> str:
    """Return a pattern that also matches names whose ending has other capitals, such as `*.PNG` for `*.png`."""
    start, mark, ending = pattern.rpartition("*")
    if not ending.startswith(".") or set(ending) & set("/?["):
        return pattern
    letters = (f"[{c.lower()}{c.upper()}]" if c.isascii() and c.isalpha() else c for c in ending)
    return f"{start}{mark}{''.join(letters)}"


def _spells(pattern: frozenset[str], part: str) -> bool:
    """Return whether a pattern includes a hidden name: by the name itself, or all names with a dot."""
    return part in pattern or (
        part.startswith(".") and any(one[:1] == "." and one not in (".", "..") for one in pattern)
    )


class _Loops:
    """Detection of links that lead to a folder above them."""

    def __init__(self, top: str) -> None:
        self._known: dict[str, str] = {top: "", "": ""}

    def link_above(self, folder: str) -> str:
        """Return the link in the path of a folder that leads back up; empty if there is none."""
        if folder not in self._known:
            parent = os.path.dirname(folder)  # noqa: PTH120
            found = self.link_above(parent) if parent != folder else ""
            if not found and os.path.islink(folder):  # noqa: PTH114
                real, around = os.path.realpath(folder), os.path.realpath(parent)
                found = folder if f"{around}{os.sep}".startswith(f"{real}{os.sep}") else ""
            self._known[folder] = found
        return self._known[folder]


# Names of the files to read in a folder, by type of the source.
_BELOW = {
    kind: (re.compile(pattern, re.IGNORECASE | re.DOTALL), described)
    for kind, pattern, described in (
        ("hf", r"(?!cache-).*\.arrow|state\.json", "Arrow file"),
        ("image_folder", r".*\.(jpg|jpeg|png)", "JPEG or PNG image"),
        ("litdata", r"chunk-.*\.bin|index\.json", "chunk"),
        ("mds", r".*\.mds(\.\w+)?|index\.json", "MDS file"),
        ("webdataset", r".*\.tar", "tar file"),
    )
}

Known = dict[Path, tuple[str, str]]  # name and SHA-256 of remote files, by path in the store


def with_paths(source: Plain) -> dict[str, Any]:
    """Return the settings of a source with a `path` in each remote entry: by default the end of the URL."""
    files = [
        {"path": PurePosixPath(without_secrets(e["url"])).name, **e}
        if isinstance(e, Mapping)
        else e
        for e in source.get("files", ())
    ]
    return {**source, "files": files} if files else dict(source)


def find_files(
    source: Plain, workdir: Path, downloads: Path, where: str
) -> tuple[list[Path], Known, NotRead]:
    """Return the files of a source in the order of entries; the matches of a pattern are sorted.

    Args:
        source: Settings of the source; each remote entry has a `path`.
        downloads: Folder for downloads of remote files.

    Returns:
        All files without duplicates, name and digest of remote files, and files that are not read.

    Raises:
        ConfigError: A name or pattern matches no file, or an entry is incomplete.
        DataError: A file cannot be read, and `on_bad` does not skip it.
    """
    if source["type"] == "digits":
        return [_digits_file()], {}, {}
    may_skip = source["on_bad"] == "skip" if "on_bad" in source else None
    search = FileSearch(workdir=workdir, where=where, may_skip=may_skip)
    found: list[Path] = []
    known: Known = {}
    for entry in source.get("files", ()):
        if isinstance(entry, Mapping):
            path, name = _remote_file(entry, downloads, where)
            known[path] = name, entry["sha256"]
            found.append(path)
        else:
            found.extend(_local_files(entry, search, source["type"]))
    return list(dict.fromkeys(found)), known, search.summary()


def sizes_of_files(source: Plain, files: Iterable[Path], downloads: Path, where: str) -> list[int]:
    """Return the sizes of the files of a source in bytes; for remote files from their entries.

    Args:
        files: Files from `find_files`.

    Raises:
        DataError: A file cannot be read.
    """
    entries = [entry for entry in source.get("files", ()) if isinstance(entry, Mapping)]
    known = {_remote_file(entry, downloads, where)[0]: int(entry["bytes"]) for entry in entries}
    try:
        return [known[path] if path in known else path.stat().st_size for path in files]
    except OSError as error:
        raise unreadable(Path(error.filename), error) from None


def _remote_file(entry: Plain, downloads: Path, where: str) -> tuple[Path, str]:
    sha256, path = entry["sha256"], PurePosixPath(entry["path"])
    shown = f"{where}.source.files: {without_secrets(entry['url'])}"
    if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        raise ConfigError(
            f"{shown}: sha256={sha256} is not 64 hex digits; use the value that `shardline digest URL` prints"
        )
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ConfigError(
            f'{shown}: path="{path}" is not a path below a folder; give one such as data/{path.name or "a.csv"}'
        )
    return download_path(downloads, sha256, str(path)), str(path)


def _local_files(pattern: str, search: FileSearch, kind: str) -> list[Path]:
    where, folder = search.where, search.workdir / pattern
    if is_url(pattern):
        raise ConfigError(
            f"{where}.source.files: {without_secrets(pattern)} is a URL without size and digest; "
            "use the entry that `shardline digest URL` prints"
        )
    names, described = _BELOW.get(kind, (None, ""))
    files = search.matching(pattern)
    if not files and names and folder.is_dir():
        files = search.below(folder, names)
    if not files:
        hint = "matches no file; check the path"
        if others := search.not_read.get(OTHER_CASE):
            hint = f"matches no file; {next(iter(others))} has other capitals in its ending, so correct the pattern"
        if folder.is_dir() and names:
            hint = f"contains no {described}; check the path"
        elif folder.is_dir():
            hint = f"is a folder; write {pattern.rstrip('/')}/*"
        elif glob.glob(f"{pattern.rstrip('/')}/", root_dir=search.workdir, recursive=True):  # noqa: PTH207
            if os.path.basename(pattern) == "**" and not names:  # noqa: PTH119
                raise ConfigError(
                    f"{where}.source.files: {pattern} contains no file, expected files whose names do not begin with a "
                    "dot; check the path, or leave the pattern out until the files exist"
                )
            each = f"list each of them, or {os.path.dirname(pattern)}"  # noqa: PTH120
            hint = f"matches folders alone; {each if names else f'write {pattern}/*'}"
        raise ConfigError(f"{where}.source.files: {pattern} {hint}")
    return files


def _digits_file() -> Path:
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ConfigError("source type digits needs scikit-learn; install it, or drop the dataset")
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"


def check_names(names: Sequence[str], where: str) -> None:
    """Reject two files with the same name, since their rows would have the same ids.

    Raises:
        ConfigError: Two files have the same name.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(
                f"{where}.source.files: two files have the name {name}; put them into one folder tree, or give "
                "remote files a different path"
            )
        seen.add(name)


def splits_of_files(
    patterns: FilesOfSplits, files: Sequence[Path], names: Sequence[str], workdir: Path, where: str
) -> dict[str, Any]:
    """Return the split of each file, and the share of the rows of train files for validation.

    A pattern is matched with the name of a file below the common folder and with its path; `*`
    also matches `/`.

    Raises:
        ConfigError: A file is in no split or in two splits, or a pattern matches no file.
    """
    share = patterns.validation
    given = {"train": patterns.train, "validation": share, "test": patterns.test}
    listed = {split: one for split, one in given.items() if isinstance(one, list)}
    found = []
    for path, name in zip(files, names, strict=True):
        paths = (name, os.path.relpath(path, workdir), str(path))
        splits = [s for s, listing in listed.items() if any(_fits(paths, p) for p in listing)]
        if len(splits) != 1:
            problem = f"is in both {' and '.join(splits)}" if splits else "is in no split"
            raise ConfigError(
                f"{where}.splits.files: {name} {problem}; change the patterns so that it is in one"
            )
        found += splits
    for split in listed:
        if split not in found:
            raise ConfigError(
                f"{where}.splits.files.{split}: {listed[split]} matches none of source.files; check the pattern"
            )
    return {"files": found, **({} if isinstance(share, list) else {"validation": share})}


def _fits(paths: Sequence[str], pattern: str) -> bool:
    # `**/` also matches no folder
    forms = {pattern, pattern.replace("**/", "")}
    return any(fnmatchcase(path, form) for path in paths for form in forms)
