"""The report: one self-contained HTML page from the small sealed files of every run.

Reads files only; knows nothing of torch, Snakemake or how a run was made. The same files give the
same bytes, whatever their order: the page holds no time of its own making.
"""

from collections.abc import Sequence
from pathlib import Path

from shardline import charts
from shardline.errors import DataError
from shardline.files import write_bytes
from shardline.report.leaderboard import rank
from shardline.report.run import Run, wilson_interval
from shardline.report.sealed import RunFiles, is_number, read_run
from shardline.report.studies import Study
from shardline.report.template import load_template

__all__ = ["RunFiles", "render", "wilson_interval", "write_report"]

MAX_SETTING_COLUMNS = 4
_OWN_COLUMNS = frozenset({"model", "dataset", "dataset.name"})


def render(
    run_dirs: Sequence[RunFiles], *, generated_from: str, studies: Sequence[Study] = ()
) -> str:
    """Render the report page.

    Args:
        run_dirs: The runs' files, in any order.
        generated_from: What the reader may want to go back to, such as "config/config.yaml,
            commit 1a2b3c4"; shown as text.
        studies: The scaling studies, whose runs are among those given.

    Returns:
        A complete HTML document that needs no network.

    Raises:
        DataError: there is no run, or a file is missing or malformed; names file and remedy.
    """
    if not run_dirs:
        raise DataError(
            "the report was given no runs; expected at least one finished run: "
            "add a row to config/runs.tsv and run `snakemake` again"
        )
    groups = rank([read_run(files) for files in run_dirs])
    runs = [entry.run for group in groups for entry in group.entries]
    columns = _setting_columns(runs)
    return load_template().render(
        groups=groups,
        runs=runs,
        generated_from=generated_from,
        studies=studies,
        columns=columns[:MAX_SETTING_COLUMNS],
        overflow=columns[MAX_SETTING_COLUMNS:],
        numeric=[key for key in columns if all(is_number(run.setting(key)) for run in runs)],
        notes=_notes(runs),
        max_points=charts.MAX_POINTS_PER_CURVE,
        other_runs=charts.OTHER_RUNS,
        bundle=charts.javascript_bundle() if any(group.chart for group in groups) else "",
    )


def write_report(
    run_dirs: Sequence[RunFiles], target: Path, *, generated_from: str,
    studies: Sequence[Study] = (),
) -> None:  # fmt: skip
    """Write the report page; the target appears complete or not at all.

    Args:
        run_dirs: The runs' files, in any order.
        target: HTML file to write; its folder is made if needed.
        generated_from: See `render`.
        studies: See `render`.

    Raises:
        DataError: as `render`, or the page cannot be written.
    """
    page = render(run_dirs, generated_from=generated_from, studies=studies)
    write_bytes(target, page.encode())


def _setting_columns(runs: Sequence[Run]) -> list[str]:
    varied = sorted({key for run in runs for key in run.spec.get("varied", {})} - _OWN_COLUMNS)
    return [key for key in varied if len({repr(run.setting(key)) for run in runs}) > 1]


def _notes(runs: Sequence[Run]) -> list[str]:
    states = [run.provenance.get("git", {}) for run in runs]
    dirty = [run.name for run, git in zip(runs, states, strict=True) if git.get("dirty")]
    broken = [run.name for run in runs if any(c.num_non_finite for c in run.curves.values())]
    num_commits = len({git.get("commit") for git in states} - {None})
    notes = []
    if dirty:
        notes.append(f"Trained from a working tree with uncommitted changes: {_listing(dirty)}.")
    if num_commits > 1:
        notes.append(f"These runs were trained from {num_commits} different git commits.")
    if broken:
        notes.append(
            f"Recorded values that are not finite, left out of curves: {_listing(broken)}."
        )
    return notes


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
