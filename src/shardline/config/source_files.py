"""The files that `datasets.<name>.source.files` means, and the split of each."""

import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from shardline.config.file_patterns import FileSearch
from shardline.config.settings.config import FilesOfSplits
from shardline.core.errors import ConfigError
from shardline.core.found_files import unreadable
from shardline.core.urls import download_path, is_url, without_secrets

# Names of the files that a folder stands for, by type of the source.
_BELOW = {
    kind: (re.compile(pattern, re.IGNORECASE), described)
    for kind, pattern, described in (
        ("hf", r"(?!cache-).*\.arrow|state\.json", "Arrow file"),
        ("image_folder", r".*\.(jpg|jpeg|png)", "JPEG or PNG image"),
        ("litdata", r"chunk-.*\.bin|index\.json", "chunk"),
        ("mds", r".*\.mds(\.\w+)?|index\.json", "MDS file"),
        ("webdataset", r".*\.tar", "tar file"),
    )
}

Known = dict[Path, tuple[str, str]]  # name and SHA-256 of remote files, by their place in the store


def with_paths(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a source's settings with a `path` in each remote entry: by default its URL's last part."""
    files = [
        {"path": PurePosixPath(without_secrets(e["url"])).name, **e}
        if isinstance(e, Mapping)
        else e
        for e in source.get("files", ())
    ]
    return {**source, "files": files} if files else dict(source)


def find_files(
    source: Mapping[str, Any], workdir: Path, downloads: Path, where: str
) -> tuple[list[Path], Known, dict[str, Any]]:
    """Return the files that a source reads: entries in their order, what a pattern matches sorted.

    Args:
        source: the source's settings; remote entries get the `path` that they lack.
        downloads: folder that remote files are fetched to.

    Returns:
        All files, each once, name and digest of the remote ones, and what was found and is not read.

    Raises:
        ConfigError: a name or pattern matches no file, or an entry is incomplete.
        DataError: a file cannot be read, and `on_bad` does not leave it out.
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


def sizes_of_files(
    source: Mapping[str, Any], files: Iterable[Path], downloads: Path, where: str
) -> list[int]:
    """Return the sizes of a source's files in bytes; those of remote ones as its entries have them.

    Args:
        files: what `find_files` found.

    Raises:
        DataError: a file cannot be read.
    """
    entries = [entry for entry in source.get("files", ()) if isinstance(entry, Mapping)]
    known = {_remote_file(entry, downloads, where)[0]: int(entry["bytes"]) for entry in entries}
    try:
        return [known[path] if path in known else path.stat().st_size for path in files]
    except OSError as error:
        raise unreadable(Path(error.filename), error) from None


def find_code_files(patterns: str, workdir: Path, where: str) -> list[Path]:
    """Return the files that a run names in `code_files`: entries in their order, what a pattern matches sorted.

    Raises:
        ConfigError: a name or pattern matches no file.
    """
    found: list[Path] = []
    for pattern in patterns.split():
        files = _match(pattern, workdir)
        if not files:
            raise ConfigError(f"{where}: code_files: {pattern} matches no file; check the path")
        found.extend(files)
    return list(dict.fromkeys(found))


def _remote_file(entry: Mapping[str, Any], downloads: Path, where: str) -> tuple[Path, str]:
    sha256, path = entry["sha256"], PurePosixPath(entry["path"])
    shown = f"{where}.source.files: {without_secrets(entry['url'])}"
    if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        raise ConfigError(
            f"{shown}: sha256={sha256} is not 64 hex digits; take what `shardline digest URL` prints"
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
            "put in what `shardline digest URL` prints"
        )
    names, described = _BELOW.get(kind, (None, ""))
    files = search.matching(pattern)
    if not files and names and folder.is_dir():
        files = search.below(folder, names)
    if not files:
        hint = "matches no file; check the path"
        if folder.is_dir() and names:
            hint = f"holds no {described}; check the path"
        elif folder.is_dir():
            hint = f"is a folder; write {pattern.rstrip('/')}/*"
        elif glob.glob(f"{pattern.rstrip('/')}/", root_dir=search.workdir, recursive=True):  # noqa: PTH207
            each = f"list each of them, or {os.path.dirname(pattern)}"  # noqa: PTH120
            hint = f"matches folders alone; {each if names else f'write {pattern}/*'}"
        raise ConfigError(f"{where}.source.files: {pattern} {hint}")
    return files


def _match(pattern: str, workdir: Path) -> list[Path]:
    if (workdir / pattern).is_file():  # its name may hold what would be a pattern
        return [Path(os.path.normpath(workdir / pattern))]
    # Path.glob refuses absolute patterns
    matches = sorted(glob.glob(pattern, root_dir=workdir, recursive=True))  # noqa: PTH207
    paths = [Path(os.path.normpath(workdir / match)) for match in matches]
    return [path for path in paths if path.is_file()]


def _digits_file() -> Path:
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ConfigError("source type digits needs scikit-learn; install it, or drop the dataset")
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse two files of one name: their rows would have the same ids.

    Raises:
        ConfigError: names the file.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(
                f"{where}.source.files: two files are known as {name}; put them into one folder tree, or give "
                "remote ones a path of their own"
            )
        seen.add(name)


def splits_of_files(
    patterns: FilesOfSplits, files: Sequence[Path], names: Sequence[str], workdir: Path, where: str
) -> dict[str, Any]:
    """Return the split of each file, and the share of the train files' rows that validates.

    A pattern is matched with a file's name below the common folder and with
    its path; `*` matches `/` too.

    Raises:
        ConfigError: a file is in no split or in two, or a pattern matches none.
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
    # `**/` may stand for no folder at all
    forms = {pattern, pattern.replace("**/", "")}
    return any(fnmatchcase(path, form) for path in paths for form in forms)
