"""Images of torch datasets: as arrays of pixels, or as PNG files if sizes or modes differ."""

import io
from typing import Any

import numpy as np
from PIL import Image

from shardline.core.errors import DataError

_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}  # modes of images that are stored as arrays
_IN_PNG = (*_CHANNELS, "1", "LA", "P", "I;16", "I")


def pixels(image: Image.Image) -> np.ndarray:
    """Return an image as an array uint8 [height, width, channels], or the bytes of a file if it cannot be one."""
    if image.mode not in _CHANNELS:
        return np.frombuffer(png(image), np.uint8)
    found = np.asarray(image)
    return found if found.ndim == 3 else found[:, :, None]


def png(image: Image.Image) -> bytes:
    """Return an image as a PNG file.

    Raises:
        DataError: the format has no such mode.
    """
    if image.mode not in _IN_PNG:
        raise DataError(
            f"an image of mode {image.mode}, expected one of {', '.join(_IN_PNG)}; convert it in the class with "
            '.convert("RGB")'
        )
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def size_of_image(image: Image.Image) -> tuple[int, int, int] | None:
    """Return height, width and channels of an image that can be stored as an array, else None."""
    channels = _CHANNELS.get(image.mode)
    return (image.height, image.width, channels) if channels else None


def image_of(value: Any) -> Image.Image:
    """Return an image from its stored form.

    Raises:
        DataError: the value is no image.
    """
    if isinstance(value, bytes):
        image = Image.open(io.BytesIO(value))
        image.load()
        return image
    if value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] not in _CHANNELS.values():
        raise DataError(
            f"an array {value.dtype} {list(value.shape)}, expected pixels uint8 [height, width, 1, 3 or 4] to make an "
            "image for the dataset's own transform; drop `normalize` from data.transform"
        )
    return Image.fromarray(value[:, :, 0] if value.shape[2] == 1 else value)
