"""Progress of writing shards: a bar on a terminal, else a line now and then."""

import logging
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO

from shardline.core.job_progress import is_shown_by_logger

if TYPE_CHECKING:
    from rich.progress import Progress


class ShardProgress:
    """Counts shards and rows as they are written; shows rows/s and the time left.

    A terminal shows a bar that vanishes at the end. Otherwise plain lines are
    written to the stream and the log.

    Args:
        title: text before the numbers.
        num_shards: number of shards to write.
        stream: output stream; None is standard error.
        every_s: minimum number of seconds between two plain lines.
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
        """Count one more shard, with its number of rows."""
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
        """Show the bar; Rich is imported only for a terminal."""
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
    """Return a number with at least two significant digits: `1.2 M`, `350 k`, `12`."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            scaled = number / size
            return f"{scaled:.1f}{unit}" if scaled < 100 else f"{scaled:.0f}{unit}"
    return f"{number:.1f}" if number < 10 else f"{number:.0f}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
