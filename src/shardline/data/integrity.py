"""Verification of shards against their checksums before training, once per node."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from filelock import FileLock

from shardline.core.digests import file_blake3
from shardline.core.errors import DataError
from shardline.core.files import write_json
from shardline.core.seals import seal
from shardline.data.shard_map import ShardMap, rebuild_command

Policy = Literal["off", "first", "always"]


class Verifier:
    """Verification of shards against the checksums in the manifest.

    Under `first`, the first rank on a node verifies a shard and leaves a marker in the store with the
    file's size and date. The shard is verified again only if the file changes.

    Args:
        shards: shards of the dataset.
        policy: `off`, `first` or `always` (each time a window reads the shard).
    """

    def __init__(self, shards: ShardMap, policy: Policy) -> None:
        self._shards, self._policy = shards, policy
        self._known: dict[int, dict[str, str | int]] = {}
        self._folder = shards.folder / "verified" / socket.gethostname()

    def check(self, shard: int) -> None:
        """Verify a shard's size and checksum against the manifest.

        Raises:
            DataError: the shard is damaged; names the file and how to rebuild it.
        """
        if self._policy == "always":
            self._digest(shard)
        if self._policy != "first":
            return
        stamp = self._stamp(shard)
        if self._known.get(shard) != stamp:  # not verified yet, or changed since
            self._check_once(shard)
            self._known[shard] = stamp

    def _check_once(self, shard: int) -> None:
        marker = self._folder / self._shards.path(shard).name
        if self._is_marked(shard, marker):
            return
        with locked(marker):
            if self._is_marked(shard, marker):
                return  # another rank was faster
            stamp = self._stamp(shard)
            self._digest(shard)
            with suppress(DataError):  # the store is read-only
                write_json(marker, seal(stamp))

    def _stamp(self, shard: int) -> dict[str, str | int]:
        stamp: dict[str, str | int] = {"blake3": self._shards.manifest.shards[shard].blake3}
        try:
            status = self._shards.path(shard).stat()
        except OSError:
            return stamp  # reading the file raises the error
        return {
            **stamp,
            "bytes": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "inode": status.st_ino,
        }

    def _is_marked(self, shard: int, marker: Path) -> bool:
        try:
            return bool(json.loads(marker.read_bytes()) == seal(self._stamp(shard)))
        except (OSError, ValueError):
            return False

    def _digest(self, shard: int) -> None:
        path = self._shards.path(shard)
        expected = self._shards.manifest.shards[shard].blake3
        try:
            found = file_blake3(path)
        except OSError as error:
            raise self._shards.unreadable(shard, error) from None
        if found != expected:
            raise DataError(
                f"shard {path} is damaged: its BLAKE3 digest is {found[:12]}..., "
                f"expected {expected[:12]}... by its manifest; {rebuild_command(self._shards.manifest)}"
            )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file that only one process needs to write; continue unlocked in a read-only folder.

    Without the lock, several processes do the same work.
    """
    lock = FileLock(path.with_suffix(".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        lock.release()
        with suppress(OSError):
            Path(lock.lock_file).unlink(missing_ok=True)
