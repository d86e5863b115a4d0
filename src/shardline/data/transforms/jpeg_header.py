"""Reading of the segments before the image data of a JPEG file (ITU-T T.81, annex B), and a change of height."""

from collections.abc import Iterator
from dataclasses import dataclass

_SEQUENTIAL = (0xC0, 0xC1)  # frames with data in one pass from top to bottom
_START_OF_SCAN, _APP1 = 0xDA, 0xE1
_WITHOUT_EFFECT = {0xC4, 0xDB, 0xFE, *range(0xE0, 0xF0)}  # tables, comments, application segments
_BLOCK_ROWS = 16  # a block has 8 rows of samples, and colours usually have half the resolution


@dataclass(frozen=True, kw_only=True)
class JpegHeader:
    """Properties of a JPEG file, read from its segments.

    Attributes:
        is_read: Whether all segments up to the image data were read.
        has_exif: Whether there is EXIF, which may contain an orientation.
        height_at: Offset of the image height in the file (2 bytes), if the data are one scan from
            top to bottom without restart markers; else 0.
    """

    is_read: bool = False
    has_exif: bool = False
    height_at: int = 0

    @classmethod
    def of(cls, content: bytes) -> "JpegHeader":
        """Read the segments of a JPEG file, up to the first damage."""
        has_exif, height_at, is_plain = False, 0, True
        for marker, place in _segments(content):
            if marker in _SEQUENTIAL:
                height_at = place + 1
            elif marker == _START_OF_SCAN:
                is_one_scan = content[place] == content[height_at + 4]  # counts of components
                is_plain = is_plain and height_at > 0 and is_one_scan
                return cls(is_read=True, has_exif=has_exif, height_at=height_at if is_plain else 0)
            elif marker == _APP1:
                has_exif = has_exif or content.startswith(b"Exif\0\0", place)
            else:
                is_plain = is_plain and marker in _WITHOUT_EFFECT
        return cls()

    def shortened(self, content: bytes, num_rows: int, height: int) -> tuple[bytes, int] | None:
        """Return a file with a reduced height in its header, and this height.

        The height is rounded up to whole blocks. The colours of the last row may differ from those
        of the whole file, since they can depend on the row below.

        Returns:
            None if there is nothing to save, or if a decoder would take the remaining data for damage.
        """
        num_rows = -(-num_rows // _BLOCK_ROWS) * _BLOCK_ROWS
        if not self.height_at or num_rows >= height:
            return None
        before, after = content[: self.height_at], content[self.height_at + 2 :]
        return b"".join((before, num_rows.to_bytes(2, "big"), after)), num_rows


def _segments(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield the marker of each segment and the offset of its content, up to the image data."""
    place = 2
    while place + 9 < len(content) and content[place] == 0xFF:
        if content[place + 1] == 0xFF:  # a fill byte before the marker
            place += 1
            continue
        marker, length = content[place + 1], int.from_bytes(content[place + 2 : place + 4], "big")
        yield marker, place + 4
        if marker == _START_OF_SCAN:
            return
        place += 2 + length
