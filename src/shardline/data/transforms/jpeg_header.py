"""Segments of a JPEG file before its image data (ITU-T T.81, annex B): what they hold, and a change of one."""

from collections.abc import Iterator
from dataclasses import dataclass

_SEQUENTIAL = (0xC0, 0xC1)  # frames whose data are one pass from top to bottom
_START_OF_SCAN, _APP1 = 0xDA, 0xE1
_WITHOUT_EFFECT = {0xC4, 0xDB, 0xFE, *range(0xE0, 0xF0)}  # tables, comment, applications' own
_BLOCK_ROWS = 16  # of most photographs: 8 rows of samples, of which colours have half as many


@dataclass(frozen=True, kw_only=True)
class JpegHeader:
    """What the segments hold.

    Attributes:
        is_read: whether all of them were found, up to the data.
        has_exif: whether there is EXIF, which may hold an orientation.
        height_at: place of the image's height in the file (2 bytes), where the data are one scan from
            top to bottom without restart markers; else 0.
    """

    is_read: bool = False
    has_exif: bool = False
    height_at: int = 0

    @classmethod
    def of(cls, content: bytes) -> "JpegHeader":
        """Read the segments of a file that begins as a JPEG does; damage ends the reading."""
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
        """Return a file whose header ends the image after these rows, and how many it has.

        Rows are rounded up to whole blocks. The last row is not quite that of the whole file, where
        its colours depend on the row below.

        Returns:
            None where nothing is saved, or where a decoder could not tell the remaining data from damage.
        """
        num_rows = -(-num_rows // _BLOCK_ROWS) * _BLOCK_ROWS
        if not self.height_at or num_rows >= height:
            return None
        before, after = content[: self.height_at], content[self.height_at + 2 :]
        return b"".join((before, num_rows.to_bytes(2, "big"), after)), num_rows


def _segments(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield each segment's marker, and the place of what follows its length, up to the image data."""
    place = 2
    while place + 9 < len(content) and content[place] == 0xFF:
        if content[place + 1] == 0xFF:  # a marker may be filled up with these
            place += 1
            continue
        marker, length = content[place + 1], int.from_bytes(content[place + 2 : place + 4], "big")
        yield marker, place + 4
        if marker == _START_OF_SCAN:
            return
        place += 2 + length
