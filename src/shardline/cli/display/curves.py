"""A curve and tables of `shardline find`."""

from collections.abc import Mapping, Sequence
from string import ascii_letters
from typing import TYPE_CHECKING

from rich.filesize import decimal

from shardline.cli.display.plain_tables import show_rows
from shardline.cli.display.terminal import console, say
from shardline.records.found import FoundBatch, FoundRates, MeasuredBatch

if TYPE_CHECKING:
    import pandas as pd

_HEIGHT, _WIDEST = 12, 100
_MARKS = f"*o+x#@%&{ascii_letters}"  # of the runs of a figure
_MARGIN = 10  # columns for the values beside the curve


def show_rates(found: FoundRates) -> None:
    """Print the loss over the learning rate, and the line for the config."""
    if not found.rates:
        say("the loss was not finite from the first step on; look at the model and its data")
        return
    for line in curve(found.rates, found.losses, found.suggested, console().width):
        say(line)
    if found.suggested is None:
        say("the loss does not fall at any learning rate; look at the model and its data")
    elif not found.key:
        say(f"the loss falls fastest at {found.suggested:g}; set this rate in configure_optimizers")
    else:
        say("the loss falls fastest at this rate; for the config or a column of the run table:")
        say(f"{found.key}: {found.suggested:g}")


def curve(
    rates: Sequence[float], losses: Sequence[float], mark: float | None, width: int
) -> list[str]:
    """Return lines with a curve of losses over the logarithm of rates.

    Args:
        rates: Learning rates, evenly spaced on a logarithmic axis.
        mark: Rate to mark below the curve.
        width: Columns of the terminal.
    """
    columns = max(10, min(width, _WIDEST) - _MARGIN)
    num = len(losses)
    # a diverging loss must not flatten the rest
    low, high = min(losses), max(losses[: max(1, num // 10)])
    high = max(high, low + 1e-12)
    places = [min(num - 1, column * num // columns) for column in range(columns)]
    shown = [min(high, losses[place]) for place in places]
    rows = [round((high - value) / (high - low) * (_HEIGHT - 1)) for value in shown]
    lines = []
    for row in range(_HEIGHT):
        value = {0: f"{high:.3g}", _HEIGHT - 1: f"{low:.3g}"}.get(row, "")
        cells = "".join("*" if at == row else " " for at in rows)
        lines.append(f"{value:>{_MARGIN - 2}} |{cells}".rstrip())
    lines.append(" " * (_MARGIN - 2) + " +" + "-" * columns)
    ends = f"{rates[0]:.0e}", f"{rates[-1]:.0e}"
    axis = ends[0] + " " * (columns - len("".join(ends))) + ends[1]
    lines.append(" " * _MARGIN + axis)
    if mark is not None:
        nearest = min(range(columns), key=lambda column: abs(rates[places[column]] - mark))
        lines.append(" " * (_MARGIN + nearest) + "^")
    return lines


def show_curves(frames: Mapping[str, "pd.DataFrame"], metric: str, axis: str) -> None:
    """Print the curves of a metric, with a mark for each run.

    Args:
        frames: Metrics of each run by name.
        axis: Horizontal axis: `step`, or a column of the metrics.
    """
    points = {
        run: frame.reset_index()[[axis, metric]].dropna().to_numpy(float)
        for run, frame in frames.items()
    }
    xs = [x for found in points.values() for x, _ in found]
    ys = [y for found in points.values() for _, y in found]
    if not xs:
        say(f"{metric}: nothing is logged yet")
        return
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    columns = max(10, min(console().width, _WIDEST) - _MARGIN)
    cells = [[" "] * columns for _ in range(_HEIGHT)]
    for number, found in enumerate(points.values()):
        for x, y in found:
            row = round((high - y) / ((high - low) or 1) * (_HEIGHT - 1))
            column = round((x - left) / ((right - left) or 1) * (columns - 1))
            cells[row][column] = _MARKS[number % len(_MARKS)]
    say(metric)
    for row, line in enumerate(cells):
        value = {0: f"{high:.3g}", _HEIGHT - 1: f"{low:.3g}"}.get(row, "")
        say(f"{value:>{_MARGIN - 2}} |{''.join(line)}".rstrip())
    say(" " * (_MARGIN - 2) + " +" + "-" * columns)
    ends = f"{left:g}", f"{axis} {right:g}"
    say(" " * _MARGIN + ends[0] + " " * (columns - len("".join(ends))) + ends[1])
    say("  ".join(f"{_MARKS[at % len(_MARKS)]} {run}" for at, run in enumerate(points)))


def show_batch(found: FoundBatch) -> None:
    """Print the batches that were tried, and the line for the config."""
    rows = [[f"{one.batch:,}", _memory(one)] for one in found.tried]
    show_rows(("global batch", "memory of a rank"), rows)
    limits = {"memory": "larger batches do not fit", "rows": "an epoch has no more rows"}
    say(f"{limits[found.bound]}; for the config or a column of the run table:")
    say(f"global_batch: {found.largest}")


def _memory(one: MeasuredBatch) -> str:
    if one.peak_bytes is None:
        return "does not fit"
    return f"{decimal(one.peak_bytes)} of {decimal(one.limit_bytes or 0)}"
