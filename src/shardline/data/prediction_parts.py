"""Parts of a prediction in the store: their files, sizes and columns."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shardline.core.errors import DataError
from shardline_io.order.blocks import count_blocks
from shardline_io.shards import tensors_of

BLOCKS = 16  # blocks in a part
ID, LABEL, OUTPUT, PROBABILITIES = "id", "label", "prediction", "probabilities"
PROBABILITY = "probability"  # of the class, of each flag, or of each token's class
LENGTHS = ".row_lengths"  # suffix of a column of lists, for the number of values in each row


def count_parts(num_rows: int, batch: int) -> int:
    """Return the number of parts in a prediction of some rows, with `batch` rows per forward pass."""
    return -(-count_blocks(num_rows, batch) // BLOCKS)


def part_file(folder: Path, part: int) -> Path:
    """Return the file of a part."""
    return folder / f"part-{part:05d}.safetensors"


def missing_parts(folder: Path, num_rows: int, batch: int) -> tuple[int, ...]:
    """Return the parts that are missing or damaged."""
    rows = dict(enumerate(rows_of_parts(num_rows, batch)))
    return tuple(part for part in rows if not _is_whole(part_file(folder, part), rows[part]))


def count_rows(folder: Path, parts: int) -> int:
    """Return the number of rows in a prediction's files, by their ids.

    Raises:
        DataError: a part cannot be read.
    """
    return sum(len(read_part(part_file(folder, part))[ID]) for part in range(parts))


def rows_of_parts(num_rows: int, batch: int) -> Iterator[int]:
    """Yield the number of rows in each part."""
    blocks = count_blocks(num_rows, batch)
    for first in range(0, blocks, BLOCKS):
        last = min(first + BLOCKS, blocks)
        yield num_rows * last // blocks - num_rows * first // blocks


def _is_whole(path: Path, rows: int) -> bool:
    """Return whether a part matches its header and has this many ids."""
    try:
        return len(read_part(path)[ID]) == rows
    except DataError:
        return False


def read_part(path: Path) -> dict[str, np.ndarray]:
    """Map the columns of a part, by name.

    A part is a safetensors file. The data stage, which reads parts, lacks the package safetensors.

    Raises:
        DataError: the file cannot be read or is damaged.
    """
    try:
        content = np.memmap(path, np.uint8, "r")
        columns = tensors_of(content)
        if ID not in columns:
            raise ValueError("it has no ids")
        return columns
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{path} cannot be read ({error}), expected a part of a prediction; delete the file and predict again"
        ) from None
