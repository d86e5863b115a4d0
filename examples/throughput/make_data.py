"""Make photos of ImageNet's size, in one folder per class: python make_data.py FOLDER."""

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES, PHOTOS = 10, 10  # photos of each class; their contents do not matter for throughput


def main(folder: Path) -> None:
    """Write JPEG files of 375 x 500 pixels and about 110 KB, like a typical ImageNet photo."""
    for kind in range(CLASSES):
        place = folder / f"photos/class-{kind}"
        place.mkdir(parents=True, exist_ok=True)
        for number in range(PHOTOS):
            (place / f"{number:03}.jpg").write_bytes(photo(kind * PHOTOS + number))


def photo(number: int) -> bytes:
    """Return a JPEG file of coloured clouds with noise."""
    generator = np.random.default_rng(number)
    colours = Image.fromarray(generator.integers(0, 255, (15, 20, 3), dtype=np.uint8))
    clouds = np.asarray(colours.resize((500, 375), Image.Resampling.BICUBIC), np.float32)
    noisy = clouds + generator.normal(0, 15, (375, 500, 1))
    content = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(content, "jpeg", quality=90)
    return content.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
