"""Decoding of image files: JPEG with simplejpeg, other formats with Pillow.

docs/decisions/0041-one-image-decoder.md has the measurements.
"""

import io
import struct
from typing import Literal

import numpy as np

from shardline.core.errors import ConfigError, DataError
from shardline.data.transforms.jpeg_header import JpegHeader

try:
    import simplejpeg
    from PIL import Image, UnidentifiedImageError
except ImportError:  # reported by `check_installed`
    simplejpeg = None

Mode = Literal["RGB", "L"]
MODES = ("RGB", "L")

_MOST_PIXELS = 2**27  # 400 MB as RGB; the header of a small file may claim more
_ORIENTATION = 0x0112  # EXIF
_NO_IMAGE = (
    OSError, ValueError, SyntaxError, EOFError, LookupError, struct.error,
    *((Image.DecompressionBombError,) if simplejpeg else ()),
)  # fmt: skip
_DEEP = ("I", "F")  # 16 or 32 bits a channel, which a conversion to 8 bits would clip
# libjpeg's message for data after the last row
_REMAINING_ROWS = "extraneous bytes before marker 0xd9"
# by EXIF orientation: whether to transpose, then the steps of rows and columns
_TURNS = {
    2: (False, 1, -1), 3: (False, -1, -1), 4: (False, -1, 1), 5: (True, 1, 1),
    6: (True, 1, -1), 7: (True, -1, -1), 8: (True, -1, 1),
}  # fmt: skip


def check_installed() -> None:
    """Check that simplejpeg is installed.

    Raises:
        ConfigError: The package simplejpeg is not installed.
    """
    if simplejpeg is None:
        raise ConfigError(
            "decoding images needs the package simplejpeg, which is not installed; "
            "run pip install 'shardline[images]'"
        )


class Encoded:
    """An encoded image file whose header has been read.

    Args:
        content: Bytes of the file.
        mode: Mode to decode to: `RGB`, or `L` for grey. Transparency is dropped.

    Attributes:
        height, width: Size of the image in pixels, after it is turned upright by its EXIF orientation.

    Raises:
        DataError: The file is not an image, or cannot be decoded. The message has the reason.
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
                "down in the source, or remove the row"
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
        """Return the first rows of the image [at least num_rows, width, channels] uint8, equal to `pixels`.

        For most JPEGs, only these rows are decoded: the data are ordered from top to bottom, and
        a decoder stops at the height in the header. Damage below these rows is not found then.

        Args:
            num_rows: Number of rows, from 1 to `height`.

        Raises:
            DataError: The file is truncated, or damaged in these rows.
        """
        if self._is_plain and not self._turn and self._mode == "RGB":
            shorter = self._segments.shortened(self._content, num_rows + 1, self.height)
            pixels = self._shortened(*shorter) if shorter else None
            if pixels is not None:
                return pixels
        return self.pixels()

    def _shortened(self, content: bytes, height: int) -> np.ndarray | None:
        """Return the pixels of a file with a reduced height in its header, or None if it seems damaged."""
        pixels = np.empty((height, self.width, 3), np.uint8)
        try:
            simplejpeg.decode_jpeg(content, buffer=pixels)
        except ValueError as error:  # has the first problem found: expected is that data remain
            if _REMAINING_ROWS not in str(error):
                return None
        return pixels

    def pixels(self, min_height: int = 0, min_width: int = 0) -> np.ndarray:
        """Return the image [height, width, channels] uint8.

        Args:
            min_height: Least number of rows of a JPEG that is decoded at 1/2 to 1/8 of its size.
                0: decode at full size.
            min_width: Least number of columns.

        Raises:
            DataError: The file is truncated or damaged.
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
            # some cameras write such bytes; Pillow checks whether the image is complete
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
            f"does not decode ({reason}), expected a complete JPEG or PNG image; repair the file, or remove the row "
            "from the source"
        )
