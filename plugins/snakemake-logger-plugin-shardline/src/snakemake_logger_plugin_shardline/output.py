"""Outputs: a terminal, whose last lines are redrawn in place, or any other stream."""

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from snakemake_logger_plugin_shardline.terminal_text import visible

# Shows a job, by device and inode of standard error, that this plugin prints its reports from the file
# beside its log, as systemd's JOURNAL_STREAM does.
STREAM = "SNAKEMAKE_LOGGER_STREAM"


class PlainOutput:
    """A stream that is not a terminal. Errors of a closed stream are ignored, and the workflow continues."""

    width: int | None = None
    height = 0
    is_terminal = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        with suppress(OSError, ValueError):
            _name_stream(stream.fileno())

    def begin(self) -> None:
        """Do nothing at the start of the jobs."""

    def say(self, lines: Iterable[str]) -> None:
        """Write permanent lines."""
        with suppress(OSError, ValueError):
            for line in lines:
                self._stream.write(f"{line}\n")
            self._stream.flush()

    def draw(self, lines: Sequence[str]) -> None:
        """Do nothing, since lines cannot be redrawn."""

    def end(self) -> None:
        """Do nothing at the end of the jobs."""


class Terminal:
    """A terminal whose last lines are redrawn while jobs run. The jobs' own output appears above them."""

    is_terminal = True

    def __init__(self, stream: TextIO) -> None:
        self._screen = os.fdopen(os.dup(stream.fileno()), "w", encoding="utf-8", errors="replace")
        self._console = Console(
            file=self._screen,
            force_terminal=True,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=True,
        )
        self._live: Live | None = None
        # a file instead of a pipe: jobs that outlive Snakemake may still write to it; each write appends
        self._caught = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed by `close`
        flags = fcntl.fcntl(self._caught.fileno(), fcntl.F_GETFL)
        fcntl.fcntl(self._caught.fileno(), fcntl.F_SETFL, flags | os.O_APPEND)
        self._read, self._rest = 0, b""
        self._kept: dict[int, int] = {}
        self._is_closed = False
        # before the first job starts, since the jobs' records come from a thread, maybe late
        self._catch(2)
        _name_stream(self._caught.fileno())

    @property
    def width(self) -> int:
        """Columns to use; one less than the terminal has, since a full line would scroll some terminals."""
        return max(self._size().columns - 1, 1)

    @property
    def height(self) -> int:
        """Lines to use."""
        return max(self._size().lines - 1, 1)

    def _size(self) -> os.terminal_size:
        with suppress(OSError, ValueError):
            size = os.get_terminal_size(self._screen.fileno())
            if size.columns and size.lines:
                return size
        return os.terminal_size((80, 24))

    def begin(self) -> None:
        """Start to redraw lines."""
        if not self._live:
            self._catch(1)
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._live.start()

    def _catch(self, number: int) -> None:
        """Redirect the output of this process and its children to a file."""
        if number not in self._kept and os.isatty(number):
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            self._kept[number] = os.dup(number)
            os.dup2(self._caught.fileno(), number)

    def _printed(self, *, is_end: bool = False) -> list[str]:
        """Return the lines that jobs have printed since the last call."""
        content = os.pread(self._caught.fileno(), 1 << 20, self._read)
        self._read += len(content)
        *whole, self._rest = (self._rest + content).split(b"\n")
        if is_end and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        lines = [
            visible(line.rstrip(b"\r").split(b"\r")[-1].decode(errors="replace")) for line in whole
        ]
        return [line for line in lines if line.strip()]

    def say(self, lines: Iterable[str]) -> None:
        """Write permanent lines above the redrawn lines."""
        self._write([*self._printed(), *lines])

    def _write(self, lines: Sequence[str]) -> None:
        with suppress(OSError, ValueError):
            for line in lines:
                self._console.print(line)

    def draw(self, lines: Sequence[str]) -> None:
        """Redraw the last lines."""
        if self._live and not self._is_closed:
            self._write(self._printed())
            with suppress(OSError, ValueError):
                text = Text("\n".join(lines), no_wrap=True, overflow="ignore")
                self._live.update(text, refresh=True)

    def end(self) -> None:
        """Restore the terminal; lines may still be written."""
        if self._is_closed:
            return
        self._is_closed = True
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        for number, kept in self._kept.items():
            os.dup2(kept, number)
            os.close(kept)
        if self._live:
            with suppress(OSError, ValueError):
                self._live.stop()
        self._write(self._printed(is_end=True))


def _name_stream(descriptor: int) -> None:
    # Set once, by the thread that starts jobs. Records come from another thread: if that thread changed the
    # environment while a child starts, `execve` would fail with "Bad address".
    status = os.fstat(descriptor)
    os.environ[STREAM] = f"{status.st_dev}:{status.st_ino}"
