"""Report over all runs: a self-contained page, `report.json` and `runs.csv`.

This package reads the small sealed files of runs, and uses neither torch nor Snakemake. The same files and options
give the same bytes in any order of the files.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardline.config.resolved import Study
from shardline.core.errors import DataError
from shardline.core.files import write_bytes
from shardline.core.visible import escaped, visible
from shardline.records.base import encode
from shardline.records.jobs import JobRecord
from shardline.records.reports import EarlierReport, Report, WorkflowPicture
from shardline.records.sweeps import ReportedStudy
from shardline.report.datasets import read_datasets
from shardline.report.document import describe, notes_on
from shardline.report.images import choose_images, with_tokens
from shardline.report.leaderboard import Leaderboards
from shardline.report.page import render_page
from shardline.report.reported import read_run
from shardline.report.runs_csv import write_csv
from shardline.report.sealed import RunFiles, TableEntry

__all__ = ["Report", "RunFiles", "TableEntry", "read_report", "write_report"]


def read_report(
    run_dirs: Sequence[RunFiles], *, generated_from: str, studies: Sequence[Study] = (),
    sweeps: Sequence[ReportedStudy] = (), manifests: Iterable[Path] = (), workflow: WorkflowPicture | None = None,
    action: JobRecord | None = None, outcomes: Sequence[Mapping[str, Any]] = (),
    project: str | None = None, history: Sequence[EarlierReport] = (),
) -> Report:  # fmt: skip
    """Read the files of runs and rank the runs.

    Args:
        run_dirs: Files of the runs, in any order.
        generated_from: Source of the report as text, such as "config/config.yaml, commit 1a2b3c4".
        studies: Scaling studies over some of the runs.
        sweeps: Studies of sweeps.
        manifests: Existing manifests of the datasets.
        workflow: Jobs behind the runs; None if the start of the pipeline run is unknown.
        action: Record of the job that writes the report, stored in `report.json`.
        outcomes: States of the runs without a result, as described in `results.outcomes`.
        project: Title of the project.
        history: Summaries of earlier reports from `read_history`.

    Raises:
        DataError: There is no run, or a file is missing or malformed. The message names file and remedy.
    """
    if not run_dirs and not outcomes:
        raise DataError(
            "the report found no runs; expected at least one finished run; "
            "add a row to config/runs.tsv and run `snakemake` again"
        )
    read = [read_run(files) for files in run_dirs]
    sealed = sorted((run for run, _ in read), key=lambda run: run.id)
    images = choose_images(sealed)
    boards = Leaderboards.of([with_tokens(run, images) for run in sealed])
    datasets = read_datasets(boards.runs, manifests)
    packages = {run.environment.sha256: found for run, found in read}
    return describe(
        boards,
        generated_from=generated_from, project=project,
        **({"action": action} if action else {}), history=list(history),
        notes=notes_on(boards.runs, datasets, images), workflow=workflow, datasets=datasets,
        environments={digest: packages[digest] for digest in sorted(filter(None, packages))},
        studies=[asdict(study) for study in studies], images=images.by_token,
        **({"sweeps": list(sweeps)} if sweeps else {}),
        **({"outcomes": list(outcomes)} if outcomes else {}),
    )  # fmt: skip


def write_report(run_dirs: Sequence[RunFiles], target: Path, **options: Any) -> None:
    """Write page, `report.json` and `runs.csv`, each atomically.

    Args:
        run_dirs: Files of the runs, in any order.
        target: HTML file; the other files go into its folder, which is created if needed.
        options: Options of `read_report`.

    Raises:
        DataError: As in `read_report`, or a file cannot be written.
    """
    report = read_report(run_dirs, **options)
    text = json.dumps(encode(report), indent=1, ensure_ascii=False) + "\n"
    write_bytes(target.with_name("report.json"), escaped(text).encode())
    write_bytes(target.with_name("runs.csv"), visible(write_csv(report)).encode())
    write_bytes(target, render_page(report).encode())
