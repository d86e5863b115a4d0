"""A photo's bytes become a random part of it, 224 x 224: what each peer does in its own place for transforms.

The part is drawn as torchvision's `RandomResizedCrop` draws it. Each takes a random generator, which
is seeded alike for all, so that the parts have the same sizes in the mean.
"""

import io
import math
from collections.abc import Callable

import numpy as np
import torch
from benchmarks.samples.task import IMAGE_SIZE
from PIL import Image

Crop = Callable[[bytes, np.random.Generator], np.ndarray]


def box(height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Return a random part of an image: top, left, height, width."""
    low, high = math.log(3 / 4), math.log(4 / 3)
    for _ in range(10):
        area, ratio = height * width * rng.uniform(0.08, 1.0), math.exp(rng.uniform(low, high))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
    edge = min(height, width)
    return (height - edge) // 2, (width - edge) // 2, edge, edge


def by_pillow(content: bytes, rng: np.random.Generator) -> np.ndarray:
    """Decode, crop and resize by Pillow, as the documentation of each peer shows."""
    return crop_image(Image.open(io.BytesIO(content)), rng)


def crop_image(image: Image.Image, rng: np.random.Generator) -> np.ndarray:
    """Crop and resize an image of Pillow's, as torchvision does with one [224, 224, 3] uint8."""
    image = image.convert("RGB")
    top, left, height, width = box(image.height, image.width, rng)
    part = image.crop((left, top, left + width, top + height))
    return np.array(part.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BILINEAR))


def by_simplejpeg(content: bytes, rng: np.random.Generator) -> np.ndarray:
    """Decode by libjpeg-turbo and resize by torch: what is fastest here [224, 224, 3] uint8."""
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(content)
    top, left, height, width = box(*pixels.shape[:2], rng)
    part = np.ascontiguousarray(pixels[top : top + height, left : left + width])
    image = torch.from_numpy(part).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(
        image, size=(IMAGE_SIZE, IMAGE_SIZE), mode="bilinear", antialias=True
    )
    return resized[0].permute(1, 2, 0).contiguous().numpy()


CROPS: dict[str, Crop] = {"pillow": by_pillow, "simplejpeg": by_simplejpeg}


def padded(boxes: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """Return boxes filled up with zeros [B, longest, 4], and their numbers [B]."""
    lengths = [len(of) for of in boxes]
    whole = np.zeros((len(boxes), max(lengths), 4), np.float32)
    for place, of in enumerate(boxes):
        whole[place, : len(of)] = of
    return {"boxes": torch.from_numpy(whole), "lengths": torch.tensor(lengths)}
