"""The final table: what is done, what failed and why, and what was skipped."""

from collections.abc import Sequence

from snakemake_logger_plugin_shardline.board import Board, Job, Result
from snakemake_logger_plugin_shardline.board_lines import total
from snakemake_logger_plugin_shardline.terminal_text import cells, clip, one_line, pad, wrap

MOST_ROWS = 50
_LONGEST_TITLE = 40
_INDENT = "    "


def summary(board: Board, width: int | None) -> list[str]:
    """Return the table of results and failed jobs, and a last line that counts jobs.

    Args:
        width: columns of a terminal; None to keep the texts' own lines.
    """
    failed = board.ended_early()
    others = [job for job in failed if not any(_is_of(job, one) for one in board.results)]
    states = ("done", "partly", "stopped", "failed", "skipped")
    blocks: dict[str, list[list[str]]] = {state: [] for state in states}
    titles = [one_line(result.title) for result in board.results] + [
        one_line(job.title) for job in others
    ]
    longest = min(max(map(cells, titles), default=0), _LONGEST_TITLE)
    for result in board.results:
        own = [job for job in failed if _is_of(job, result)]
        if (state := _state(board, result, own)) is None:
            continue
        blocks[state].append(
            [
                _row(result.title, state, result.headline, longest, width),
                *_below(result, own, width),
            ]
        )
    for job in others:
        blocks[job.state].append(
            [_row(job.title, job.state, "", longest, width), *_causes(job, width)]
        )
    lines = [line for state, rows in blocks.items() for line in _limited(state, rows)]
    return [*lines, *wrap(total(board), width)]


def _state(board: Board, result: Result, failed: Sequence[Job]) -> str | None:
    """Return the state of a result; None if this Snakemake process was not asked for it."""
    if result.is_done or failed:
        states = {job.state for job in failed}
        return "done" if result.is_done else "failed" if "failed" in states else "stopped"
    if any(_is_of(job, result) and job.state == "done" for job in board.jobs.values()):
        return "partly"
    is_whole = board.count("done").total() >= sum(board.totals.values())
    return None if is_whole else "skipped"


def _is_of(job: Job, result: Result) -> bool:
    """Return whether a job belongs to a result; in a storage, the log's path ends with its name."""
    return any(job.log == log or job.log.endswith(f"/{log}") for log in result.logs)


def _row(title: str, state: str, headline: str, longest: int, width: int | None) -> str:
    line = f"{pad(clip(one_line(title), longest), longest)}  {pad(state, 7)}  {one_line(headline)}".rstrip()
    return line if width is None else clip(line, width)


def _below(result: Result, failed: Sequence[Job], width: int | None) -> list[str]:
    lines = wrap(result.note, width, _INDENT) if result.note else []
    return [*lines, *(line for job in failed for line in _causes(job, width, result.cause))]


def _causes(job: Job, width: int | None, known: str = "") -> list[str]:
    causes = job.causes or [known or job.state]
    lines = [line for cause in _once(causes) for line in wrap(cause, width, _INDENT)]
    return [*lines, *(wrap(f"log: {job.log}", width, _INDENT) if job.log else [])]


def _once(causes: Sequence[str]) -> list[str]:
    """Return the causes without those that another cause contains."""
    plain = [" ".join(cause.split()) for cause in causes]
    return [
        cause
        for cause, mine in zip(causes, plain, strict=True)
        if not any(mine in other and mine != other for other in plain)
    ]


def _limited(state: str, rows: Sequence[list[str]]) -> list[str]:
    """Return the lines of the first `MOST_ROWS` rows, and the number of further rows."""
    lines = [line for row in rows[:MOST_ROWS] for line in row]
    more = len(rows) - MOST_ROWS
    return [*lines, f"and {more} more {state}"] if more > 0 else lines
