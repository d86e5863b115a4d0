"""The watchdog of one rank: `python -m shardline.supervision.watchdog DESCRIPTOR TASK`, started by the rank.

The main thread touches no file in the store, so that it can end its rank when the store does not
respond.
"""

import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from shardline.core.errors import DataError
from shardline.core.process import die_with_parent, signal_main_thread
from shardline.supervision.failure_records import read_failures, report_failure
from shardline.supervision.resource_usage import Sampler
from shardline.supervision.watchdog import Task
from shardline.supervision.watchdog.diagnosis import (
    Diagnosis,
    diagnose_hang,
    hung_message,
    report_exit,
)
from shardline.supervision.watchdog.heartbeats import (
    ENDING,
    FOLDER,
    UNWATCHED,
    WANTED,
    RankHeartbeat,
    any_works,
    has_main_thread,
    read_heartbeats,
    requested_stop,
    stack_file,
    waits_for_peers,
    write_heartbeat,
)
from shardline.supervision.watchdog.proc import out_of_memory_kills, parent_of, state_of
from shardline_io.heartbeat_memory import HeartbeatMemory

_POLL_S = 0.5
_LOOK_S = 0.1
_DUMP_S = 5.0  # longest time for a process to write its stacks on a busy machine
_END_SIGNAL = signal.SIGCONT
_STOPPED_S = 2.0  # a longer gap between two polls means that this process was stopped too
_EXIT_S = 300.0  # least time for a rank whose work is done to end: a busy machine frees memory for seconds
_STORE_S = 30.0  # longest wait for a slow store, before a hung rank is killed without a report


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence about the rank, collected when a watchdog noticed a hang.

    Attributes:
        stopped: state of a stopped rank, before it was woken to write its stacks.
        waits: field of `RankHeartbeat`, like `reaches`.
    """

    is_taken: bool = False
    stopped: str | None = None
    waits: bool | None = None
    reaches: bool | None = None


class Watchdog:
    """Watches one rank until it ends, or ends it."""

    def __init__(self, task: Task, memory: HeartbeatMemory) -> None:
        """Prepare to watch the rank of a task, the parent of this process."""
        self._task, self._memory, self._launcher = task, memory, parent_of(task.pid)
        self._work = Path(task.work)
        timeout_s = task.hang_timeout_s or float("inf")
        self._limits = {
            "startup": max(timeout_s, task.startup_timeout_s),
            "rendezvous": max(timeout_s, task.startup_timeout_s),
            UNWATCHED: float("inf"),
        }
        self._timeout_s = timeout_s
        self._period_s = min(5.0, max(0.5, timeout_s / 4))  # between two heartbeats
        self._grace_s = min(30.0, max(3 * self._period_s, timeout_s / 10))
        self._progress = memory.read()
        self._idle_s, self._looked = 0.0, time.monotonic()
        self._patience_s, self._counts = 0.0, dict[int, int]()
        self._count = 0
        self._wanted = self._work / FOLDER / WANTED
        self._evidence, self._lock = Evidence(), threading.Lock()
        self._is_diagnosing = self._is_back = False
        self._kills = out_of_memory_kills()

    def run(self) -> None:
        """Watch until the rank ends; end it if it hangs."""
        threading.Thread(target=self._keep_files, daemon=True).start()
        while not self._has_ended(_POLL_S):
            self._look()
            limit_s = self._limits.get(self._progress.phase, self._timeout_s)
            if self._memory.has_left:
                limit_s = max(limit_s, _EXIT_S)
            if limit_s == float("inf") or self._idle_s < max(limit_s, self._patience_s):
                continue
            self._is_diagnosing = True
            within(self._grace_s + _STORE_S, self._diagnose)
            self._is_diagnosing = False
            if not self._is_back:
                self._send(signal.SIGKILL)
                return
            self._is_back = False
        within(_STORE_S, self._report_exit)

    def _report_exit(self) -> None:
        # if the launcher has exited, the kernel ends the rank
        is_launched = state_of(self._launcher) not in "XZ"
        kills = out_of_memory_kills() - self._kills
        heartbeat = self._heartbeat()
        write_heartbeat(
            self._work, heartbeat
        )  # so that missing heartbeats from now on are not taken for a lost host
        if not self._memory.has_left and (is_launched or kills):
            report_exit(self._work, heartbeat, kills)

    def _has_ended(self, timeout_s: float) -> bool:
        """Wait for the rank to exit, and return whether it has."""
        if os.getppid() == self._task.pid:
            signal.sigtimedwait([_END_SIGNAL], timeout_s)
        return os.getppid() != self._task.pid

    def _send(self, number: int) -> None:
        if not self._has_ended(0):
            os.kill(self._task.pid, number)

    def _look(self) -> None:
        """Count the seconds since the rank's last tick, without the time in which this process was stopped."""
        now, progress = time.monotonic(), self._memory.read()
        passed_s = min(now - self._looked, _STOPPED_S)
        self._idle_s += passed_s
        if progress.ticks != self._progress.ticks:
            self._idle_s = self._patience_s = 0.0
        self._looked, self._progress = now, progress

    def _heartbeat(self) -> RankHeartbeat:
        self._count += 1
        return RankHeartbeat(
            rank=self._task.rank,
            host=socket.gethostname(),
            pid=self._task.pid,
            count=self._count,
            **asdict(self._memory.read()),
            idle_s=round(self._idle_s, 1),
            state=self._evidence.stopped or self._state_now(),
            waits=self._evidence.waits,
            reaches_first=self._evidence.reaches,
        )

    def _state_now(self) -> str:
        state = state_of(self._task.pid)
        return "L" if state in "XZ" and self._memory.has_left else state

    def _keep_files(self) -> None:
        """Write heartbeats and machine curves, and read the requests for a stop or for stacks."""
        next_s, sampler = 0.0, Sampler(self._task, self._memory)
        while True:
            if (now := time.monotonic()) >= next_s:
                write_heartbeat(self._work, self._heartbeat())
                self._kills, next_s = max(self._kills, out_of_memory_kills()), now + self._period_s
            sampler.sample_if_due()
            with suppress(OSError):  # the store may fail for a while
                self._read_requests()
            time.sleep(_POLL_S)

    def _read_requests(self) -> None:
        if reason := requested_stop(self._work):
            # the step boundaries of a script are unknown, so it gets the signal at once, and only once
            if self._progress.phase == UNWATCHED and not self._memory.stop_reason():
                self._send(signal.SIGTERM)
            self._memory.request_stop(reason)
        if self._wanted.exists():
            self._collect()
        elif not self._is_diagnosing:
            self._evidence = Evidence()

    def _collect(self) -> None:
        """Collect this rank's stacks, and whether it waits for others and reaches the first host."""
        with self._lock:
            if self._evidence.is_taken:
                return
            states = [state_of(pid) for pid in self._processes()]
            stopped = next((state for state in states if state in "Tt"), None)
            self._evidence = Evidence(stopped=stopped)
            stack = self._dump()
            reaches = self._reach()
            self._evidence = Evidence(
                is_taken=True, stopped=stopped, waits=waits_for_peers(stack), reaches=reaches
            )
        with suppress(OSError):  # the next attempt keeps the logs
            shutil.copyfile(stack_file(self._work, self._task.rank), self._stacks(self._task.rank))
        write_heartbeat(self._work, self._heartbeat())

    def _diagnose(self) -> None:
        """Diagnose the hang, and report it."""
        if self._progress.phase == ENDING and self._is_waiting_for_work():
            self._is_back, self._patience_s = True, self._idle_s + self._grace_s
            return
        ticks, end = self._progress.ticks, time.monotonic() + self._grace_s
        before = self._all_heartbeats()
        with suppress(OSError):
            self._wanted.touch()  # requests stacks from the other watchdogs too
        self._collect()
        if self._has_ended(max(0.0, end - time.monotonic())):
            return
        is_on = self._memory.read().ticks != ticks or self._memory.has_left
        if is_on and not self._evidence.stopped:
            self._is_back = True
            self._wanted.unlink(missing_ok=True)
            return
        after = self._all_heartbeats()
        with suppress(DataError, OSError):  # a full disk must not prevent the rank's end
            if not any(failure.kind == "hung" for failure in read_failures(self._work)):
                self._report(diagnose_hang(before, after))

    def _is_waiting_for_work(self) -> bool:
        """Return whether another rank still works while this rank waits after its last batch."""
        beats = read_heartbeats(self._work, self._task.num_ranks)
        others = [beat for beat in beats if beat.rank != self._task.rank]
        before, self._counts = self._counts, {beat.rank: beat.count for beat in others}
        # a heartbeat may be one period old
        return any_works(others, before, limit_s=self._timeout_s - self._period_s)

    def _all_heartbeats(self) -> list[RankHeartbeat]:
        """Return the heartbeats of all ranks, if readable."""
        mine = self._heartbeat()
        others = read_heartbeats(self._work, self._task.num_ranks)
        return sorted([mine, *(s for s in others if s.rank != mine.rank)], key=lambda s: s.rank)

    def _processes(self) -> list[int]:
        """Return the rank's process, followed by the program that the rank started, if any."""
        return [pid for pid in (self._task.pid, self._memory.program) if pid]

    def _dump(self) -> str:
        """Make the rank and its program write the stacks of their threads, and return the stacks.

        The program's stacks come last; its main thread shows what the rank waits for.
        """
        file = stack_file(self._work, self._task.rank)
        for pid in self._processes():
            with suppress(OSError):  # the process has exited
                self._dump_process(pid, file)
        with suppress(OSError):
            return file.read_text(errors="replace")
        return ""

    def _dump_process(self, pid: int, file: Path) -> None:
        """Make a process append its stacks; a stopped process is woken for this time."""
        if self._has_ended(0):
            return
        end = time.monotonic() + max(self._grace_s / 3, _DUMP_S)
        before = file.stat().st_size
        is_stopped = state_of(pid) in "Tt"
        # another thread would read the main thread's frames while they change, and may crash
        signal_main_thread(pid, self._task.dump_signal)
        if is_stopped:
            os.kill(pid, signal.SIGCONT)
        size = -1
        while (now := file.stat().st_size) != size or not has_main_thread(
            file.read_bytes()[before:]
        ):
            size = now
            if self._has_ended(_LOOK_S) or time.monotonic() > end:
                break
        if is_stopped:
            os.kill(pid, signal.SIGSTOP)

    def _reach(self) -> bool | None:
        """Return whether the first rank's host responds; a refused connection is a response."""
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

    def _stacks(self, rank: int | str) -> Path:
        return Path(self._task.logs) / f"rank-{rank}.stack"

    def _report(self, diagnosis: Diagnosis) -> None:
        message = hung_message(
            diagnosis,
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
            step=diagnosis.suspects[0].step,
        )


def within(timeout_s: float, touch_files: Callable[[], None]) -> None:
    """Call a function that uses the store's files; return early if it takes too long."""
    thread = threading.Thread(target=touch_files, daemon=True)
    thread.start()
    thread.join(timeout_s)


def main() -> None:
    """Watch the parent process."""
    descriptor, task = int(sys.argv[1]), Task(**json.loads(sys.argv[2]))
    # a scheduler signals all processes of a job; this process ignores that and exits with the rank
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # the kernel signals the rank's exit; the signal also wakes this process if it was stopped
    signal.pthread_sigmask(signal.SIG_BLOCK, [_END_SIGNAL])
    die_with_parent(_END_SIGNAL)
    if os.getppid() == task.pid:
        Watchdog(task, HeartbeatMemory(descriptor)).run()
    os._exit(0)  # a thread may be blocked by the store


if __name__ == "__main__":
    main()
