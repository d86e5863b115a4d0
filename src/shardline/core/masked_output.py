"""Masking of secrets in the output and logs of this process, line by line."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from shardline.core.credentials import BEGIN_KEY
from shardline.core.redaction import mask, masking

_KEY_LINES = 120  # length of the longest key; a truncated key must not hide the rest of a log


class LineMasker:
    """Masks a text line by line, including private keys of several lines."""

    def __init__(self) -> None:
        self._left = 0  # lines that the current key may still have

    def mask(self, line: str, mask: Callable[[str], str] = mask) -> str:
        """Return a line, or a part of a line, with secrets masked.

        Args:
            line: the text, with its line end.
            mask: function that masks a text; use `masking()` for many lines at once.
        """
        end = line[len(line.rstrip("\r\n")) :]
        was_in_key, self._left = self._left > 0, max(0, self._left - 1)
        begin = max((match.start() for match in BEGIN_KEY.finditer(line)), default=-1)
        if begin != (last := line.rfind("-----END ")):
            self._left = _KEY_LINES if begin > last else 0
        if was_in_key:  # keep only the text after the key
            _, mark, rest = line.partition("-----END ")
            line = mark + rest
        return mask(line).rstrip("\r\n") + end


class MaskedStream:
    """Text stream that masks each line; other attributes are those of the wrapped stream.

    A line is kept back until it ends or the stream is flushed, because `print`
    writes a name and its value separately.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._masker = stream, LineMasker()
        self._held, self._lock = "", threading.RLock()

    def write(self, text: str) -> int:
        """Buffer a text, and write its complete lines masked."""
        with self._lock:
            *lines, self._held = (self._held + text).splitlines(keepends=True) or [""]
            if self._held.endswith(("\n", "\r")):
                lines, self._held = [*lines, self._held], ""
            if lines:
                mask = masking()
                self._stream.write("".join(self._masker.mask(line, mask) for line in lines))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts, as `write` does."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write the buffered text masked, and flush the stream."""
        with self._lock:
            held, self._held = self._held, ""
            if held:
                self._stream.write(self._masker.mask(held))
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class MaskingFormatter(logging.Formatter):
    """Formats a log record and its traceback with secrets masked."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the masked text of a record."""
        return mask(super().format(record))


@contextmanager
def masked_output() -> Iterator[None]:
    """Mask the output of this process within the block, and flush it at the end."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (MaskedStream(stream) for stream in before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before
