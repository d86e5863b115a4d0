"""PNG files of 8 bits, written and read back without an image library.

Adding Pillow to the training's environment would make every trained run stale.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SMALLEST = 57  # bytes: signature, and three chunks without data
COLOR_TYPES = {1: 0, 3: 2}  # by number of channels: grey, RGB (PNG, third edition, 11.2.1)


def png_bytes(
    image: "np.ndarray", color_type: int, more: Sequence[tuple[bytes, bytes]] = (), level: int = 9
) -> bytes:
    """Return pixels as a PNG file.

    Args:
        image: Pixels [H, W, C] uint8.
        more: Further chunks before the pixels.
        level: Level of compression, 0 to 9.
    """
    import numpy as np

    height, width, _ = image.shape
    lines = image.reshape(height, -1)
    filtered = np.hstack([np.zeros((height, 1), np.uint8), lines])  # each line with filter none
    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    data = (b"IDAT", zlib.compress(filtered.tobytes(), level))
    chunks = ((b"IHDR", header), *more, data, (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(*chunk) for chunk in chunks)


def png_size(png: bytes) -> tuple[int, int]:
    """Return width and height of a PNG file.

    Raises:
        ValueError: The bytes are no PNG file.
    """
    if len(png) < _SMALLEST or not png.startswith(_SIGNATURE):
        raise ValueError("not a PNG file")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def reduced_png(png: bytes, max_side: int, max_pixels: int = 1 << 26) -> bytes:
    """Return an image that `png_bytes` wrote, reduced by a whole factor to a largest side.

    Raises:
        ValueError: The file is no such image.
    """
    import numpy as np

    width, height = png_size(png)
    if max(width, height) <= max_side:
        return png
    channels = {of: number for number, of in COLOR_TYPES.items()}.get(png[25], 0)
    size = int.from_bytes(png[33:37])
    if not channels or png[37:41] != b"IDAT" or width * height > max_pixels:
        raise ValueError("not an image of a training")
    unpacked = zlib.decompressobj()
    pixels = unpacked.decompress(png[41 : 41 + size], height * (width * channels + 1))
    lines = np.frombuffer(pixels, np.uint8).reshape(height, width * channels + 1)[:, 1:]
    image = reduced(lines.reshape(height, width, channels).transpose(2, 0, 1), max_side)
    return png_bytes(image.transpose(1, 2, 0), png[25])


def reduced(image: "np.ndarray", max_side: int) -> "np.ndarray":
    """Return an image [C, H, W] uint8, reduced by a whole factor to a largest side."""
    import numpy as np

    factor = -(-max(image.shape[1:]) // max_side)
    height, width = (max(1, side // factor) for side in image.shape[1:])
    blocks = image[:, : height * factor, : width * factor]
    blocks = blocks.reshape(len(image), height, -1, width, blocks.shape[2] // width)
    means: np.ndarray = blocks.mean(axis=(2, 4)).round().astype(np.uint8)
    return means


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
