"""Write a Delta table with two versions: python make_data.py FOLDER."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

ROWS, FEATURES, CLASSES = 16000, 128, 5  # rows of each version


def rows_of(version: int) -> pa.Table:
    """Return vectors of five classes; each class has eight centres, so no plane separates classes."""
    centres = np.random.default_rng(0).normal(0, 0.4, (CLASSES, 8, FEATURES))
    generator = np.random.default_rng([1, version])
    kinds = generator.integers(0, CLASSES, ROWS)
    vectors = centres[kinds, generator.integers(0, 8, ROWS)] + generator.normal(
        size=(ROWS, FEATURES)
    )
    values = pa.array(vectors.astype(np.float32).ravel())
    return pa.table({
        "id": version * ROWS + np.arange(ROWS),
        "vector": pa.FixedSizeListArray.from_arrays(values, FEATURES),
        "kind": [f"kind-{kind}" for kind in kinds],
    })  # fmt: skip


def main(folder: Path) -> None:
    """Write version 0 and append version 1."""
    shutil.rmtree(folder / "table", ignore_errors=True)
    for version in range(2):
        write_deltalake(folder / "table", rows_of(version), mode="append")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
