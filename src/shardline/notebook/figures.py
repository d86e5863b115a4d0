"""Figures of learning curves, as files for papers and pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt

from shardline.core.errors import ConfigError
from shardline.core.extras import naming_extras
from shardline.core.files import write_bytes, writing
from shardline.core.suggest import suggest
from shardline.report.charts.axes import y_axis
from shardline.report.charts.series import PALETTE

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("png", "svg", "pdf")
_HEIGHT = 220
_ACROSS = 3  # panels in a row
_DASHES = (
    [1, 0],
    [6, 3],
    [2, 2],
    [8, 3, 2, 3],
)  # of the runs after those that have a colour of their own


def curves(
    metrics: Mapping[str, "pd.DataFrame"],
    names: Sequence[str],
    *,
    x: str = "step",
    width: int = 320,
) -> Any:
    """Return a panel for each metric, with a line for each run.

    Args:
        metrics: Metrics of each run by name, see `Run.metrics`.
        names: Metrics to draw.
        x: Horizontal axis: `step`, `epoch` or `wall_s`.
        width: Width of a panel in pixels.

    Raises:
        ConfigError: No run logged one of the metrics; the message suggests the nearest.
    """
    known = {name for frame in metrics.values() for name in frame.columns} - {"epoch", "wall_s"}
    for name in names:
        if name not in known:
            remedy = suggest(name, known) if known else "nothing is logged yet, so train it first"
            raise ConfigError(f'{", ".join(metrics)} logged no metric "{name}"; {remedy}')
    panels = [_panel(metrics, name, x, width) for name in names]
    # a browser's font may be wider than the one that the legend was measured with
    right = 30 if len(metrics) > 1 else 5
    padding = {"left": 5, "top": 5, "right": right, "bottom": 5}
    return alt.concat(*panels, columns=_ACROSS, padding=padding).configure_view(stroke=None)


def _panel(metrics: Mapping[str, "pd.DataFrame"], name: str, x: str, width: int) -> Any:
    rows: list[dict[str, Any]] = []
    for run, frame in metrics.items():
        if name in frame.columns:
            at = frame.reset_index()[[x, name]].dropna()
            rows += [
                {"run": run, "x": float(place), "y": float(value)} for place, value in at.to_numpy()
            ]
    values = [row["y"] for row in rows]
    titles = {"step": "optimiser step", "epoch": "epoch", "wall_s": "seconds of training"}
    legend = alt.Legend(title=None) if len(metrics) > 1 else None
    runs, num = [*metrics], len(PALETTE)
    colours = [PALETTE[at % num] for at in range(len(runs))]
    dashes = [_DASHES[at // num % len(_DASHES)] for at in range(len(runs))]
    return (
        alt.Chart(alt.InlineData(values=rows), width=width, height=_HEIGHT)
        .mark_line(strokeWidth=1.5)
        .encode(
            x=alt.X("x:Q", title=titles[x]),
            y=y_axis("y:Q", values, name),
            color=alt.Color("run:N", scale=alt.Scale(domain=runs, range=colours), legend=legend),
            strokeDash=alt.StrokeDash(
                "run:N", scale=alt.Scale(domain=runs, range=dashes), legend=legend
            ),
        )
    )


def progress_of_study(trials: "pd.DataFrame", metric: str, mode: str) -> Any:
    """Return a panel with the value of each trial, and a line of the best value so far.

    Args:
        trials: Trials, see `Study.trials`.
        metric: Title of the vertical axis.
        mode: `min` or `max`.
    """
    values = trials["value"].dropna()
    best = values.cummin() if mode == "min" else values.cummax()
    rows = [
        {"trial": int(number), "value": float(value), "best": float(best[number])}
        for number, value in values.items()
    ]
    axis = y_axis("value:Q", [*map(float, values)], metric)
    base = alt.Chart(alt.InlineData(values=rows), width=420, height=_HEIGHT).encode(
        x=alt.X("trial:Q", axis=alt.Axis(tickMinStep=1))
    )
    so_far = base.mark_line(interpolate="step-after", strokeWidth=1.5, color=PALETTE[0])
    dots = base.mark_point(filled=True, size=40, color=PALETTE[1]).encode(y=axis)
    return (so_far.encode(y=alt.Y("best:Q", title=metric)) + dots).configure_view(stroke=None)


def to_svg(chart: Any) -> str:
    """Return a figure as SVG."""
    with naming_extras():
        import vl_convert

    return vl_convert.vegalite_to_svg(chart.to_dict())


def save(chart: Any, file: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the ending of the file's name.

    Raises:
        ConfigError: The name has another ending.
        DataError: The file cannot be written.
    """
    spec, kind = chart.to_dict(), file.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ConfigError(
            f"{file} ends in {file.suffix!r}; name a file that ends in .png, .svg or .pdf"
        )
    with naming_extras():
        import vl_convert

    made = {
        "png": lambda: vl_convert.vegalite_to_png(spec, ppi=200),
        "svg": lambda: vl_convert.vegalite_to_svg(spec).encode(),
        "pdf": lambda: vl_convert.vegalite_to_pdf(spec),
    }[kind]()
    with writing(file):
        write_bytes(file, made)
