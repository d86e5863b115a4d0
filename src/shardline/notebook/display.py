"""What a notebook shows of a project, its runs and its studies."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from shardline.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

_MOST_CURVES = 6
_NOT_DRAWN = ("epoch", "wall_s")


def table_html(rows: "pd.DataFrame", caption: str) -> str:
    """Return a table, without columns that are empty in all rows."""
    shown = rows.dropna(axis="columns", how="all")
    table = shown.to_html(float_format="{:.4g}".format, border=0, na_rep="")
    return f"<figure><figcaption>{escape(caption)}</figcaption>{table}</figure>"


def run_html(
    name: str, identity: str, state: str, summary: Mapping[str, Any], metrics: "pd.DataFrame"
) -> str:
    """Return the metrics of a run and their curves."""
    facts = "".join(
        f"<tr><th scope='row'>{escape(key)}</th><td>{_shown(value)}</td></tr>"
        for key, value in summary.items() if value is not None
    )  # fmt: skip
    title = f"<b>{escape(name)}</b> <code>{identity}</code> {state}"
    return (
        f"<figure><figcaption>{title}</figcaption><table>{facts}</table>{_curves(metrics)}</figure>"
    )


def study_html(title: str, trials: "pd.DataFrame", metric: str, mode: str) -> str:
    """Return the trials of a study, and a chart of their values with the best so far."""
    from shardline.notebook.figures import progress_of_study, to_svg

    shown = trials[trials["state"] != "new"].replace("", None)
    chart = to_svg(progress_of_study(trials, metric, mode)) if trials["value"].count() else ""
    return table_html(shown, title) + chart


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))


def _curves(metrics: "pd.DataFrame") -> str:
    from shardline.notebook.figures import curves, to_svg

    names = [name for name in metrics.columns if name not in _NOT_DRAWN and metrics[name].count()]
    if not names:
        return ""
    try:
        return to_svg(curves({"": metrics}, names[:_MOST_CURVES], width=260))
    except ConfigError as error:  # the table is shown without the extra `figures`
        return f"<p>{escape(str(error))}</p>"
