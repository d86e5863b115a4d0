"""Render the report page from `report.json` alone."""

from collections.abc import Sequence

from msgspec import convert

from shardline.config.resolved import Study
from shardline.core.visible import visible
from shardline.records.base import encode
from shardline.records.reported_runs import ReportedRun
from shardline.records.reports import Report
from shardline.report.charts.curves import MAX_POINTS_PER_CURVE
from shardline.report.charts.resource_curves import view_machine
from shardline.report.compare import comparison
from shardline.report.leaderboard import Leaderboards
from shardline.report.scaling_runs import view_study
from shardline.report.sealed import is_number
from shardline.report.sweep_views import view_sweep
from shardline.report.template import javascript_bundle, load_template

MAX_SETTING_COLUMNS = 4
MAX_FURTHER_COLUMNS = 12  # hidden until a reader chooses them
_OWN_COLUMNS = frozenset({"model", "dataset", "dataset.name", "seed", "fold"})


def render_page(report: Report) -> str:
    """Return the page of a report as a complete HTML document."""
    boards = Leaderboards.of(report.runs)
    runs, document = boards.runs, encode(report)
    columns = _setting_columns([run for run in runs if run.in_table])
    records = {record["id"]: record for record in document["runs"]}
    machines = {run.id: view_machine(run.resources) for run in runs}
    studies = convert(report.studies, list[Study])
    has_charts = any(group.chart for group in boards.groups) or any(machines.values())
    page = load_template().render(
        document=document,
        records=records,
        trained={run.training_id or run.id: run for run in runs},
        datasets={dataset["id"]: dataset for dataset in report.datasets},
        environments=report.environments,
        groups=boards.groups,
        apart=boards.apart,
        sweeps_seen=[view_sweep(one, runs) for one in report.sweeps or ()],
        studies_seen=[view_study(study, runs) for study in studies],
        runs=runs,
        columns=columns[:MAX_SETTING_COLUMNS],
        overflow=columns[MAX_SETTING_COLUMNS:],
        further=columns[MAX_SETTING_COLUMNS : MAX_SETTING_COLUMNS + MAX_FURTHER_COLUMNS],
        numeric=[key for key in columns if all(is_number(run.setting(key)) for run in runs)],
        comparison=comparison(boards, report.environments),
        machines=machines,
        machine_specs={view.name: view.spec for view in machines.values() if view},
        max_points=MAX_POINTS_PER_CURVE,
        bundle=javascript_bundle() if has_charts or studies or report.sweeps else "",
    )
    return visible(page)


def _setting_columns(runs: Sequence[ReportedRun]) -> list[str]:
    varied = sorted({key for run in runs for key in run.varied} - _OWN_COLUMNS)
    return [key for key in varied if len({repr(run.setting(key)) for run in runs}) > 1]
