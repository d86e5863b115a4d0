"""Rows of CSV files whose quoted fields contain line breaks, read in byte ranges.

A line break ends a row if the number of quotes before it is even (RFC 4180). Where a shard begins, a job
therefore counts the quotes of the file up to there.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from shardline.core.errors import DataError
from shardline.data.sources.lines import NEWLINE, Lines, TextFiles, lines_in
from shardline.data.sources.packed import LONGEST_BYTES, read_line

QUOTE = b'"'
_COUNTED_BYTES = 8 * 2**20  # at a time


class QuotedLines(TextFiles):
    """CSV files that are split into shards by bytes, between rows.

    Args:
        paths: Paths of the files.
        starts: Offset of the first row in each file.
        delimiter: Separator of the fields, one ASCII character.
    """

    def __init__(self, paths: Sequence[Path], starts: Sequence[int], delimiter: str) -> None:
        super().__init__(paths, starts)
        self._delimiter = delimiter.encode()
        self._counted: dict[
            int, tuple[int, int]
        ] = {}  # by file, an offset and the quotes before it

    def _begin(self, index: int, first: int) -> int:
        """Return the offset of the first row that begins at `first` or after it."""
        is_open = self._quotes_before(index, first - 1) % 2
        file, place = self.open(index), first - 1
        file.seek(place)
        while line := read_line(file, self.paths[index]):
            place += len(line)
            is_open ^= line.count(QUOTE) % 2
            if not is_open:
                break
        return place

    def _quotes_before(self, index: int, place: int) -> int:
        """Return the number of quotes in a file's rows before an offset."""
        start, quotes = self._counted.get(index, (self.starts[index], 0))
        if start > place:
            start, quotes = self.starts[index], 0
        file = self.open(index)
        file.seek(start)
        while start < place and (content := file.read(min(_COUNTED_BYTES, place - start))):
            start, quotes = start + len(content), quotes + content.count(QUOTE)
        self._counted[index] = start, quotes
        return quotes

    def rest(self, file: IO[bytes], path: Path, content: bytes) -> bytes:
        """Return the rest of the last row in `content`, which begins with a row."""
        is_open = content.count(QUOTE) % 2
        if content.endswith(NEWLINE) and not is_open:
            return b""
        pieces, size = [], 0
        while line := read_line(file, path):
            pieces.append(line)
            size += len(line)
            is_open ^= line.count(QUOTE) % 2
            if not is_open:
                return b"".join(pieces)
            if size > LONGEST_BYTES:
                break
        if is_open:
            self._refuse_open(path, file.tell() - len(content) - size, content)
        return b"".join(pieces)

    def _refuse_open(self, path: Path, place: int, content: bytes) -> None:
        none = np.zeros(0, dtype=np.int64)
        lines = Lines(path, place, content, none, none)
        self.check(lines)
        raise DataError(
            f"{lines.where_byte(content.rindex(QUOTE))}: a quote is not closed before the end of the file, expected "
            "fields with quotes at both ends; close it"
        )

    def spans(self, content: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return the offsets at which the rows in `content` begin and end."""
        data = np.frombuffer(content, dtype=np.uint8)
        ends = np.flatnonzero(data == ord("\n"))
        if QUOTE in content:
            quotes = np.flatnonzero(data == ord(QUOTE))
            ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
        return lines_in(data, ends)

    def check(self, lines: Lines) -> None:
        """Reject a quote that is not at an end of its field, if the text up to the next quote has a line break.

        Raises:
            DataError: There is such a quote. The message names its line.
        """
        if lines.content.count(QUOTE) < 2:
            return
        data = np.frombuffer(lines.content, dtype=np.uint8)
        quotes = np.flatnonzero(data == ord(QUOTE))
        first, last = quotes[::2][: len(quotes) // 2], quotes[1::2]
        ends = np.flatnonzero(data == ord("\n"))
        has_break = np.searchsorted(ends, first) < np.searchsorted(ends, last)
        is_doubled = np.append(False, first[1:] == last[:-1] + 1)
        around = np.frombuffer(self._delimiter + b"\r\n", np.uint8)
        begins = np.isin(data[first - 1], around) | (first == 0) | is_doubled
        after = data[np.minimum(last + 1, len(data) - 1)]
        closes = np.isin(after, around) | (last == len(data) - 1) | np.append(is_doubled[1:], False)
        if len(bad := np.flatnonzero(has_break & ~(begins & closes))):
            raise DataError(
                f"{lines.where_byte(int(first[bad[0]]))}: a quote is inside a field, or is not closed in its field, "
                "expected fields with quotes at both ends; write a quote within a field twice, and put the field into "
                "quotes"
            )


def refuse_line_breaks(lines: Lines) -> None:
    """Reject fields with line breaks: a shard could not start to read within such a field.

    Raises:
        DataError: There is such a field. The message names its line.
    """
    if QUOTE not in lines.content:
        return
    quotes = np.flatnonzero(np.frombuffer(lines.content, dtype=np.uint8) == ord(QUOTE))
    # up to the first line with an odd number, each line ends after an even number
    odd = np.flatnonzero(np.searchsorted(quotes, lines.ends) % 2)
    if len(odd):
        raise DataError(
            f"{lines.where(odd[0])}: a quote is not closed in its line, expected fields without line "
            "breaks; close it, or set source.line_breaks: true if fields in quotes contain line breaks"
        )
