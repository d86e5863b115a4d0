"""The watchdog of one rank: `python -m shardline.supervision.watchdog DESCRIPTOR TASK`, started by the rank.

The main thread touches no file in the store, so that a store that does not answer cannot keep it from
ending its rank.
"""

import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shardline.core.errors import DataError
from shardline.core.process import die_with_parent, signal_main_thread
from shardline.supervision.failures import read_failures, report_failure
from shardline.supervision.heartbeat_memory import Pulse
from shardline.supervision.watchdog import Task
from shardline.supervision.watchdog.exit_report import tell_end
from shardline.supervision.watchdog.heartbeats import (
    FOLDER,
    WANTED,
    Sign,
    read_signs,
    stack_file,
    stop_asked,
    waits_for_peers,
    write_sign,
)
from shardline.supervision.watchdog.proc import out_of_memory_kills, parent_of, state_of
from shardline.supervision.watchdog.suspects import Guilty, find_guilty, hung_message

_POLL_S = 0.5
_LOOK_S = 0.1
_END_SIGNAL = signal.SIGCONT
_STOPPED_S = 2.0  # a longer gap between two looks: this process did not run either
_STORE_S = 30.0  # for a slow store, before a hung rank is ended without a word
_UNWATCHED = "script"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was found out about the rank when somebody noticed a hang.

    Attributes:
        stopped: the state that it was stopped in, before it was woken to write its stacks.
        waits: see `Sign`, as is `reaches`.
    """

    is_taken: bool = False
    stopped: str | None = None
    waits: bool | None = None
    reaches: bool | None = None


class Watchdog:
    """Watches one rank until it ends, or ends it."""

    def __init__(self, task: Task, pulse: Pulse) -> None:
        """Watch the rank of a task, the parent of this process."""
        self._task, self._pulse, self._launcher = task, pulse, parent_of(task.pid)
        self._work = Path(task.work)
        timeout_s = task.hang_timeout_s or float("inf")
        self._limits = {
            "startup": max(timeout_s, task.startup_timeout_s),
            "rendezvous": max(timeout_s, task.startup_timeout_s),
            _UNWATCHED: float("inf"),
        }
        self._timeout_s = timeout_s
        self._period_s = min(5.0, max(0.5, timeout_s / 4))  # between two signs
        self._grace_s = min(30.0, max(3 * self._period_s, timeout_s / 10))
        self._beat = pulse.read()
        self._idle_s, self._looked = 0.0, time.monotonic()
        self._count = 0
        self._wanted = self._work / FOLDER / WANTED
        self._evidence, self._lock = Evidence(), threading.Lock()
        self._is_judging = self._is_back = False
        self._kills = out_of_memory_kills()

    def run(self) -> None:
        """Watch until the rank ends; end it if it hangs."""
        threading.Thread(target=self._keep_files, daemon=True).start()
        while not self._has_ended(_POLL_S):
            self._look()
            limit_s = self._limits.get(self._beat.phase, self._timeout_s)
            if limit_s == float("inf") or self._idle_s < limit_s:
                continue
            self._is_judging = True
            within(self._grace_s + _STORE_S, self._judge)
            self._is_judging = False
            if not self._is_back:
                self._send(signal.SIGKILL)
                return
            self._is_back, self._idle_s = False, 0.0
        within(_STORE_S, self._tell_end)

    def _tell_end(self) -> None:
        sign = self._sign()
        write_sign(self._work, sign)  # so that nobody takes the silence from now on for a lost host
        # where the launcher is gone, the kernel ends the rank with it
        if not self._pulse.has_left and state_of(self._launcher) not in "XZ":
            tell_end(self._work, sign, out_of_memory_kills() - self._kills)

    def _has_ended(self, timeout_s: float) -> bool:
        """Wait for the end of the rank, and return whether it has come."""
        if os.getppid() == self._task.pid:
            signal.sigtimedwait([_END_SIGNAL], timeout_s)
        return os.getppid() != self._task.pid

    def _send(self, number: int) -> None:
        if not self._has_ended(0):
            os.kill(self._task.pid, number)

    def _look(self) -> None:
        """Count the seconds since the rank's last tick, but none in which this process was stopped itself."""
        now, beat = time.monotonic(), self._pulse.read()
        passed_s = min(now - self._looked, _STOPPED_S)
        self._idle_s = 0.0 if beat.ticks != self._beat.ticks else self._idle_s + passed_s
        self._looked, self._beat = now, beat

    def _sign(self) -> Sign:
        self._count += 1
        beat = self._pulse.read()
        return Sign(
            rank=self._task.rank,
            host=socket.gethostname(),
            pid=self._task.pid,
            count=self._count,
            step=beat.step,
            phase=beat.phase,
            place=beat.place,
            ticks=beat.ticks,
            idle_s=round(self._idle_s, 1),
            state=self._evidence.stopped or self._state_now(),
            waits=self._evidence.waits,
            reaches_first=self._evidence.reaches,
        )

    def _state_now(self) -> str:
        state = state_of(self._task.pid)
        return "L" if state in "XZ" and self._pulse.has_left else state

    def _keep_files(self) -> None:
        """Leave signs, and look whether the job asks for a stop, or another watchdog for stacks."""
        next_s = 0.0
        while True:
            if (now := time.monotonic()) >= next_s:
                write_sign(self._work, self._sign())
                self._kills, next_s = max(self._kills, out_of_memory_kills()), now + self._period_s
            with suppress(OSError):  # the store may fail for a while
                self._heed()
            time.sleep(_POLL_S)

    def _heed(self) -> None:
        if reason := stop_asked(self._work):
            # a script has no step boundaries that we know, so it is told at once, and once
            if self._beat.phase == _UNWATCHED and not self._pulse.stop_reason():
                self._send(signal.SIGTERM)
            self._pulse.request_stop(reason)
        if self._wanted.exists():
            self._collect()
        elif not self._is_judging:
            self._evidence = Evidence()

    def _collect(self) -> None:
        """Take this rank's stacks, and what else tells whether the others wait for it."""
        with self._lock:
            if self._evidence.is_taken:
                return
            state = state_of(self._task.pid)
            stopped = state if state in "Tt" else None
            self._evidence = Evidence(stopped=stopped)
            stack = self._dump(stopped is not None)
            reaches = self._reach()
            self._evidence = Evidence(
                is_taken=True, stopped=stopped, waits=waits_for_peers(stack), reaches=reaches
            )
        self._keep_stack()
        write_sign(self._work, self._sign())

    def _judge(self) -> None:
        """Find out what holds the job up, and tell."""
        ticks, end = self._beat.ticks, time.monotonic() + self._grace_s
        before = self._all_signs()
        with suppress(OSError):
            self._wanted.touch()  # has the other watchdogs take their ranks' stacks, too
        self._collect()
        if self._has_ended(max(0.0, end - time.monotonic())):
            return
        if self._pulse.read().ticks != ticks and not self._evidence.stopped:
            self._is_back = True
            self._wanted.unlink(missing_ok=True)
            return
        after = self._all_signs()
        with suppress(DataError, OSError):  # a full disk must not keep it from ending the rank
            if not any(failure.kind == "hung" for failure in read_failures(self._work)):
                self._report(find_guilty(before, after))

    def _all_signs(self) -> list[Sign]:
        """Return the ranks' signs: this one's own, and those of the others as far as they can be read."""
        mine = self._sign()
        others = read_signs(self._work, self._task.num_ranks)
        return sorted([mine, *(s for s in others if s.rank != mine.rank)], key=lambda s: s.rank)

    def _dump(self, is_stopped: bool) -> str:
        """Have the rank write the stacks of its threads, and return them; a stopped one is woken for that alone."""
        file, end = stack_file(self._work, self._task.rank), time.monotonic() + self._grace_s / 3
        with suppress(OSError):
            # another thread would read the main thread's frames while they change, and may crash
            if not self._has_ended(0):
                signal_main_thread(self._task.pid, self._task.dump_signal)
            if is_stopped:
                self._send(signal.SIGCONT)
            size = -1
            while (now := file.stat().st_size) != size or not now:
                size = now
                if self._has_ended(_LOOK_S) or time.monotonic() > end:
                    break
            if is_stopped:
                self._send(signal.SIGSTOP)
            return file.read_text(errors="replace")
        return ""

    def _reach(self) -> bool | None:
        """Return whether the first rank's host answers; it does that too when it refuses."""
        if not self._task.first_host:
            return None
        try:
            place = self._task.first_host, self._task.port
            socket.create_connection(place, timeout=self._grace_s / 3).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    def _keep_stack(self) -> None:
        """Copy this rank's stacks to the logs, where the next attempt leaves them."""
        with suppress(OSError):
            shutil.copyfile(stack_file(self._work, self._task.rank), self._stacks(self._task.rank))

    def _stacks(self, rank: int | str) -> Path:
        return Path(self._task.logs) / f"rank-{rank}.stack"

    def _report(self, guilty: Guilty) -> None:
        message = hung_message(
            guilty,
            idle_s=self._idle_s,
            timeout_s=self._task.hang_timeout_s,
            stacks=str(self._stacks("*")),
        )
        report_failure(
            self._work,
            message,
            rank=self._task.rank,
            log=None,
            kind="hung",
            code=128 + signal.SIGKILL,
            step=guilty.signs[0].step,
        )


def within(timeout_s: float, touch_files: Callable[[], None]) -> None:
    """Do something with the store's files, and go on if they do not answer in time."""
    thread = threading.Thread(target=touch_files, daemon=True)
    thread.start()
    thread.join(timeout_s)


def main() -> None:
    """Watch the parent of this process."""
    descriptor, task = int(sys.argv[1]), Task.from_json(sys.argv[2])
    # what a scheduler sends to all processes of a job is meant for the rank, whose end is this one's
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # the kernel tells of the rank's end by a signal that also wakes this process if it was stopped, too
    signal.pthread_sigmask(signal.SIG_BLOCK, [_END_SIGNAL])
    die_with_parent(_END_SIGNAL)
    if os.getppid() == task.pid:
        Watchdog(task, Pulse(descriptor)).run()
    os._exit(0)  # whatever a thread waits for in the store


if __name__ == "__main__":
    main()
