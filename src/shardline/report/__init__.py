"""The report over all runs, from their small sealed files: a self-contained page, `report.json` and `runs.csv`.

Reads files only; knows nothing of torch, Snakemake or how a run was made. The same files and the
same `started`, `action`, `project` and `history` give the same bytes, whatever the files' order.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardline.config.studies import Study
from shardline.core.errors import DataError
from shardline.core.files import write_bytes
from shardline.core.visible import escaped, visible
from shardline.report.document import describe, newest_of, summary_of
from shardline.report.graph import workflow_graph
from shardline.report.images import choose_images, with_tokens
from shardline.report.leaderboard import anchors_of, entries_of, rank
from shardline.report.lineage import read_datasets
from shardline.report.notes import notes_on
from shardline.report.page import Report, render_page
from shardline.report.run import TableEntry
from shardline.report.sealed import RunFiles, read_run
from shardline.report.table import write_csv

__all__ = ["Report", "RunFiles", "TableEntry", "read_report", "write_report"]


def read_report(
    run_dirs: Sequence[RunFiles], *, generated_from: str, studies: Sequence[Study] = (),
    manifests: Iterable[Path] = (), started: str | None = None,
    action: Mapping[str, Any] | None = None, outcomes: Sequence[Mapping[str, Any]] = (),
    project: str | None = None, history: Sequence[Mapping[str, Any]] = (),
) -> Report:  # fmt: skip
    """Read the runs' files and rank the runs.

    Args:
        run_dirs: The runs' files, in any order.
        generated_from: What the reader may want to go back to, such as "config/config.yaml,
            commit 1a2b3c4"; shown as text.
        studies: Scaling studies over some of the runs.
        manifests: The datasets' manifests, as far as they are there.
        started: When the pipeline run began that writes this (UTC, ISO 8601), if that is known.
        action: The record of the action that writes this, kept in `report.json`.
        outcomes: What became of the runs that have no result, as `results.outcomes` describes it.
        project: The project's title.
        history: What earlier reports held, as `read_history` gives it.

    Raises:
        DataError: there is no run at all, or a file is missing or malformed; names file and remedy.
    """
    if not run_dirs and not outcomes:
        raise DataError(
            "the report was given no runs; expected at least one finished run: "
            "add a row to config/runs.tsv and run `snakemake` again"
        )
    read = sorted(map(read_run, run_dirs), key=lambda run: run.key)
    images = choose_images(read)
    runs = [with_tokens(run, images) for run in read]
    groups = rank(runs)
    apart = entries_of([run for run in runs if not run.in_table], anchors_of(runs))
    ordered = [entry.run for group in groups for entry in group.entries] + [e.run for e in apart]
    datasets = read_datasets(ordered, manifests)
    graph = workflow_graph(ordered, datasets, started)
    for dataset in datasets:
        dataset["actions"] = [summary_of(record) for record in dataset.pop("records", ()) if record]
    document = describe(
        groups, ordered,
        generated_from=generated_from, project=project, newest=newest_of(ordered),
        **({"action": action} if action else {}), history=list(history),
        notes=notes_on(ordered, datasets, images), workflow=graph, datasets=datasets,
        studies=[asdict(study) for study in studies],
        **({"outcomes": list(outcomes)} if outcomes else {}),
    )  # fmt: skip
    return Report(groups=groups, apart=apart, studies=studies, images=images, document=document)


def write_report(run_dirs: Sequence[RunFiles], target: Path, **options: Any) -> None:
    """Write page, data and table; each appears complete or not at all.

    Args:
        target: HTML file to write; `report.json` and `runs.csv` come beside it, and its folder
            is made if needed.
        options: See `read_report`, which takes `run_dirs` too.

    Raises:
        DataError: as `read_report`, or a file cannot be written.
    """
    report = read_report(run_dirs, **options)
    document = json.dumps(report.document, indent=1, ensure_ascii=False) + "\n"
    write_bytes(target.with_name("report.json"), escaped(document).encode())
    write_bytes(target.with_name("runs.csv"), visible(write_csv(report.document)).encode())
    write_bytes(target, render_page(report).encode())
