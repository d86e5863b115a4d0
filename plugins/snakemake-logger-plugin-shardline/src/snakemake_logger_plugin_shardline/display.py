"""The display of a workflow: turns Snakemake's log records into lines."""

import threading
import time
from collections.abc import Callable, Collection
from logging import WARNING, LogRecord
from typing import Any

from snakemake_logger_plugin_shardline.board import Board, Job, results_of
from snakemake_logger_plugin_shardline.board_lines import count_line, is_long, screen, table
from snakemake_logger_plugin_shardline.messages import message_of
from snakemake_logger_plugin_shardline.output import PlainOutput, Terminal
from snakemake_logger_plugin_shardline.summary import summary
from snakemake_logger_plugin_shardline.terminal_text import clock, one_line, wrap

REDRAWN_S, EVERY_S = 1.0, 30.0
# With more jobs than this, a rule's jobs are counted instead of named.
_FEW = 8
_LONG_S = 10.0
# Seconds. A retry that ends sooner is not shown: it exited because an earlier error is final.
# On a busy machine that takes longer, so a retry must also have begun to report.
_AT_ONCE_S = 5.0
Fields = dict[str, Any]  # attributes of a log record


class Display:
    """Shows the jobs of one Snakemake process.

    Args:
        output: output for the lines.
        quiet: names of what to leave out: `progress`, `rules`.
        clock: returns seconds.
    """

    def __init__(
        self,
        output: PlainOutput | Terminal,
        quiet: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output, self._quiet = output, quiet
        self._board, self._clock = Board(clock), clock
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._ticker: threading.Thread | None = None
        self._told = self._counted = clock()
        self._warned: set[str] = set()
        self._is_summed = self._has_failed = False

    def take(self, record: LogRecord) -> None:
        """Show a log record."""
        with self._lock:
            given = vars(record)
            if "results" in given:
                self._board.results = results_of(given["results"])
                self._sum()
            elif given.get("event") in self._EVENTS:
                self._EVENTS[given["event"]](self, given)
            elif message := message_of(record):
                self._message(message, is_warning=record.levelno >= WARNING)

    def _message(self, message: str, *, is_warning: bool) -> None:
        if is_warning and message in self._warned:
            return
        self._warned |= {message} if is_warning else set()
        self._say(wrap(message, self._output.width))

    def _plan(self, given: Fields) -> None:
        self._board.plan(given.get("stats") or {})

    def _start(self, given: Fields) -> None:
        job = self._board.start(
            given["jobid"],
            given["rule_name"],
            given.get("rule_msg"),
            given.get("log") or (),
            given["created"],
        )
        self._begin()
        if not (given.get("output") or given.get("log")):
            return  # a target, such as `all`
        job.is_told = job.attempts == 1
        if job.is_told and self._is_named(job):
            self._tell(one_line(job.message))

    def _finish(self, given: Fields) -> None:
        job = self._board.finish(given["job_id"])
        if job is None:
            return
        if job.progress and job.progress.warning:
            self._message(one_line(job.progress.warning), is_warning=True)
        done = f"{one_line(job.message)}: done in {clock(job.took)}"
        if note := job.progress and job.progress.note:
            self._tell(f"{done}, {one_line(note)}", is_on_terminal=True)
        elif self._is_named(job) and job.took >= _LONG_S:
            self._tell(done)
        if not (self._is_named(job) or self._output.is_terminal):
            self._count(job.rule)

    def _fail(self, given: Fields) -> None:
        job = self._board.fail(
            given["jobid"], given["rule_name"], _cause(given), given.get("log") or ()
        )
        if not job.is_told:
            return  # it exited at once, as a retry after a final error does; the table shows the cause
        log = f"; log: {job.log}" if job.log else ""
        self._tell(f"{one_line(job.message)}: {job.state}{log}", is_failure=True)

    def _fail_group(self, given: Fields) -> None:
        for one in given.get("job_error_info") or ():
            self._fail({**one, "rule_msg": one.get("msg")})

    _EVENTS: dict[Any, Callable[["Display", Fields], None]] = {  # noqa: RUF012  # constant
        "run_info": _plan, "job_info": _start, "job_finished": _finish, "job_error": _fail, "group_error": _fail_group,
    }  # fmt: skip

    def _is_named(self, job: Job) -> bool:
        return self._board.totals.get(job.rule, 1) <= _FEW

    def _count(self, rule: str) -> None:
        is_last = self._board.count("done")[rule] >= self._board.totals.get(rule, 0)
        if is_last or self._clock() - self._counted >= EVERY_S:
            self._counted = self._clock()
            self._tell(count_line(self._board, rule))

    def _tell(self, line: str, *, is_failure: bool = False, is_on_terminal: bool = False) -> None:
        """Write a line about a job; a terminal shows most jobs in the redrawn lines alone."""
        is_hidden = self._output.is_terminal and not is_on_terminal
        if is_failure or not (is_hidden or "rules" in self._quiet):
            self._say(wrap(f"{time.strftime('%H:%M:%S')}  {line}", self._output.width))

    def _say(self, lines: list[str]) -> None:
        self._output.say(lines)
        self._draw()

    def _draw(self) -> None:
        if self._output.is_terminal and "progress" not in self._quiet and self._ticker:
            width = self._output.width or 80
            self._output.draw(screen(self._board, width, self._output.height))

    def _begin(self) -> None:
        if self._ticker is None:
            self._output.begin()
            self._told = self._counted = self._clock()
            self._ticker = threading.Thread(target=self._watch, name="shardline-log", daemon=True)
            self._ticker.start()
        self._draw()

    def _watch(self) -> None:
        while not self._ended.wait(REDRAWN_S):
            with self._lock:
                if self._ended.is_set():
                    return
                try:
                    self.tick()
                except Exception:  # an error of the display must not end the workflow
                    return

    def tick(self) -> None:
        """Show the jobs' progress, if it is time."""
        with self._lock:
            self._tell_again()
            is_due = self._clock() - self._told >= EVERY_S
            if not (self._output.is_terminal or is_due):
                return
            running = self._board.running()
            for job in running:
                self._board.look(job)
            self._draw()
            if not self._output.is_terminal and "progress" not in self._quiet:
                self._told = self._clock()
                jobs = [(job, self._board.seconds(job)) for job in running if is_long(job)]
                now = time.strftime("%H:%M:%S")
                self._output.say([f"{now}  {line}" for line in table(jobs, None)])

    def _tell_again(self) -> None:
        """Show the start of attempts that did not end at once."""
        for job in self._board.running():
            is_late = not job.is_told and self._board.seconds(job) >= _AT_ONCE_S
            if is_late and self._board.is_at_work(job):
                job.is_told = True
                if self._is_named(job):
                    self._tell(f"{one_line(job.message)}, attempt {job.attempts}")

    def _sum(self) -> None:
        """Write the final table, once."""
        self._board.stop()
        if self._is_summed or self._ticker is None:
            return
        self._is_summed = True
        self._end()
        if self._board.ended_early() or "rules" not in self._quiet:
            self._output.say(["", *summary(self._board, self._output.width)])

    def _end(self) -> None:
        self._ended.set()
        self._output.end()

    def close(self) -> None:
        """Write the remaining lines, and restore the terminal."""
        with self._lock:
            if not self._is_summed:
                self._sum()
            self._end()

    def give_up(self) -> None:
        """Restore the terminal, and write nothing more."""
        self._is_summed = True
        self._end()


def _cause(given: Fields) -> str | None:
    """Return the executor's message about a failure."""
    found = [given.get("rule_msg"), *(given.get("aux") or {}).values()]
    return next((str(text).strip() for text in found if text), None)
