"""Draw rows that are images as small PNG pictures for the report's pages."""

import base64
import math

import numpy as np

from shardline.core.png import COLOR_TYPES, png_bytes, reduced

MAX_SIDE = 64
_MIN_SIDE = 4  # smaller arrays are tables or sequences of numbers
_PALETTE = 3
# Okabe and Ito's colours, which colour-blind readers can distinguish; page.css repeats them in its legend
COLOURS = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167),
)  # fmt: skip
_FILLED = 100  # of 255: how much of the image a class covers


def is_image(feature_shape: tuple[int, ...]) -> bool:
    """Return whether rows of this shape are images: [H, W], [C, H, W] or [H, W, C] with C 1 or 3."""
    channels, height, width = _as_image(np.empty(feature_shape, np.uint8)).shape
    return channels in COLOR_TYPES and min(height, width) >= _MIN_SIDE


def picture(
    row: np.ndarray, bounds: tuple[float, float] = (0.0, 0.0), max_side: int = MAX_SIDE
) -> str:
    """Draw an image as a PNG data URL.

    Args:
        row: Features of one row, of a shape that `is_image` accepts. uint8 values are not scaled.
        bounds: Values of black and white, if the features are not uint8.
        max_side: Largest side in pixels.

    Returns:
        `data:image/png;base64,...`; larger images are reduced by a whole factor.
    """
    image = _as_image(row)
    if image.dtype != np.uint8:
        low, high = bounds
        scaled = (image - low) * (255 / (high - low) if high > low else 0)
        image = np.rint(np.clip(scaled, 0, 255)).astype(np.uint8)
    small = reduced(image, max_side)
    return _url(png_bytes(small.transpose(1, 2, 0), COLOR_TYPES[len(small)]))


def mask_picture(mask: np.ndarray, max_side: int = MAX_SIDE) -> str:
    """Draw a mask as a PNG data URL to lay over its image: translucent colours with solid borders.

    Args:
        mask: Class of each pixel [H, W], integers. Classes up to 0 are transparent; colours repeat after
            `len(COLOURS)` classes.
        max_side: Largest side in pixels; larger masks are reduced by keeping the middle pixel of each block.
    """
    factor = math.ceil(max(mask.shape) / max_side)
    sides = [max(1, side // factor) for side in mask.shape]
    places = [
        np.minimum(np.arange(n) * factor + factor // 2, of - 1)
        for n, of in zip(sides, mask.shape, strict=True)
    ]
    chosen = mask[np.ix_(*places)].astype(np.int64)
    around = np.pad(chosen, 1, mode="edge")
    shifted = (around[:-2, 1:-1], around[2:, 1:-1], around[1:-1, :-2], around[1:-1, 2:])
    is_border = np.any([other != chosen for other in shifted], axis=0)
    drawn = np.where(chosen > 0, 1 + (chosen - 1) % len(COLOURS) + len(COLOURS) * is_border, 0)
    palette = bytes([0, 0, 0, *(2 * [part for colour in COLOURS for part in colour])])
    alpha = bytes([0, *len(COLOURS) * [_FILLED], *len(COLOURS) * [255]])
    chunks = ((b"PLTE", palette), (b"tRNS", alpha))
    return _url(png_bytes(drawn[:, :, None].astype(np.uint8), _PALETTE, chunks))


def _as_image(row: np.ndarray) -> np.ndarray:
    """Return a row as [C, H, W]; with no channels if it is not an image."""
    if row.ndim == 2:
        return row[None]
    if row.ndim == 3:
        return row if row.shape[0] in COLOR_TYPES else np.moveaxis(row, 2, 0)
    return np.empty((0, 0, 0), row.dtype)


def _url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
