"""The parts of a prediction in the store: what each is called, and which are there."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shardline.core.errors import DataError
from shardline_io.order.blocks import count_blocks
from shardline_io.shards import tensors_of

BLOCKS = 16  # of a part
ID, LABEL, OUTPUT, PROBABILITIES = "id", "label", "prediction", "probabilities"
PROBABILITY = "probability"  # of the class, of each flag, and of the class of each token
LENGTHS = ".row_lengths"  # of a column of lists, behind its name: what each row has of them


def count_parts(num_rows: int, batch: int) -> int:
    """Return the parts of a prediction of some rows, `batch` in a forward pass."""
    return -(-count_blocks(num_rows, batch) // BLOCKS)


def part_file(folder: Path, part: int) -> Path:
    """Return the file of a part."""
    return folder / f"part-{part:05d}.safetensors"


def missing_parts(folder: Path, num_rows: int, batch: int) -> tuple[int, ...]:
    """Return the parts that are not there, or are not as they were written."""
    rows = dict(enumerate(rows_of_parts(num_rows, batch)))
    return tuple(part for part in rows if not _is_whole(part_file(folder, part), rows[part]))


def count_rows(folder: Path, parts: int) -> int:
    """Return how many rows a prediction's files hold, by their ids.

    Raises:
        DataError: one cannot be read.
    """
    return sum(len(read_part(part_file(folder, part))[ID]) for part in range(parts))


def rows_of_parts(num_rows: int, batch: int) -> Iterator[int]:
    """Yield the number of rows of each part."""
    blocks = count_blocks(num_rows, batch)
    for first in range(0, blocks, BLOCKS):
        last = min(first + BLOCKS, blocks)
        yield num_rows * last // blocks - num_rows * first // blocks


def _is_whole(path: Path, rows: int) -> bool:
    """Return whether a part has its size by its header, and this many ids."""
    try:
        return len(read_part(path)[ID]) == rows
    except DataError:
        return False


def read_part(path: Path) -> dict[str, np.ndarray]:
    """Map the columns of a part, a safetensors file, by name.

    The data stage, which writes the file of a prediction, has no package that reads these.

    Raises:
        DataError: it cannot be read, or is not as it was written.
    """
    try:
        content = np.memmap(path, np.uint8, "r")
        columns = tensors_of(content)
        if ID not in columns:
            raise ValueError("it has no ids")
        return columns
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{path} cannot be read ({error}), expected a part of a prediction; delete it and predict again"
        ) from None
