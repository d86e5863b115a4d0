"""A program on a pseudo-terminal, and the screen that its output leaves: what a user sees."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_CONTROL = re.compile("\x1b\\[([0-9;?]*)([A-Za-z])|\x1b[()].|[\r\n\b]|[^\x1b\r\n\b]")


class Screen:
    """Interprets what Rich and plain programs write: the cursor's column and row, erasing, scrolling.

    Characters count as one column each, so texts are to hold narrow ones alone.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines: list[str] = [""]
        self._row = self._column = self._top = 0

    def feed(self, text: str) -> None:
        """Take what a program has written."""
        for match in _CONTROL.finditer(text):
            part = match[0]
            if part == "\r":
                self._column = 0
            elif part == "\n":
                self._down()
            elif match[2] == "A":
                self._row = max(self._row - int(match[1] or 1), self._top)
            elif match[2] == "K":
                self._erase(match[1])
            elif part[0] != "\x1b" and part != "\b":
                self._put(part)

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append("")
        self._top = max(self._top, len(self.lines) - self.rows)

    def _erase(self, how: str) -> None:
        line = self.lines[self._row]
        self.lines[self._row] = "" if how == "2" else line[: self._column]

    def _put(self, character: str) -> None:
        if self._column == self.columns:
            self._column = 0
            self._down()
        line = self.lines[self._row].ljust(self._column)
        self.lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
        self._column += 1

    def shown(self) -> list[str]:
        """Return the lines on the screen, without those that have scrolled away."""
        return [line.rstrip() for line in self.lines[-self.rows :]]

    def all(self) -> str:
        """Return all lines, also those that have scrolled away."""
        return "\n".join(line.rstrip() for line in self.lines)


class OnTerminal:
    """A program on a pseudo-terminal of its own."""

    def __init__(
        self, command: Sequence[str], cwd: Path, columns: int = 80, rows: int = 24,
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.screen = Screen(columns, rows)
        self._mine, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        known = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command, cwd=cwd, stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
            env={**known, "TERM": "xterm", **(env or {})},
        )  # fmt: skip
        os.close(inside)

    def read(self) -> bool:
        """Take what there is within a moment; returns False at the end."""
        if not select.select([self._mine], [], [], 0.2)[0]:
            return True
        try:
            content = os.read(self._mine, 1 << 16)
        except OSError:  # what Linux says once the other side is closed
            return False
        self.screen.feed(content.decode(errors="replace"))
        return bool(content)

    def wait_for(
        self, condition: Callable[[list[str]], bool], timeout_s: float = 300.0
    ) -> list[str]:
        """Return the first screen for which something holds."""
        end = time.monotonic() + timeout_s
        while not condition(self.screen.shown()):
            assert self.read(), f"the program has ended:\n{self.screen.all()}"
            assert time.monotonic() < end, self.screen.all()
        return self.screen.shown()

    def end(self) -> str:
        """Read to the end; returns all that stayed."""
        while self.read():
            pass
        os.close(self._mine)
        self.process.wait(timeout=60)
        return self.screen.all()
