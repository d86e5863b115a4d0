"""Write a table in partitions, one Parquet file each: python make_data.py FOLDER."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PARTITIONS, ROWS, FEATURES = 16, 8000, 16


def partition(number: int) -> pa.Table:
    """Return the rows of a partition, whose labels depend on a sum and on products of features."""
    generator = np.random.default_rng(number)
    values = generator.normal(size=(ROWS, FEATURES)).astype(np.float32)
    products = (values[:, 0:8:2] * values[:, 1:8:2]).sum(axis=1)
    score = values[:, 8:].sum(axis=1) / 2 + products + generator.normal(0, 0.3, ROWS)
    columns = {f"x{index}": values[:, index] for index in range(FEATURES)}
    row = number * ROWS + np.arange(ROWS)
    return pa.table({"row": row, **columns, "label": (score > 0).astype(np.int64)})


def main(folder: Path) -> None:
    """Write all partitions."""
    folder.mkdir(exist_ok=True)
    for number in range(PARTITIONS):
        pq.write_table(partition(number), folder / f"part-{number:02}.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
