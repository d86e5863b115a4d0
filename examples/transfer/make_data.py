"""Write the handwritten digits of scikit-learn as IDX files, with two kinds of labels: python make_data.py FOLDER."""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

MANY, FEW = 1200, 60  # images of the first task; of the second task, for training and validation
LOOPS = np.array([1, 0, 0, 0, 0, 0, 1, 0, 2, 1], dtype=np.uint8)  # closed loops of each digit


def write_idx(path: Path, values: np.ndarray) -> None:
    """Write uint8 values as an IDX file, with its header: type, number of dimensions, sizes."""
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + values.tobytes(), compresslevel=1, mtime=0))


def main(folder: Path) -> None:
    """Write 1,200 images with their digits, and the other 597 images with their loops."""
    folder.mkdir(exist_ok=True)
    found = load_digits()
    images, digits = found.images.astype(np.uint8), found.target
    parts = {
        "digits": (slice(None, MANY), digits),
        "few-loops": (slice(MANY, MANY + FEW), LOOPS[digits]),
        "test-loops": (slice(MANY + FEW, None), LOOPS[digits]),
    }
    for stem, (rows, labels) in parts.items():
        write_idx(folder / f"{stem}-images-idx3-ubyte.gz", images[rows])
        write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", labels[rows].astype(np.uint8))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
