"""What the sources that read files share: stable row ids, splits by file, what is left out."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from shardline.core.errors import DataError
from shardline.data.sources.source import Source
from shardline.data.splits import SPLITS, assign_splits

Item = TypeVar("Item")


class UnusableError(Exception):
    """A value that a row cannot be made of; carries what was found and what was expected.

    Args:
        found: both.
        remedy: what to do, where more is known than to fix it.
    """

    def __init__(self, found: str, remedy: str = "") -> None:
        super().__init__(found)
        self.remedy = remedy


class FileSource(Source):
    """A source whose rows lie in named files.

    Args:
        num_shards: shards that the dataset is cut into.
        names: the files' names in the identity, such as `a/1.csv`; ids are made from
            them, so that data which is moved keeps its splits. Left out, the paths
            below the common folder.
        splits: the dataset's `splits` where they are not shares of all rows:
            `{"column": name}`, or `{"files": [split of each file], "validation": share}`.
        on_bad: whether a row or file that cannot be used ends the build (`fail`) or is
            left out and counted (`skip`).
    """

    def __init__(
        self, *, num_shards: int, names: Sequence[str] = (), splits: Mapping[str, Any] | None = None,
        on_bad: Literal["fail", "skip"] = "fail", **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_shards=num_shards, **arguments)
        self.names = tuple(names) or self._names_below_common_folder()
        self.splits = dict(splits or {})
        self.on_bad = on_bad

    def _names_below_common_folder(self) -> tuple[str, ...]:
        if not self.files:
            return ()
        base = os.path.commonpath([path.absolute().parent for path in self.files])
        return tuple(str(path.absolute().relative_to(base)) for path in self.files)

    def splits_of_file(self, index: int, ids: np.ndarray) -> np.ndarray | None:
        """Return the splits [N] of a file's rows where they go by file, None where they do not.

        Args:
            index: the file's place in `files`.
            ids: ids [N] of the rows.
        """
        if "files" not in self.splits:
            return None
        split, share = self.splits["files"][index], self.splits.get("validation")
        if split == "train" and share is not None:
            return assign_splits(ids, {"train": 1 - share, "validation": share, "test": 0})
        return np.full(len(ids), SPLITS.index(split), dtype=np.int64)

    def leave_out(self, shard: int, found: str, remedy: str = "") -> None:
        """Count a row or file that cannot be used.

        Args:
            found: where it stands, what was found and what was expected.
            remedy: what to do, where more is known than to fix it.

        Raises:
            DataError: `on_bad` is `fail`; carries `found`.
        """
        found = found.replace(f"{Path.cwd()}{os.sep}", "")  # a manifest tells no machine's folders
        if self.on_bad == "fail":
            raise DataError(
                f"{found}; {remedy or 'fix it'}, or leave such out with source.on_bad: skip"
            )
        self.skipped.setdefault(shard, []).append(found)


def batches(
    items: Iterable[Item], size_of: Callable[[Item], int], most: int, most_items: float = math.inf
) -> Iterator[list[Item]]:
    """Yield items, each time as many as reach a size together, or a number."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= most or len(batch) >= most_items:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def text_id(text: str) -> int:
    """Return the id of a text: the first 8 bytes of its BLAKE2b, as int64."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)


def ids_in_file(name: str, positions: np.ndarray) -> np.ndarray:
    """Return ids [N] int64 of rows that have none of their own.

    They stay the same when files are added. Two files of 10^9 rows share an id
    with a chance of 10^-10.

    Args:
        name: the file's name in the identity.
        positions: places of the rows in the file [N].
    """
    return np.int64(text_id(name)) + positions.astype(np.int64)  # wraps around
