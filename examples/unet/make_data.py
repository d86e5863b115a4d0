"""Draw images of cells, with a mask for each image: python make_data.py FOLDER."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

IMAGES, SIDE = 400, 48
COLOURS = {1: 150, 2: 110}  # grey of a cell's body and nucleus; the background is about 170


def draw(generator: np.random.Generator) -> tuple[Image.Image, Image.Image]:
    """Return an image and its mask: 0 for background, 1 for a cell's body, 2 for its nucleus."""
    image = Image.new("L", (SIDE, SIDE), int(generator.integers(160, 180)))
    mask = Image.new("L", (SIDE, SIDE))
    for _ in range(generator.integers(1, 5)):
        x, y = generator.uniform(0, SIDE, 2)
        for kind, size in ((1, generator.uniform(6, 12)), (2, generator.uniform(2, 4))):
            wide, high = size * generator.uniform(0.8, 1.2, 2)
            box = (x - wide, y - high, x + wide, y + high)
            grey = COLOURS[kind] + int(generator.integers(-12, 12))
            ImageDraw.Draw(image).ellipse(box, fill=grey)
            ImageDraw.Draw(mask).ellipse(box, fill=kind)
    image = image.filter(ImageFilter.GaussianBlur(1))
    noisy = np.asarray(image) + generator.normal(0, 12, (SIDE, SIDE))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)), mask


def main(folder: Path) -> None:
    """Write the images and masks as PNG."""
    generator = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for number in range(IMAGES):
        for kind, image in zip(("images", "masks"), draw(generator), strict=True):
            image.save(folder / f"{kind}/{number:04}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
