"""Pixels from the bytes of an image file: JPEG by simplejpeg, all else by Pillow.

docs/decisions/0041-one-image-decoder.md has the measurements.
"""

import io
import struct
from typing import Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from shardline.core.errors import ConfigError, DataError
from shardline.data.transforms.jpeg_header import JpegHeader

try:
    import simplejpeg
except ImportError:  # known where a transform is made
    simplejpeg = None

Mode = Literal["RGB", "L"]
MODES = ("RGB", "L")

_MOST_PIXELS = 2**27  # 400 MB as RGB; a file of some kilobytes may claim more
_ORIENTATION = 0x0112  # EXIF
_NO_IMAGE = (
    OSError, ValueError, SyntaxError, EOFError, LookupError, struct.error, Image.DecompressionBombError,
)  # fmt: skip
_DEEP = ("I", "F")  # 16 or 32 bits a channel, which a conversion to 8 bits would clip
# as libjpeg reports what follows the last row
_REMAINING_ROWS = "extraneous bytes before marker 0xd9"
# how an image is turned upright: transposed, then rows and columns in reverse
_TURNS = {
    2: (False, 1, -1), 3: (False, -1, -1), 4: (False, -1, 1), 5: (True, 1, 1),
    6: (True, 1, -1), 7: (True, -1, -1), 8: (True, -1, 1),
}  # fmt: skip


def check_installed() -> None:
    """Refuse to work without simplejpeg.

    Raises:
        ConfigError: it is not installed.
    """
    if simplejpeg is None:
        raise ConfigError(
            "images are decoded by the package simplejpeg, which is not installed; install the extra `images` "
            "(pip install 'shardline[images]')"
        )


class Encoded:
    """An image file's bytes, of which the header was read.

    Args:
        content: the whole file.
        mode: what is decoded: `RGB`, or `L` for grey. Transparency is dropped.

    Attributes:
        height, width: of the image in pixels, upright as its EXIF orientation has it.

    Raises:
        DataError: it is no image, or one that is not decoded; the message has what is wrong.
    """

    def __init__(self, content: bytes, mode: Mode) -> None:
        self._content, self._mode, self._turn = content, mode, _TURNS.get(1)
        self._is_plain = False  # a JPEG that simplejpeg decodes
        self._segments = JpegHeader()
        try:
            height, width = self._read_header()
        except _NO_IMAGE as error:
            raise self._no_image(error) from None
        if height * width > _MOST_PIXELS:
            raise DataError(
                f"has an image of {width:,} x {height:,} pixels, expected at most {_MOST_PIXELS:,} pixels; scale it "
                "down in the source, or leave the row out"
            )
        self._is_turned = bool(self._turn and self._turn[0])
        self.height, self.width = (width, height) if self._is_turned else (height, width)

    def _read_header(self) -> tuple[int, int]:
        content = self._content
        if content[:3] == b"\xff\xd8\xff":
            height, width, colors, _ = simplejpeg.decode_jpeg_header(content, strict=False)
            self._is_plain = colors in ("YCbCr", "Gray", "RGB")
            self._segments = JpegHeader.of(content)
            if self._segments.is_read and not self._segments.has_exif:
                return height, width
        with Image.open(io.BytesIO(content)) as image:
            if image.mode.startswith(_DEEP):
                raise ValueError(f"more than 8 bits a channel, mode {image.mode}; convert it")
            self._turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
            return image.height, image.width

    def top(self, num_rows: int) -> np.ndarray:
        """Return the image's first rows [at least num_rows, width, channels] uint8, as `pixels` has them.

        Most JPEGs are decoded no further than that: their data are in order from top to bottom, and
        a decoder stops at the height that the header has. Damage below is then not seen.

        Args:
            num_rows: from 1 to `height`.

        Raises:
            DataError: the file is cut off, or damaged in these rows.
        """
        if self._is_plain and not self._turn and self._mode == "RGB":
            shorter = self._segments.shortened(self._content, num_rows + 1, self.height)
            pixels = self._shortened(*shorter) if shorter else None
            if pixels is not None:
                return pixels
        return self.pixels()

    def _shortened(self, content: bytes, height: int) -> np.ndarray | None:
        """Return the pixels of a file whose header was given fewer rows; None of one that seems damaged."""
        pixels = np.empty((height, self.width, 3), np.uint8)
        try:
            simplejpeg.decode_jpeg(content, buffer=pixels)
        except ValueError as error:  # has the first thing that was found: here that data remain
            if _REMAINING_ROWS not in str(error):
                return None
        return pixels

    def pixels(self, min_height: int = 0, min_width: int = 0) -> np.ndarray:
        """Return the image [height, width, channels] uint8.

        Args:
            min_height: a JPEG may be decoded at 1/2 to 1/8 of its size, as small as leaves so
                many rows; 0: at full size.
            min_width: the same of columns.

        Raises:
            DataError: the file is cut off or damaged.
        """
        if self._is_turned:
            min_height, min_width = min_width, min_height
        try:
            pixels = self._by_simplejpeg(min_height, min_width) if self._is_plain else None
            if pixels is None:
                pixels = self._by_pillow()
        except (*_NO_IMAGE, MemoryError) as error:
            raise self._no_image(error) from None
        if self._turn:
            is_transposed, rows, columns = self._turn
            pixels = (pixels.transpose(1, 0, 2) if is_transposed else pixels)[::rows, ::columns]
        return pixels

    def _by_simplejpeg(self, min_height: int, min_width: int) -> np.ndarray | None:
        colors = "GRAY" if self._mode == "L" else "RGB"
        reduce = {"min_height": min_height, "min_width": min_width, "min_factor": 2.0}
        try:
            pixels: np.ndarray = simplejpeg.decode_jpeg(
                self._content, colorspace=colors, **(reduce if min_height else {})
            )
        except ValueError as error:
            # cameras write them; Pillow finds whether all is there
            if "extraneous bytes" in str(error):
                return None
            raise
        return pixels

    def _by_pillow(self) -> np.ndarray:
        with Image.open(io.BytesIO(self._content)) as image:
            pixels = np.asarray(image.convert(self._mode))
        return pixels if pixels.ndim == 3 else pixels[:, :, None]

    def _no_image(self, error: BaseException) -> DataError:
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else str(error)
        if not self._content:
            reason = "no bytes"
        return DataError(
            f"does not decode ({reason}), expected a whole JPEG or PNG image; repair the file, or leave the row out in "
            "the source"
        )
