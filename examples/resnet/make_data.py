"""Draw photos of shapes, in one folder per class: python make_data.py FOLDER."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

CORNERS = {"disc": 60, "square": 4, "triangle": 3}
PHOTOS = 400  # of each class


def draw(corners: int, generator: np.random.Generator) -> Image.Image:
    """Return a shape of random colour and place on a textured ground, in an image of random size."""
    width, height = (int(side) for side in generator.integers(56, 96, 2))
    colour, base = generator.integers(0, 255, 3), generator.integers(40, 215, 3)
    while abs(colour - base).max() < 100:
        colour = generator.integers(0, 255, 3)
    ground = (base + generator.integers(-40, 40, (6, 6, 3))).astype(np.uint8)
    image = Image.fromarray(ground).resize((width, height), Image.Resampling.BICUBIC)
    radius = min(width, height) * generator.uniform(0.28, 0.42)
    middle = np.array([width, height]) / 2 + generator.uniform(-5, 5, 2)
    turn = generator.uniform(0, 2 * np.pi)
    angles = turn + 2 * np.pi * np.arange(corners) / corners
    points = middle + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    fill = tuple(int(part) for part in colour)
    ImageDraw.Draw(image).polygon([tuple(point) for point in points], fill=fill)
    return image.filter(ImageFilter.GaussianBlur(generator.uniform(0, 1)))


def main(folder: Path) -> None:
    """Write the photos of each class as JPEG."""
    generator = np.random.default_rng(0)
    for name, corners in CORNERS.items():
        (folder / "photos" / name).mkdir(parents=True, exist_ok=True)
        for number in range(PHOTOS):
            draw(corners, generator).save(folder / f"photos/{name}/{number:04}.jpg", quality=85)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
