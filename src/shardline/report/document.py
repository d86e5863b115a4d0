"""Content of `report.json`, from which page and `runs.csv` are made, with notes and summaries of earlier reports.

Each number comes with `action`, the id of the action that computed it (docs/reference/files.md).
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec import ValidationError, convert

from shardline.core.errors import DataError
from shardline.core.files import read_json
from shardline.records.base import encode
from shardline.records.measured import Number
from shardline.records.reported_runs import ReportedRun
from shardline.records.reports import (
    EarlierBest,
    EarlierReport,
    Figures,
    RankedRow,
    Report,
    ReportedGroup,
)
from shardline.report.images import Images
from shardline.report.leaderboard import Group, LeaderboardRow, Leaderboards

SCHEMA = "shardline-report/1"
MAX_REPORTS = 20  # of earlier reports


def describe(boards: Leaderboards, **parts: Any) -> Report:
    """Return the report document.

    Args:
        parts: Keys of the document that do not come from the runs.
    """
    runs = boards.runs
    report = Report(
        schema=SCHEMA,
        newest=newest_of(runs),
        **parts,
        groups=[_describe_group(group) for group in boards.groups],
        runs=runs,
    )
    return convert(finite(encode(report)), Report)


def finite(value: Any) -> Any:
    """Return a JSON value with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def newest_of(runs: Sequence[ReportedRun]) -> str | None:
    """Return when the newest training or evaluation ended (UTC, ISO 8601); None if unknown."""
    ends = (action.get("ended") for run in runs for action in run.made.values())
    return max((end for end in ends if end), default=None)


def figures_of(run: ReportedRun) -> Figures:
    """Return the leaderboard columns of a run beside its score."""
    best, training = run.best_validation, run.training
    return Figures(
        loss=run.held_out.get("loss"),
        best_validation=best.value if best else None,
        best_step=best.step if best else None,
        steps=training.steps,
        duration_s=training.duration_s,
        world_size=training.world_size,
        samples_per_s=run.throughput.samples_per_s if run.throughput else None,
    )


def _means(figures: Sequence[Figures]) -> Figures:
    """Return the means of each column over runs; None if no run has a value."""
    return Figures(
        **{key: _mean([getattr(one, key) for one in figures]) for key in Figures.__struct_fields__}
    )


def _mean(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return known[0] if len(known) == 1 else fmean(known) if known else None


def _describe_group(group: Group) -> ReportedGroup:
    return ReportedGroup(
        dataset=group.entries[0].run.dataset,
        title=group.title,
        split=group.split,
        metric=group.metric,
        mode=group.mode,
        reference=group.reference,
        ranking=[_describe_row(row) for row in group.rows],
    )


def _describe_row(row: LeaderboardRow) -> RankedRow:
    repeats, verdict = row.repeats, row.verdict
    return RankedRow(
        title=row.title,
        place=row.place,
        runs=[entry.run.id for entry in row.entries],
        num_measured=len(repeats.values),
        mean=repeats.mean,
        sd=repeats.sd,
        interval=row.interval,
        interval_method=_method(row),
        standing=verdict.standing,
        judged_by=verdict.basis or None,
        difference_from_best=verdict.difference,
        means=_means([figures_of(entry.run) for entry in row.entries]),
        actions=[entry.run.actions["evaluate"] for entry in row.entries],
    )


def _method(row: LeaderboardRow) -> str | None:
    if row.repeats.interval:
        return "nadeau-bengio" if row.repeats.folds else "student-t"
    return row.run.headline.interval_method if row.interval else None


def notes_on(
    runs: Sequence[ReportedRun], datasets: Sequence[Mapping[str, Any]], images: Images
) -> list[str]:
    """Return warnings about the runs, one sentence each.

    Args:
        datasets: Datasets from `read_datasets`.
        images: Images of samples.
    """
    dirty = [run.name for run in runs if run.code and run.code.dirty]
    broken = [run.name for run in runs if any(c.num_non_finite for c in run.curves.values())]
    num_commits = len({run.code.commit for run in runs if run.code} - {None})
    manifests = {dataset["id"]: dataset.get("manifest_sha256") for dataset in datasets}
    strange = [
        run.name
        for run in runs
        if any(
            manifests.get(one.id) not in (None, one.manifest_sha256)
            for one in run.trained_on
            if one.manifest_sha256
        )
    ]
    notes = []
    if strange:
        notes.append(
            f"Trained on another manifest than their dataset has now: {_listing(strange)}. "
            "To find altered files, run `shardline verify`."
        )
    if dirty:
        notes.append(f"Trained from a working tree with uncommitted changes: {_listing(dirty)}.")
    if num_commits > 1:
        notes.append(f"The runs were trained from {num_commits} different git commits.")
    if broken:
        notes.append(
            f"Recorded values that are not finite and are left out of curves: {_listing(broken)}."
        )
    if images.num_left_out:
        notes.append(
            f"{images.num_left_out} images of samples are left out to keep this page small. "
            "The files of the evaluations contain all images."
        )
    return notes


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


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
