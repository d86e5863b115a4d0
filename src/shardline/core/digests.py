"""Digests of files: SHA-256 and BLAKE3, and a cache of them."""

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from shardline.core.files import renamed_when_complete
from shardline.core.found_files import unreadable

_PIECE_BYTES = 1 << 20  # digested while still in the processor's cache
# A file that is written twice within one tick of the file system's clock keeps its times. So a digest
# is cached only if the last change is older than any tick.
_SETTLED_NS = 2_000_000_000


def file_blake3(path: Path) -> str:
    """Return the BLAKE3 digest of a file's bytes, as 64 hex digits (`b3sum` gives the same).

    Raises:
        OSError: the file cannot be read.
    """
    digest, piece = blake3(), bytearray(_PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(piece):
            digest.update(memoryview(piece)[:size])
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class FileDigests:
    """Cache of file digests, so that a large source is read once.

    Attributes:
        cache_file: JSON file with the digests of earlier commands.
    """

    cache_file: Path
    _known: dict[str, list[object]] = field(default_factory=dict)
    _folders: dict[str, str] = field(default_factory=dict)
    _dirty: bool = False

    def __post_init__(self) -> None:
        try:
            known = json.loads(self.cache_file.read_bytes())
        except (OSError, ValueError):
            return
        if isinstance(known, dict):
            self._known = {key: v for key, v in known.items() if isinstance(v, list)}

    def digest(self, path: Path) -> str:
        """Return a file's SHA-256, reading it only if size, mtime or ctime changed.

        Only the system sets the change time (ctime), so a replaced file with the same size and
        date has a later one. Renaming a file or changing its mode sets ctime too; the file is
        then read again, and its digest is the same.

        Raises:
            DataError: the file cannot be read.
        """
        key = self._resolved(path)
        try:
            status = path.stat()
            stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            if (known := self._remembered(key, stamp)) is not None:
                return known
            sha256 = file_sha256(path)
        except OSError as error:
            raise unreadable(path, error) from None
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS:
            self._known[key] = [*stamp, sha256]
            self._dirty = True
        return sha256

    def _remembered(self, key: str, stamp: list[int]) -> str | None:
        """Return the cached digest of a file, if its size and times are the same."""
        *known, sha256 = self._known.get(key, [None])
        return str(sha256) if known == stamp else None

    def digest_all(
        self,
        paths: Sequence[Path],
        *,
        workdir: Path,
        known: Mapping[Path, tuple[str, str]] | None = None,
    ) -> dict[str, str]:
        """Return digests keyed by index in the list and path below the common folder.

        A folder of files that is moved, alone or with its project, keeps its identity. A
        renamed file or subfolder changes the identity, since a source may read a label from it.

        Args:
            paths: absolute paths.
            workdir: the project's folder.
            known: names and digests of files that may not exist yet.
        """
        known = known or {}
        texts = {path: str(path) for path in paths if path not in known}
        inside = {path for path, text in texts.items() if text.startswith(f"{workdir}{os.sep}")}
        bases = {
            flag: os.path.commonpath({os.path.dirname(texts[p]) for p in group})  # noqa: PTH120
            for flag, group in ((True, inside), (False, texts.keys() - inside))
            if group
        }
        found = {}
        for i, path in enumerate(paths):
            if path in known:
                name, sha256 = known[path]
            else:
                base = bases[path in inside].rstrip(os.sep)
                name, sha256 = texts[path][len(base) + 1 :], self.digest(path)
            found[f"{i:05d}/{name}"] = sha256
        return found

    def _resolved(self, path: Path) -> str:
        """Return the same as `Path.resolve`, much faster for the many files of a folder."""
        folder, name = os.path.split(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        whole = f"{self._folders[folder]}{os.sep}{name}"
        return os.path.realpath(whole) if os.path.islink(whole) else whole  # noqa: PTH114

    def save(self) -> None:
        """Write the cache file; an error is ignored, since it only costs time."""
        if not self._dirty:
            return
        with suppress(OSError):
            self.cache_file.parent.mkdir(parents=True, exist_ok=True)
            with renamed_when_complete(self.cache_file) as scratch:
                scratch.write_text(json.dumps(self._known))
        self._dirty = False
