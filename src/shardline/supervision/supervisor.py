"""Supervision of the launcher as a child process: log, progress bar, stop requests, exit."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO

from shardline.core.errors import DataError, ShardlineError, Stopped
from shardline.core.files import utc_stamp, write_json
from shardline.core.masked_output import LineMasker
from shardline.core.process import Leader, die_with_parent, end_group, kill_group
from shardline.supervision.failure_records import (
    first_failure,
    killed_rank,
    read_failures,
    reset_failures,
)
from shardline.supervision.rank_lines import RankLines
from shardline.supervision.warm.client import WarmRanks
from shardline_io.stopping import SIGNALS

_GRACE_S = 20.0
_LOOK_S, _STUCK_S = 1.0, 20.0  # between checks for a hang; from the hang to the launcher's end
_STOP = "stop.json"
Ask = Callable[[str, float | None], None]  # `StopRequest.ask`


class RankError(ShardlineError):
    """A rank failed; contains the rank's own message.

    Args:
        kind: `failed`, `hung` or `diverged`.
        code: the rank's exit code.
        is_killed: whether a signal ended the rank, so that the same command can resume it.
    """

    def __init__(
        self, message: str, *, kind: str = "failed", code: int = 1, is_killed: bool = False
    ) -> None:
        super().__init__(message)
        self.kind, self.exit_code, self.is_killed = kind, code, is_killed


class StopRequest:
    """A request that all ranks save and stop; the watchdogs on all nodes pass it to their ranks.

    Args:
        work: the run's folder in the store, where `stop.json` is written.
        grace_s: seconds until `end` is called if the ranks are still running.
        end: function that ends the ranks.
    """

    def __init__(self, work: Path, grace_s: float, end: Callable[[], None]) -> None:
        self._path, self._grace_s, self._end = work / _STOP, grace_s, end
        self._timer: threading.Timer | None = None
        self.reason, self.is_over = "", False
        self._path.unlink(missing_ok=True)  # left behind by a killed job

    def ask(self, reason: str, grace_s: float | None = None) -> None:
        """Request a stop of all ranks; only the first request counts, with its grace time if given."""
        if self.reason:
            return
        self.reason = reason
        with suppress(DataError):  # on a full disk the ranks end after the grace time
            write_json(self._path, {"reason": reason, "time": utc_stamp()})
        self._timer = threading.Timer(grace_s or self._grace_s, self._give_up)
        self._timer.daemon = True
        self._timer.start()

    def _give_up(self) -> None:
        self.is_over = True
        self._end()

    def close(self) -> None:
        """Withdraw the request, so that it does not reach the ranks that start next."""
        if self._timer:
            self._timer.cancel()
        self._path.unlink(missing_ok=True)


def run_ranks(
    command: Sequence[str], *, env: Mapping[str, str], log: Path, work: Path, title: str, ranks: int,
    grace_s: float = 0.0, watch: Callable[[Ask, threading.Event], None] | None = None, monitor: str = "",
    warm: WarmRanks | None = None,
    descriptors: Sequence[int] = (), cores: Collection[int] = (),
) -> None:  # fmt: skip
    """Run a launcher until all its ranks have ended.

    Every line goes to the log. If standard error is a terminal, a bar shows the progress.
    SIGTERM, SIGUSR1 and Ctrl-C request that the ranks save and stop; a second Ctrl-C ends them at once.

    Args:
        grace_s: seconds in which the ranks may save; 0 ends them at once.
        watch: function to run in a thread; it may request a stop, and returns after the event.
        monitor: metric that is reported beside the loss.
        warm: ranks that are forked already, instead of those of the command.
        descriptors: descriptors of locks, which the launcher inherits.
        cores: numbers of the cores to run on; empty for all cores.

    Raises:
        RankError: a rank failed; contains the rank's own message and place.
        Stopped: a stop was requested, and the ranks have saved or were too slow.
        KeyboardInterrupt: this job had to exit at once; no rank is left running.
    """
    reset_failures(work)
    request, ended = StopRequest(work, grace_s, lambda: _end(child)), threading.Event()
    with log.open("a") as log_file:
        begin = log_file.tell()
        child = warm or subprocess.Popen(
            command,
            env=dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=partial(_begin, cores),
            pass_fds=descriptors,
            start_new_session=True,  # a terminal's Ctrl-C must reach the ranks through this job only
        )
        try:
            if watch:
                threading.Thread(target=watch, args=(request.ask, ended), daemon=True).start()
            with (
                _signals_ask(request, at_once=not grace_s),
                end_stuck_launcher(work, child.pid),
            ):
                last = _relay(child, log_file, RankLines(title, monitor))
                code = child.wait()
        except BaseException:
            _end(child)
            raise
        finally:
            ended.set()
            request.close()
            kill_group(child.pid)  # ranks may outlive their launcher
    if not code:
        return
    message = f"{command[0]} exited with code {code}: {last or 'no output'}; see {log}"
    raise _outcome(work, ranks, _killed(log, begin), request) or RankError(message)


def _begin(cores: Collection[int]) -> None:
    die_with_parent()  # even if this job gets SIGKILL
    if cores:
        os.sched_setaffinity(0, cores)


def _outcome(
    work: Path, ranks: int, killed: str | None, request: StopRequest
) -> ShardlineError | None:
    """Return the error with which the ranks ended; None if no failure was recorded."""
    failures = read_failures(work)
    stops = [one for one in failures if one.kind == "stopped"]
    # a record with a step means that all ranks saved; without a step, the launcher may be the cause
    agreed = [one for one in stops if one.step is not None]
    if agreed or (stops and stops == failures and not killed):
        step = agreed[0].step if agreed else None
        return Stopped(stops[0].stop or request.reason, step)
    if request.is_over:
        return Stopped(request.reason, None, in_time=False)
    # a watchdog's record of the signal is more precise than the launcher's
    if killed and not (failures and failures[0].code > 128):
        return RankError(killed, is_killed=True)
    if not (message := first_failure(work, ranks)):
        return None
    first = failures[0]
    return RankError(message, kind=first.kind, code=first.code, is_killed=first.is_killed)


def _killed(log: Path, begin: int) -> str | None:
    with log.open(errors="replace") as file:
        file.seek(begin)
        killed = killed_rank(file.read())
    return f"{killed}; see {log}" if killed else None


@contextmanager
def _signals_ask(request: StopRequest, *, at_once: bool) -> Iterator[None]:
    """Make signals request a stop; with nothing to save, or at a second Ctrl-C, exit at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        is_second = request.reason and number == signal.SIGINT
        if at_once or is_second:
            raise KeyboardInterrupt
        request.ask(SIGNALS[signal.Signals(number)])

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def end_stuck_launcher(work: Path, launcher: int) -> Iterator[None]:
    """End a launcher that still runs after a hang was reported: Open MPI waits forever for its daemon.

    Args:
        work: the run's folder in the store.
        launcher: pid of the launcher, which leads its own session. The whole session is ended,
            since Open MPI's remote shells leave the process group and keep the output open.
    """
    has_ended = threading.Event()

    def look() -> None:
        while not has_ended.wait(_LOOK_S):
            with suppress(DataError, OSError):  # a record may be deleted meanwhile
                if any(failure.kind == "hung" for failure in read_failures(work)):
                    if not has_ended.wait(_STUCK_S):
                        _kill_session(launcher)
                    return

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        has_ended.set()


def _kill_session(leader: int) -> None:
    for pid in _pids():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    if not Path("/proc").is_dir():
        import psutil

        return list(psutil.pids())
    # nothing is imported when a file system may hang
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def _relay(child: "subprocess.Popen[str] | WarmRanks", log: IO[str], rank_lines: RankLines) -> str:
    """Write the output to the log without secrets until it ends; return its last line."""
    assert child.stdout is not None
    last, masker = "", LineMasker()
    with rank_lines:
        for line in map(masker.mask, child.stdout):
            log.write(line)
            log.flush()
            last = line.strip() or last
            rank_lines(line)
    return last


def _end(child: Leader) -> None:
    """Ask the launcher to end its ranks; kill them all after a grace time."""
    end_group(child, _GRACE_S)
    child.wait()
