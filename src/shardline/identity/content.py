"""Digests of external files, computed once and remembered by path, size and mtime."""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from shardline.errors import DataError


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class FileDigests:
    """A memory of file digests, so that a large source is read once.

    Attributes:
        cache_file: JSON file that keeps the digests between runs.
    """

    cache_file: Path
    _known: dict[str, list[object]] = field(default_factory=dict)
    _dirty: bool = False

    def __post_init__(self) -> None:
        try:
            self._known = json.loads(self.cache_file.read_text())
        except (OSError, ValueError):
            self._known = {}

    def digest(self, path: Path) -> str:
        """Return a file's SHA-256, reading it only if size or mtime changed.

        Raises:
            DataError: the file cannot be read.
        """
        key = str(path.resolve())
        try:
            status = path.stat()
            stamp = [status.st_size, status.st_mtime_ns]
            known = self._known.get(key)
            if known and known[:2] == stamp:
                return str(known[2])
            sha256 = file_sha256(path)
        except OSError as error:
            raise DataError(f"source file {path}: cannot be read ({error.strerror})") from None
        self._known[key] = [*stamp, sha256]
        self._dirty = True
        return sha256

    def digest_all(self, paths: Iterable[Path]) -> dict[str, str]:
        """Return digests keyed by file name and content order, not by folder.

        A source that is moved keeps its identity; one that is renamed, or whose
        bytes change, does not.
        """
        return {f"{i:05d}/{path.name}": self.digest(path) for i, path in enumerate(paths)}

    def save(self) -> None:
        """Write what was learnt; a cache that cannot be written costs time, nothing else."""
        if not self._dirty:
            return
        scratch = self.cache_file.with_suffix(f".{os.getpid()}.tmp")
        try:
            self.cache_file.parent.mkdir(parents=True, exist_ok=True)
            scratch.write_text(json.dumps(self._known))
            scratch.replace(self.cache_file)
        except OSError:
            scratch.unlink(missing_ok=True)
        self._dirty = False
