"""Running the launcher as a child: its output to the log, its progress to a terminal, its end certain."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from shardline.errors import ShardlineError
from shardline.launch.failures import first_failure, forget_failures, killed_rank
from shardline.launch.process import die_with_parent, kill_group

_PROGRESS = re.compile(r"^progress step=(?P<step>\d+)/(?P<total>\d+) (?P<rest>.*)$")
_GRACE_S = 20.0


class RankError(ShardlineError):
    """A rank failed; carries that rank's own message."""


def run_ranks(
    command: Sequence[str], *, env: Mapping[str, str], log: Path, work: Path, title: str, ranks: int
) -> None:
    """Run a launcher until all its ranks have ended.

    Every line goes to the log; where standard error is a terminal a bar shows
    the progress. An interrupt or a termination ends the whole process group.

    Raises:
        RankError: a rank failed; its own message and place, not the launcher's summary.
        KeyboardInterrupt: this job was told to stop; no rank is left running.
    """
    forget_failures(work)
    with log.open("a") as log_file:
        begin = log_file.tell()
        child = subprocess.Popen(
            command,
            env=dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=die_with_parent,  # even when this job is killed outright
            start_new_session=True,  # a terminal's Ctrl-C reaches the ranks through us alone
        )
        try:
            with sigterm_as_interrupt():
                last = _relay(child, log_file, title)
                code = child.wait()
        except BaseException:
            _end(child)
            raise
        finally:
            kill_group(child.pid)  # ranks that outlived their launcher
    if code:
        raise RankError(
            _killed(log, begin)
            or first_failure(work, ranks)
            or f"{command[0]} ended with code {code}: {last or 'it said nothing'}; see {log}"
        )


def _killed(log: Path, begin: int) -> str | None:
    with log.open(errors="replace") as file:
        file.seek(begin)
        killed = killed_rank(file.read())
    return f"{killed}; see {log}" if killed else None


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Turn SIGTERM into the same orderly end as Ctrl-C."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _relay(child: subprocess.Popen[str], log: IO[str], title: str) -> str:
    """Pass the output on until it ends, and return its last line."""
    assert child.stdout is not None
    last = ""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rest]}"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(title, total=None, rest="")
        for line in child.stdout:
            log.write(line)
            log.flush()
            last = line.strip() or last
            _show(bar, task, line)
    return last


def _show(bar: Progress, task: TaskID, line: str) -> None:
    if match := _PROGRESS.match(line):
        bar.update(
            task, completed=int(match["step"]), total=int(match["total"]), rest=match["rest"]
        )


def _end(child: subprocess.Popen[str]) -> None:
    """Ask the launcher to end its ranks; after a grace time, end them all."""
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_S)
    kill_group(child.pid)
    child.wait()
