"""Draw images with discs and squares, and list their boxes: python make_data.py FOLDER."""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

IMAGES, SIDE = 1000, 64


def draw(generator: np.random.Generator) -> tuple[Image.Image, list[list[float]], list[int]]:
    """Return an image, its boxes (left, top, right and bottom in pixels) and their kinds."""
    image = Image.fromarray(generator.integers(0, 60, (SIDE, SIDE), dtype=np.uint8))
    boxes, kinds = [], []
    for _ in range(generator.integers(0, 5)):
        size = int(generator.integers(8, 21))
        left, top = (int(value) for value in generator.integers(0, SIDE - size, 2))
        box = [left, top, left + size, top + size]
        if any(
            min(box[2], b[2]) > max(left, b[0]) and min(box[3], b[3]) > max(top, b[1])
            for b in boxes
        ):
            continue  # boxes must not overlap
        kind = int(generator.integers(0, 2))
        shape = (ImageDraw.Draw(image).ellipse, ImageDraw.Draw(image).rectangle)[kind]
        shape([left, top, left + size - 1, top + size - 1], fill=int(generator.integers(120, 255)))
        boxes.append(box)
        kinds.append(kind)
    return image, boxes, kinds


def main(folder: Path) -> None:
    """Write PNG files, and boxes.jsonl with a line for each image."""
    generator = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    with (folder / "boxes.jsonl").open("w") as file:
        for number in range(IMAGES):
            image, boxes, kinds = draw(generator)
            name = f"images/{number:04}.png"
            image.save(folder / name)
            file.write(json.dumps({"image": name, "boxes": boxes, "kinds": kinds}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
