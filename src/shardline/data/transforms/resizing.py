"""Cropping and resizing of images with torch's antialiased bilinear filter.

The filter's kernel for bytes computes in integers, so results are bit-identical on all CPUs. It needs
a third of the time of Pillow's resize; values differ by at most 1.
"""

import math

import numpy as np

from shardline.data.transforms.decoding import Encoded

Box = tuple[int, int, int, int]  # top, left, height, width


def resize_crop(image: "np.ndarray | Encoded", box: Box, size: tuple[int, int]) -> np.ndarray:
    """Crop a part of an image and resize it to [*size, channels].

    Args:
        image: Array [height, width, channels] uint8 or float32, or an encoded file. A JPEG is decoded
            at a fraction of its size if the part then still has at least `size` pixels; the edges
            of the part are rounded to these pixels. Rows below the part may not be decoded.
        box: Part of the image: top, left, height, width in pixels.
        size: Height and width of the result in pixels.

    Raises:
        DataError: The file cannot be decoded.
    """
    top, left, height, width = box
    if isinstance(image, Encoded):
        full = image.height, image.width
        factor = min(height / size[0], width / size[1])
        least = [math.ceil(edge / factor) for edge in full] if factor >= 2 else []
        pixels = image.pixels(*least) if least else image.top(top + height)
        if least and pixels.shape[:2] != full:
            (top, height), (left, width) = (
                _scaled(first, count, edge, now)
                for first, count, edge, now in zip(
                    (top, left), (height, width), full, pixels.shape[:2], strict=True
                )
            )
        image = pixels
    return _resize(np.array(image[top : top + height, left : left + width]), size)


def _scaled(first: int, count: int, full: int, now: int) -> tuple[int, int]:
    """Scale the range [first, first + count) of `full` rows to `now` rows; return first row and count."""
    begin = min(round(first * now / full), now - 1)
    end = max(begin + 1, round((first + count) * now / full))
    return begin, min(end, now) - begin


def _resize(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if pixels.shape[:2] == size:
        return pixels
    if size[1] == 1 < size[0] != pixels.shape[0]:
        # without AVX2, torch 2.13 computes a single column wrongly: resize the width first, then two equal columns
        row = _resize(pixels, (pixels.shape[0], 1))
        return _resize(np.repeat(row, 2, axis=1), (size[0], 2))[:, :1]
    import torch  # takes a second, which mere decoding does not need

    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(image, size=size, mode="bilinear", antialias=True)
    result: np.ndarray = resized[0].numpy().transpose(1, 2, 0)  # memory layout stays channels first
    return result
