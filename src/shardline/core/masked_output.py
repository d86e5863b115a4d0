"""What this process prints and logs, masked line by line before it leaves."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from shardline.core.credentials import BEGIN_KEY
from shardline.core.redaction import mask, masking

_KEY_LINES = 120  # of the longest; a key that is cut off must not hide the rest of a log


class LineMasker:
    """Masks a text that comes in lines, of which a private key takes several."""

    def __init__(self) -> None:
        self._left = 0  # lines of a key that may still come

    def mask(self, line: str, mask: Callable[[str], str] = mask) -> str:
        """Return a line, or a part of one, without what looks like a secret.

        Args:
            mask: masks a text; one of `masking` where there are many lines at once.
        """
        end = line[len(line.rstrip("\r\n")) :]
        was_in_key, self._left = self._left > 0, max(0, self._left - 1)
        begin = max((match.start() for match in BEGIN_KEY.finditer(line)), default=-1)
        if begin != (last := line.rfind("-----END ")):
            self._left = _KEY_LINES if begin > last else 0
        if was_in_key:  # of this line only what follows the key
            _, mark, rest = line.partition("-----END ")
            line = mark + rest
        return mask(line).rstrip("\r\n") + end


class MaskedStream:
    """A text stream whose lines are masked; all else is the stream's own.

    A line is held back until it ends or the stream is flushed: `print` writes
    a name and its value one after the other.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._masker = stream, LineMasker()
        self._held, self._lock = "", threading.RLock()

    def write(self, text: str) -> int:
        """Take a text; whole lines are passed on."""
        with self._lock:
            *lines, self._held = (self._held + text).splitlines(keepends=True) or [""]
            if self._held.endswith(("\n", "\r")):
                lines, self._held = [*lines, self._held], ""
            if lines:
                mask = masking()
                self._stream.write("".join(self._masker.mask(line, mask) for line in lines))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Take several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Pass on what is held back."""
        with self._lock:
            held, self._held = self._held, ""
            if held:
                self._stream.write(self._masker.mask(held))
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class MaskingFormatter(logging.Formatter):
    """Formats a record, with its traceback, without what looks like a secret."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text."""
        return mask(super().format(record))


@contextmanager
def masked_output() -> Iterator[None]:
    """Mask what this process prints within the block; on its way out nothing is held back."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (MaskedStream(stream) for stream in before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before
