"""The report's page, from the report's document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardline.config.studies import Study
from shardline.core.visible import visible
from shardline.report.charts.bundle import javascript_bundle
from shardline.report.charts.curves import MAX_POINTS_PER_CURVE
from shardline.report.charts.machine import view_machine
from shardline.report.compare import comparison
from shardline.report.images import Images
from shardline.report.leaderboard import Entry, Group
from shardline.report.run import Run
from shardline.report.sealed import is_number
from shardline.report.studies import view_study
from shardline.report.template import load_template

MAX_SETTING_COLUMNS = 4
MAX_FURTHER_COLUMNS = 12  # that the reader can choose
_OWN_COLUMNS = frozenset({"model", "dataset", "dataset.name", "seed"})


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that page, `report.json` and `runs.csv` say.

    Attributes:
        apart: Runs outside of them: those that a scaling study made.
        studies: The scaling studies.
        images: The samples' images.
        document: `report.json`; docs/report.md has its fields.
    """

    groups: Sequence[Group]
    apart: Sequence[Entry]
    studies: Sequence[Study]
    images: Images
    document: Mapping[str, Any]

    @property
    def entries(self) -> list[Entry]:
        """All runs, those of the leaderboards first."""
        return [entry for group in self.groups for entry in group.entries] + list(self.apart)

    @property
    def runs(self) -> list[Run]:
        """All runs, in the same order."""
        return [entry.run for entry in self.entries]


def render_page(report: Report) -> str:
    """Return the page of a report, a complete HTML document."""
    runs = report.runs
    columns = _setting_columns([run for run in runs if run.in_table])
    records = {record["id"]: record for record in report.document["runs"]}
    machines = {run.key: view_machine(records[run.key]) for run in runs}
    has_charts = any(group.chart for group in report.groups) or any(machines.values())
    page = load_template().render(
        report=report,
        document=report.document,
        records=records,
        datasets={dataset["id"]: dataset for dataset in report.document["datasets"]},
        environments=_environments(runs, records),
        groups=report.groups,
        studies_seen=[view_study(study, runs) for study in report.studies],
        runs=runs,
        columns=columns[:MAX_SETTING_COLUMNS],
        overflow=columns[MAX_SETTING_COLUMNS:],
        further=columns[MAX_SETTING_COLUMNS : MAX_SETTING_COLUMNS + MAX_FURTHER_COLUMNS],
        numeric=[key for key in columns if all(is_number(run.setting(key)) for run in runs)],
        comparison=comparison(report.groups, report.entries),
        machines=machines,
        machine_specs={view.name: view.spec for view in machines.values() if view},
        max_points=MAX_POINTS_PER_CURVE,
        bundle=javascript_bundle() if has_charts or report.studies else "",
    )
    return visible(page)


def _environments(
    runs: Sequence[Run], records: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, str]]:
    """Return the distinct sets of installed packages, by their digest."""
    digests = {run.key: records[run.key]["environment"]["sha256"] for run in runs}
    return {
        digests[run.key]: run.provenance["environment"]["packages"]
        for run in runs
        if digests[run.key]
    }


def _setting_columns(runs: Sequence[Run]) -> list[str]:
    varied = sorted({key for run in runs for key in run.asked.varied} - _OWN_COLUMNS)
    return [key for key in varied if len({repr(run.setting(key)) for run in runs}) > 1]
