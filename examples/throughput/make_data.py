"""Make images of ImageNet's shape in a folder per class: python make_data.py FOLDER."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES, PHOTOS = 4, 40  # of each class; throughput does not depend on what is on them


def main(folder: Path) -> None:
    """Write JPEG files of 400 x 500 pixels, as large as a usual photo of ImageNet."""
    generator = np.random.default_rng(0)
    for kind in range(CLASSES):
        place = folder / "photos" / f"class-{kind}"
        place.mkdir(parents=True, exist_ok=True)
        for number in range(PHOTOS):
            colours = generator.integers(0, 255, (20, 25, 3), dtype=np.uint8)
            photo = Image.fromarray(colours).resize((500, 400), Image.Resampling.BICUBIC)
            photo.save(place / f"{number:03}.jpg", quality=90)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
