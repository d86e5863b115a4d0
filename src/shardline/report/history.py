"""Summaries of earlier reports of the project, from their `report.json`."""

from pathlib import Path

from msgspec import ValidationError, convert

from shardline.core.errors import DataError
from shardline.core.files import read_json
from shardline.records.reports import EarlierBest, EarlierReport, ReportedGroup

MAX_REPORTS = 20


def read_history(own: Path) -> list[EarlierReport]:
    """Return summaries of the latest other reports, latest first.

    Files of another format, such as reports of another version, are skipped.

    Args:
        own: Folder of the new report, which is skipped, too.
    """
    others = [path for path in own.parent.glob("*/report.json") if path.parent.name != own.name]
    latest = sorted(others, key=lambda path: (path.stat().st_mtime_ns, path), reverse=True)
    found = [summary for path in latest[:MAX_REPORTS] if (summary := _summary(path))]
    return sorted(found, key=lambda one: one.ended or "", reverse=True)


def _summary(path: Path) -> EarlierReport | None:
    try:
        document = read_json(path, remedy="")
        if not document["groups"]:  # no run had a result
            return None
        groups = convert(document["groups"], list[ReportedGroup])
        return EarlierReport(
            report=path.parent.name,
            ended=(document.get("action") or {}).get("ended"),
            num_runs=len(document["runs"]),
            best=[_best(group) for group in groups],
        )
    except (DataError, ValidationError, OSError, AttributeError, KeyError, TypeError, IndexError):
        return None


def _best(group: ReportedGroup) -> EarlierBest:
    first = group.ranking[0]
    return EarlierBest(title=group.title, metric=group.metric, value=first.mean, run=first.title)
