"""The board as lines of text, by pure functions of jobs, width and height."""

from collections.abc import Iterable, Sequence

from snakemake_logger_plugin_shardline.board import Board, Job
from snakemake_logger_plugin_shardline.job_progress import ReportedProgress
from snakemake_logger_plugin_shardline.terminal_text import (
    cells,
    clip,
    clock,
    number,
    one_line,
    pad,
)

_GAP = "  "
_LONGEST_TITLE = 24
_METRICS = 2
# Columns to leave out if they do not fit, the least important first: epoch, second metric, rate, loss.
_TITLE, _STEP, _EPOCH, _LOSS, _METRIC, _RATE, _LEFT = range(7)
_LEFT_OUT = (_EPOCH, _METRIC, _RATE, _LOSS, _LEFT)


def screen(board: Board, width: int, height: int) -> list[str]:
    """Return the lines of a terminal while jobs run.

    Args:
        width: greatest width of a line, columns.
        height: greatest number of lines; further jobs are counted.
    """
    running = board.running()
    reporting = [job for job in running if is_long(job)]
    lines = [*table([(job, board.seconds(job)) for job in reporting[:height]], width)]
    lines += [clip(line, width) for line in _of_rules(board, running)]
    lines += [
        clip(f"{one_line(job.title)} {job.state}: {one_line(cause)}", width)
        for job in board.ended_early()
        for cause in job.causes[-1:] or ["see its log"]
    ]
    hidden = max(len(reporting) - height, 0)
    room = max(height - 1, 1)  # the last line is the total
    if len(lines) + hidden > room:
        kept = max(room - 1, 0)
        lines = [*lines[:kept], clip(f"and {len(lines) + hidden - kept} more", width)][:room]
    return [*lines, clip(total(board), width)][-max(height, 1) :]


def is_long(job: Job) -> bool:
    """Return whether a job gets its own line, because it reports steps."""
    return job.progress is not None and job.progress.step is not None


def _of_rules(board: Board, running: Iterable[Job]) -> list[str]:
    """Return a line per rule whose jobs report no steps."""
    rules: dict[str, list[Job]] = {}
    for job in running:
        if not is_long(job):
            rules.setdefault(job.rule, []).append(job)
    return [
        f"{one_line(jobs[0].message)}{_GAP}{clock(board.seconds(jobs[0]))}"
        if board.totals.get(rule, 1) == 1
        else f"{_counted(board, rule)}{_GAP}{_names(jobs)}"
        for rule, jobs in rules.items()
    ]


def _names(jobs: Sequence[Job]) -> str:
    more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return f"{one_line(jobs[0].message)}{more}"


def _counted(board: Board, rule: str) -> str:
    return f"{one_line(rule)} {board.count('done')[rule]}/{board.totals.get(rule, 1)}"


def count_line(board: Board, rule: str) -> str:
    """Return a line with the number of done jobs of a rule."""
    return f"{_counted(board, rule)} done"


def total(board: Board) -> str:
    """Return a line with the numbers of done, failed and stopped jobs."""
    counts = {state: board.count(state).total() for state in ("done", "failed", "stopped")}
    jobs = sum(board.totals.values()) or len(board.jobs)
    parts = [f"{counts.pop('done')} of {jobs} jobs done"]
    parts += [f"{number} {state}" for state, number in counts.items() if number]
    return f"{', '.join(parts)}, {clock(board.elapsed())}"


def table(jobs: Sequence[tuple[Job, float]], width: int | None) -> list[str]:
    """Return a line per job that reports steps, in columns.

    Args:
        jobs: jobs, each with its seconds of running.
        width: columns of a terminal; None for no limit.
    """
    rows = [_columns(job, seconds) for job, seconds in jobs]
    if not rows:
        return []
    kept = [place for place in range(7) if any(row[place] for row in rows)]
    longest = None if width is None else _LONGEST_TITLE
    for row in rows:
        row[_TITLE] = row[_TITLE] if longest is None else clip(row[_TITLE], longest)
    for place in _LEFT_OUT:
        if width is None or _total_width(rows, kept) <= width:
            break
        kept = [one for one in kept if one != place]
    widths = {place: max(cells(row[place]) for row in rows) for place in kept}
    lines = [_GAP.join(pad(row[place], widths[place]) for place in kept).rstrip() for row in rows]
    return lines if width is None else [clip(line, width) for line in lines]


def _total_width(rows: Sequence[Sequence[str]], kept: Sequence[int]) -> int:
    return sum(max(cells(row[place]) for row in rows) + len(_GAP) for place in kept) - len(_GAP)


def _columns(job: Job, seconds: float) -> list[str]:
    progress = job.progress or ReportedProgress()
    metrics = [
        f"{one_line(name)} {number(value)}"
        for name, value in list(progress.metrics.items())[:_METRICS]
    ]
    metrics += [""] * (_METRICS - len(metrics))
    left = f"{clock(progress.left_s)} left" if progress.left_s is not None else clock(seconds)
    rate = f"{number(progress.rate)} {one_line(progress.unit)}s/s" if progress.rate else ""
    step = _of(one_line(progress.unit), progress.step, progress.steps)
    return [
        one_line(job.title), step, _of("epoch", progress.epoch, progress.epochs), *metrics, rate, left,
    ]  # fmt: skip


def _of(what: str, done: int | None, all_of_it: int | None) -> str:
    if done is None:
        return ""
    return f"{what} {done}" if all_of_it is None else f"{what} {done}/{all_of_it}"
