"""Base class of sources that read files: stable row ids, splits by file, skipped rows."""

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
GROUP = "a group, a whole number or text"  # in messages


class UnusableError(Exception):
    """A value that cannot be used in a row.

    Args:
        found: Text with the value found and the value expected.
        remedy: What the user should do, if there is more to say than "fix it".
    """

    def __init__(self, found: str, remedy: str = "") -> None:
        super().__init__(found)
        self.remedy = remedy


class FileSource(Source):
    """Base class of sources whose rows are in named files.

    Args:
        num_shards: Number of shards in the dataset.
        names: File names in the identity, such as `a/1.csv`. Row ids are made from these
            names, so moved data keeps its splits. Default: paths relative to the common folder.
        splits: The dataset's `splits`, unless they are shares of all rows:
            `{"column": name}`, or `{"files": [split of each file], "validation": share}`; and
            `{"group": column}`.
        on_bad: Whether an unusable row or file stops the build (`fail`), or is skipped and
            counted (`skip`).
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
        """Return the splits [N] of a file's rows, or None unless `splits.files` is set.

        Args:
            index: Index of the file in `files`.
            ids: Ids [N] of the rows.
        """
        if "files" not in self.splits:
            return None
        split, share = self.splits["files"][index], self.splits.get("validation")
        if split == "train" and share is not None:
            return assign_splits(ids, {"train": 1 - share, "validation": share, "test": 0})
        return np.full(len(ids), SPLITS.index(split), dtype=np.int64)

    def leave_out(self, shard: int, found: str, remedy: str = "") -> None:
        """Skip and count an unusable row or file, or fail, as `on_bad` requires.

        Args:
            found: Place of the row, the value found and the value expected.
            remedy: What the user should do, if there is more to say than "fix it".

        Raises:
            DataError: `on_bad` is `fail`. The message contains `found`.
        """
        found = found.replace(f"{Path.cwd()}{os.sep}", "")  # no local folder names in manifests
        if self.on_bad == "fail":
            raise DataError(
                f"{found}; {remedy or 'fix it'}, or leave it out with source.on_bad: skip"
            )
        self.skipped.setdefault(shard, []).append(found)


def batches(
    items: Iterable[Item], size_of: Callable[[Item], int], most: int, most_items: float = math.inf
) -> Iterator[list[Item]]:
    """Yield lists of items. A list ends when its total size or its number of items reaches a limit."""
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
    """Return the id of a text: the first 8 bytes of its BLAKE2b hash, as int64."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)


def group_keys(values: Iterable[Any]) -> np.ndarray:
    """Return the key of each group by its name, a whole number or a text [N] int64.

    A whole number and its text are one group, since the files of a table may differ in the type.
    """
    texts = [str(value) for value in values]
    keys = {text: text_id(text) for text in set(texts)}
    return np.array([keys[text] for text in texts], dtype=np.int64)


def ids_in_file(name: str, positions: np.ndarray) -> np.ndarray:
    """Return ids [N] int64 for rows without an id column.

    The ids do not change when files are added. For two files of 10^9 rows, the
    probability of a shared id is 10^-10.

    Args:
        name: Name of the file in the identity.
        positions: Positions of the rows in the file [N].
    """
    return np.int64(text_id(name)) + positions.astype(np.int64)  # wraps around
