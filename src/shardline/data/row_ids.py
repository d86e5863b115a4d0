"""Check that row ids are unique over all shards of a dataset, when the dataset is sealed.

The ids within one shard are checked when its rows are read.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shardline.core.errors import DataError
from shardline.data.shard_format import ShardLayout, shard_path
from shardline.records.datasets import Manifest
from shardline_io.column_names import IDS

_AT_A_TIME = 1 << 25  # ids in memory: 256 MB
_BLOCK = 1 << 20
# Fibonacci hashing spreads consecutive numbers evenly (Knuth, The Art of Computer Programming, 6.4)
_FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(40)


def check_row_ids(manifest: Manifest, folder: Path) -> None:
    """Check that no row id occurs in two shards.

    Needs 8 bytes of memory per row, for at most `_AT_A_TIME` rows. Ids of larger datasets are grouped
    by a hash, and all shards are read once per group.

    Args:
        manifest: manifest before it is sealed.
        folder: folder of the shards in the store.

    Raises:
        DataError: an id occurs twice, or a shard cannot be read; names id and shards.
    """
    num_rows = sum(sum(record.rows.values()) for record in manifest.shards)
    num_groups = -(-num_rows // _AT_A_TIME)
    for group in range(num_groups):
        # no variable for a group's ids, so that they are freed before the next group is read
        twice = _first_twice(_ids_of_group(manifest, folder, group, num_groups, num_rows))
        if twice is not None:
            raise _stands_twice(manifest, folder, twice)


def _ids_of_group(
    manifest: Manifest, folder: Path, group: int, num_groups: int, num_rows: int
) -> np.ndarray:
    """Return the ids [n] int64 of all shards whose hash belongs to a group."""
    # hashes fill the groups almost evenly; a tenth more is enough for the largest
    found = np.empty(num_rows if num_groups == 1 else num_rows // num_groups * 11 // 10, np.int64)
    filled = 0
    for _, ids in _ids_by_shard(manifest, folder):
        if num_groups > 1:
            hashes = ids.view(np.uint64) * _FACTOR >> _SHIFT
            ids = ids[hashes % np.uint64(num_groups) == group]
        if filled + len(ids) > len(found):
            found = np.concatenate([found[:filled], np.empty(filled + len(ids), np.int64)])
        found[filled : filled + len(ids)] = ids
        filled += len(ids)
    return found[:filled]


def _first_twice(ids: np.ndarray) -> np.int64 | None:
    """Return the smallest duplicate of ids [n], else None; sorts the ids in place."""
    ids.sort()
    for first in range(0, len(ids), _BLOCK):
        block = ids[first : first + _BLOCK + 1]
        twice = np.flatnonzero(block[1:] == block[:-1])
        if len(twice):
            return np.int64(block[twice[0]])
    return None


def _ids_by_shard(manifest: Manifest, folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each shard's name and ids [N] int64."""
    for record in manifest.shards:
        num_rows = sum(record.rows.values())
        layout = ShardLayout.of_shard(manifest.schema, record)
        path, reason = shard_path(folder, record.file), "it ends too early"
        ids = np.empty(0, np.int64)
        try:
            ids = np.fromfile(path, np.int64, num_rows, offset=layout.offsets[IDS])
        except OSError as error:
            reason = str(error.strerror)
        if len(ids) < num_rows:
            raise DataError(
                f"shard {path} cannot be read ({reason}), expected the file that its part describes; delete the "
                "dataset's folder `parts` in the store and run the pipeline again"
            )
        yield record.file, ids


def _stands_twice(manifest: Manifest, folder: Path, row_id: np.int64) -> DataError:
    files = [name for name, ids in _ids_by_shard(manifest, folder) if row_id in ids]
    return DataError(
        f"dataset {manifest.dataset}: row id {row_id} is in {' and in '.join(files[:2])}, expected each id "
        "once since it decides the row's split; number the rows in the source, or remove source.id_column"
    )
