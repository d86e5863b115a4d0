"""What should make the reader of a report careful."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardline.records.reports import ReportedRun
from shardline.report.images import Images


def notes_on(
    runs: Sequence[ReportedRun], datasets: Sequence[Mapping[str, Any]], images: Images
) -> list[str]:
    """Return a sentence for each thing, naming the runs.

    Args:
        datasets: As `read_datasets` gives them.
        images: The samples' images.
    """
    states = [run.code or {} for run in runs]
    dirty = [run.name for run, git in zip(runs, states, strict=True) if git.get("dirty")]
    broken = [run.name for run in runs if any(c.num_non_finite for c in run.curves.values())]
    num_commits = len({git.get("commit") for git in states} - {None})
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
            f"Trained on another manifest than their dataset has now: {_listing(strange)}; "
            "`shardline verify` tells which files were altered."
        )
    if dirty:
        notes.append(f"Trained from a working tree with uncommitted changes: {_listing(dirty)}.")
    if num_commits > 1:
        notes.append(f"These runs were trained from {num_commits} different git commits.")
    if broken:
        notes.append(
            f"Recorded values that are not finite, left out of curves: {_listing(broken)}."
        )
    if images.num_left_out:
        notes.append(
            f"{images.num_left_out} images of samples are left out to keep this page small; "
            "the evaluations' files hold them."
        )
    return notes


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
