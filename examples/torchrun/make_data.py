"""Write digits as a table: python make_data.py FOLDER."""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def main(folder: Path) -> None:
    """Write the 1,797 digits of 8 x 8 pixels that come with scikit-learn."""
    folder.mkdir(exist_ok=True)
    digits = load_digits()
    names = ",".join([*(f"p{pixel:02}" for pixel in range(64)), "digit"])
    table = np.column_stack([digits.data.astype(int), digits.target])
    np.savetxt(folder / "digits.csv", table, fmt="%d", delimiter=",", header=names, comments="")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
