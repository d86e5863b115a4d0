"""Write the handwritten digits of scikit-learn as IDX files, in two parts: python make_data.py FOLDER."""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

FEW = 40  # labelled images of the digits 5 to 9 for training and validation


def write_idx(path: Path, values: np.ndarray) -> None:
    """Write uint8 values as an IDX file, with its header: type, number of dimensions, sizes."""
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + values.tobytes(), compresslevel=1, mtime=0))


def main(folder: Path) -> None:
    """Write all images of the digits 0 to 4; and of 5 to 9 a few for training, and the others for testing."""
    folder.mkdir(exist_ok=True)
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    low, high = np.flatnonzero(labels < 5), np.flatnonzero(labels >= 5)
    for stem, rows in {"low": low, "few": high[:FEW], "rest": high[FEW:]}.items():
        write_idx(folder / f"{stem}-images-idx3-ubyte.gz", images[rows])
        write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", labels[rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
