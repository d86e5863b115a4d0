"""What a notebook shows of a project and of its runs."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from shardline.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

_MOST_CURVES = 6


def table_html(runs: "pd.DataFrame", caption: str) -> str:
    """Return a table of runs, without columns that are empty in all of them."""
    shown = runs.dropna(axis="columns", how="all")
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


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))


def _curves(metrics: "pd.DataFrame") -> str:
    from shardline.notebook.figures import curves, to_svg

    names = [name for name in metrics.columns if name not in ("epoch", "wall_s")]
    if not names:
        return ""
    try:
        return to_svg(curves({"": metrics}, names[:_MOST_CURVES], width=260))
    except ConfigError as error:  # the table is shown without the extra `figures`
        return f"<p>{escape(str(error))}</p>"
