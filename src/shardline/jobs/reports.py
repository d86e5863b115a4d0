"""The job that compares all runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardline.config import load_project
from shardline.jobs.common import check_environment, of_this_identity


def report(config: Mapping[str, Any], page: str, inputs: Mapping[str, Sequence[str]]) -> None:
    """Write the report over all runs of the present table.

    Args:
        inputs: `runs`, `metrics`, `evaluations` and `provenances`, in one order.
    """
    from shardline.report import RunFiles, write_report

    project = load_project(config)
    of_this_identity({project.report.parent.name: project}, Path(page).parent.name)
    check_environment(project, project.report_document)
    kinds = ("runs", "metrics", "evaluations", "provenances")
    each = zip(*(map(Path, inputs[kind]) for kind in kinds), strict=True)
    files = [
        RunFiles(run=run, metrics=metrics, evaluation=evaluation, provenance=provenance)
        for run, metrics, evaluation, provenance in each
    ]
    write_report(files, Path(page), generated_from=project.table)
