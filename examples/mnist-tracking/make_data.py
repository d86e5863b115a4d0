"""Draw digits and write them as the four gzip files of MNIST: python make_data.py FOLDER."""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SIDE = 28  # pixels, as in MNIST


def draw(digit: int, generator: np.random.Generator) -> np.ndarray:
    """Return a digit [SIDE, SIDE] uint8, randomly rotated, shifted and blurred, with noise."""
    image = Image.new("L", (SIDE, SIDE))
    font = ImageFont.load_default(size=generator.uniform(17, 25))
    place = tuple(SIDE / 2 + generator.uniform(-4, 4, 2))
    ImageDraw.Draw(image).text(place, str(digit), fill=255, font=font, anchor="mm")
    image = image.rotate(generator.uniform(-30, 30), Image.Resampling.BILINEAR)
    image = image.filter(ImageFilter.GaussianBlur(generator.uniform(0.3, 1.5)))
    noisy = np.asarray(image) + generator.normal(0, 25, (SIDE, SIDE))
    return noisy.clip(0, 255).astype(np.uint8)


def write_idx(path: Path, values: np.ndarray) -> None:
    """Write uint8 values as an IDX file, with its header: type, number of dimensions, sizes."""
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + values.tobytes(), compresslevel=1, mtime=0))


def main(folder: Path) -> None:
    """Write 6,000 digits for training and 1,000 digits for testing."""
    folder.mkdir(exist_ok=True)
    for seed, (stem, number) in enumerate({"train": 6000, "t10k": 1000}.items()):
        generator = np.random.default_rng(seed)
        labels = generator.integers(0, 10, number, dtype=np.uint8)
        images = np.stack([draw(int(label), generator) for label in labels])
        write_idx(folder / f"{stem}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", labels)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
