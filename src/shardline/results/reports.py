"""Which report there is now: that over all runs, or the latest over those that have a result."""

import json
from pathlib import Path

from shardline.config.project import Project


def present_report(project: Project) -> Path | None:
    """Return the page of the present report; None where there is none.

    Until all runs have a result that is the latest report which lists the others, to which
    `results/report` links.
    """
    if project.report.exists():
        return project.report
    linked = project.layout.latest_report
    page = project.layout.report(linked.resolve().name)
    try:
        has_others = "outcomes" in json.loads((linked / "report.json").read_bytes())
    except (OSError, ValueError):
        return None
    return page if has_others and page.exists() else None
