"""Tables of results for papers: means over seeds and folds with their intervals."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from shardline.config.plans import RunPlan
from shardline.core.errors import ConfigError
from shardline.core.extras import naming_extras
from shardline.core.nested import flatten
from shardline.core.repeats import name_of_repeats
from shardline.core.suggest import suggest
from shardline.notebook.run import COSTS
from shardline.results.repeats import repeats_of, runs_alike

if TYPE_CHECKING:
    import pandas as pd

    from shardline.notebook.project import Project

Format = Literal["csv", "latex", "markdown"]
_FACTS = ("state", "id")  # of single runs
_SEEDS = ("seed", "fold")
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def results_table(project: "Project", columns: Sequence[str] = ()) -> "pd.DataFrame":
    """Return a row for each group of runs that differ only in the seed, or in the fold that they test on.

    A metric has three columns: its mean, `METRIC low` and `METRIC high`, the 95 % confidence interval of the mean by
    Student's t; NaN for a single value. `repeats` is the number of runs with a result. `attrs["left_out"]` of the table
    has a sentence for each value that is not finite, which the mean leaves out.

    Args:
        columns: Settings and metrics to show; by default the settings that differ, and all held-out metrics.

    Raises:
        ConfigError: A column is unknown; the message suggests the nearest.
    """
    with naming_extras():
        import pandas as pd

    runs, metrics = project.runs, project.metric_names
    every = {name: flatten(run.settings) for name, run in project.items()}
    settings = [name for name in runs.columns if name not in {*_FACTS, *_SEEDS, *metrics, *COSTS}]
    of_settings = dict.fromkeys(key for one in every.values() for key in one)
    known = [*runs.columns, *metrics]
    for name in columns:
        if name not in known and name not in of_settings:
            none = "" if metrics else "no run has a held-out metric yet, and "
            raise ConfigError(
                f'{none}no column is called "{name}"; {suggest(name, known, of_settings)}'
            )
    shown = [*columns] or [*settings, *metrics]
    rows, left_out = [], list[str]()
    for alike in runs_alike(project.plans):
        names = [run.names[0] for run in alike]
        row: dict[str, object] = {"name": name_of_repeats(names)}
        for name in shown:
            if name in metrics or name in COSTS:
                row |= _mean(alike, runs, name)
                left_out += _not_finite(alike, runs, name)
            else:
                given = (
                    runs.loc[one, name] if name in runs else every[one].get(name) for one in names
                )
                values = dict.fromkeys(map(str, given))
                row[name] = ", ".join(values)
        row["repeats"] = int(sum(runs.loc[names, "state"] == "done"))
        rows.append(row)
    table = pd.DataFrame(rows).set_index("name") if rows else pd.DataFrame()
    table.attrs["left_out"] = left_out
    return table


def _not_finite(alike: Sequence[RunPlan], runs: "pd.DataFrame", metric: str) -> list[str]:
    """Return a sentence for each evaluated run whose value no mean can contain."""
    values = {run.names[0]: float(runs.loc[run.names[0], metric]) for run in alike}
    if not any(map(math.isfinite, values.values())):
        return []  # the row has no mean
    return [
        f"{metric} of {name} is {value}; the mean is over the other runs"
        for name, value in values.items()
        if runs.loc[name, "state"] == "done" and not math.isfinite(value)
    ]


def _mean(alike: Sequence[RunPlan], runs: "pd.DataFrame", metric: str) -> dict[str, float]:
    found = [(run, float(runs.loc[run.names[0], metric])) for run in alike]
    found = [(run, value) for run, value in found if math.isfinite(value)]
    repeats = repeats_of([run for run, _ in found] or alike, metric, [value for _, value in found])
    low, high = repeats.interval or (math.nan, math.nan)
    return {metric: repeats.mean, f"{metric} low": low, f"{metric} high": high}


def write_table(table: "pd.DataFrame", form: Format) -> str:
    """Return a table of `results_table` as text: CSV with all numbers, else `mean ± half of the interval`."""
    if form == "csv":
        return str(table.to_csv())
    intervals = {name for name in table.columns if f"{name} low" in table.columns}
    names = [
        name
        for name in table.columns
        if re.sub(r" (low|high)$", "", name) not in intervals or name in intervals
    ]
    escape: Callable[[str], str] = _for_latex if form == "latex" else _for_markdown
    sign = r" $\pm$ " if form == "latex" else " ± "
    lines = [["name", *names]]
    for name, row in table.iterrows():
        cells = [_cell(row, one, sign if one in intervals else "", escape) for one in names]
        lines.append([escape(str(name)), *cells])
    head, *body = lines
    head = [escape(one) for one in head]
    if form == "markdown":
        rule = ["---", *("---:" if one in intervals else "---" for one in names)]
        return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *body))
    rows = "".join(f"{' & '.join(line)} \\\\\n" for line in body)
    align = "l" + "".join("r" if one in intervals else "l" for one in names)
    return (
        f"\\begin{{tabular}}{{{align}}}\n\\toprule\n{' & '.join(head)} \\\\\n\\midrule\n{rows}"
        "\\bottomrule\n\\end{tabular}\n"
    )


def _cell(row: Mapping[str, object], name: str, sign: str, escape: Callable[[str], str]) -> str:
    value = row[name]
    if not sign:
        return escape(str(value))
    if not isinstance(value, float) or math.isnan(value):
        return ""
    low, high = row[f"{name} low"], row[f"{name} high"]
    if not isinstance(low, float) or not isinstance(high, float) or math.isnan(low):
        return f"{value:.4g}"
    half = max(high - value, value - low)
    # as many decimals as the first two digits of the interval need
    decimals = max(0, 1 - math.floor(math.log10(half))) if half > 0 else 4
    return f"{value:.{decimals}f}{sign}{half:.{decimals}f}"


def _for_latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _for_markdown(text: str) -> str:
    return text.replace("|", "\\|")
