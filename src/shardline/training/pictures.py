"""Rows that are images, as small PNG pictures that a page can hold."""

import base64
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_SIDE = 64
_MIN_SIDE = 4  # less is a table or a sequence of numbers
_COLOR_TYPES = {1: 0, 3: 2}  # by number of channels: grey, RGB (PNG, third edition, 11.2.1)


def is_image(feature_shape: tuple[int, ...]) -> bool:
    """Return whether a row of this shape is an image: [H, W], [C, H, W] or [H, W, C], C 1 or 3."""
    channels, height, width = _as_image(np.empty(feature_shape, np.uint8)).shape
    return channels in _COLOR_TYPES and min(height, width) >= _MIN_SIDE


def picture(row: np.ndarray, statistics: Mapping[str, Any]) -> str:
    """Draw an image as a PNG data URL.

    Args:
        row: One row's features, of a shape that `is_image` accepts. Values of uint8 are shown as
            they are; others are scaled so that black and white are the least and the greatest
            value of the train split.
        statistics: The manifest's `statistics.features`.

    Returns:
        `data:image/png;base64,...` of at most 64 pixels a side: larger images are reduced by a
        whole factor, small ones stay as they are.
    """
    image = _as_image(row)
    if image.dtype != np.uint8:
        low, high = np.min(statistics["min"]), np.max(statistics["max"])
        scaled = (image - low) * (255 / (high - low) if high > low else 0)
        image = np.rint(np.clip(scaled, 0, 255)).astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(_png(_reduced(image))).decode()


def _as_image(row: np.ndarray) -> np.ndarray:
    """Return a row as [C, H, W]; of no channel where it is no image."""
    if row.ndim == 2:
        return row[None]
    if row.ndim == 3:
        return row if row.shape[0] in _COLOR_TYPES else np.moveaxis(row, 2, 0)
    return np.empty((0, 0, 0), row.dtype)


def _reduced(image: np.ndarray) -> np.ndarray:
    factor = math.ceil(max(image.shape[1:]) / MAX_SIDE)
    height, width = (max(1, side // factor) for side in image.shape[1:])
    blocks = image[:, : height * factor, : width * factor]
    blocks = blocks.reshape(len(image), height, -1, width, blocks.shape[2] // width)
    reduced: np.ndarray = blocks.mean(axis=(2, 4)).round().astype(np.uint8)
    return reduced


def _png(image: np.ndarray) -> bytes:
    # Not by Pillow: with it in the training's environment every trained run would be stale.
    channels, height, width = image.shape
    lines = image.transpose(1, 2, 0).reshape(height, -1)
    filtered = np.hstack([np.zeros((height, 1), np.uint8), lines])  # each line with filter none
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
