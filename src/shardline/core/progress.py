"""How far a job is: a bar on a terminal, a line now and then elsewhere, and `{log}.progress.json` for displays.

The format of that file is that of the logger plugin in plugins/snakemake-logger-plugin-shardline,
whose README documents it; neither imports the other.
"""

import json
import logging
import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

# Device and inode of the standard error of which a logger plugin shows what jobs report.
STREAM = "SNAKEMAKE_LOGGER_STREAM"
_EVERY_S = 1.0


class JobProgress:
    """The report of this process's job. Nothing is written where no job has begun, or the disk is full."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._fields: dict[str, Any] = {}
        self._written = 0.0

    def begin(self, log: Path) -> None:
        """Report beside this log from now on; what an earlier job has left there is removed."""
        self._file, self._fields, self._written = log.with_suffix(".progress.json"), {}, 0.0
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def report(self, **fields: Any) -> None:
        """Add fields, and write all of them unless that was done within the last second."""
        self._fields |= fields
        is_due = time.monotonic() - self._written >= _EVERY_S or "error" in fields
        if self._file is None or not is_due:
            return
        self._written = time.monotonic()
        draft = self._file.with_suffix(f".{os.getpid()}")
        with suppress(OSError, ValueError):
            draft.write_text(json.dumps(self._fields, allow_nan=False), encoding="utf-8")
            draft.replace(self._file)


job_progress = JobProgress()


def is_shown_by_logger(stream: TextIO) -> bool:
    """Return whether Snakemake's logger plugin shows on this stream what jobs report."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get(STREAM) == f"{status.st_dev}:{status.st_ino}"


class ShardProgress:
    """Counts shards and rows as they are written; shows rows/s and the time left.

    A terminal gets a bar that vanishes at the end. Where there is none, a
    plain line goes to the stream and to the log.

    Args:
        title: what stands before the numbers.
        num_shards: shards to be written.
        stream: where it is shown; standard error if None.
        every_s: seconds between two plain lines, at least.
    """

    def __init__(
        self, title: str, num_shards: int, *, stream: TextIO | None = None, every_s: float = 10.0
    ) -> None:
        self._title, self._total = title, num_shards
        self._stream = stream or sys.stderr
        self._shards = self._rows = 0
        self._started = self._told = time.monotonic()
        self._every_s = every_s
        self._bar = self._start_bar() if self._stream.isatty() else None

    def __enter__(self) -> "ShardProgress":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, rows: int) -> None:
        """Count one shard of this many rows."""
        self._shards, self._rows = self._shards + 1, self._rows + rows
        seconds = max(time.monotonic() - self._started, 1e-9)
        rate = f"{_short(self._rows / seconds)} rows/s"
        if self._bar:
            self._bar.update(self._task, completed=self._shards, rate=rate, refresh=True)
        elif self._shards == self._total:
            self._tell(f"{rate}, took {_clock(seconds)}")
        elif time.monotonic() - self._told >= self._every_s:
            left = seconds / self._shards * (self._total - self._shards)
            self._tell(f"{rate}, {_clock(left)} left")

    def _tell(self, news: str) -> None:
        self._told = time.monotonic()
        line = f"{self._title}: {self._shards}/{self._total}, {news}"
        logging.info("%s", line)
        if not is_shown_by_logger(self._stream):
            print(line, file=self._stream, flush=True)

    def _start_bar(self) -> "Progress":
        """Show the bar on a terminal; Rich is imported only where there is one."""
        from rich import progress as rich
        from rich.console import Console

        bar = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TextColumn("{task.fields[rate]}"),
            rich.TimeRemainingColumn(),
            console=Console(file=self._stream, force_terminal=True),
            transient=True,
        )
        self._task = bar.add_task(self._title, total=self._total, rate="")
        bar.start()
        return bar


def _short(number: float) -> str:
    """Return a number with two digits or more that count: `1.2 M`, `350 k`, `12`."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            scaled = number / size
            return f"{scaled:.1f}{unit}" if scaled < 100 else f"{scaled:.0f}{unit}"
    return f"{number:.1f}" if number < 10 else f"{number:.0f}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
