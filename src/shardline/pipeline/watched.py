"""Watched reads: which files the user code of a stage may read without a report (`watch_reads`)."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.project import Project
from shardline.config.script_files import files_that_count, opted_out
from shardline.core.job_progress import job_progress
from shardline.core.redaction import mask
from shardline.identity import watch_reads

_WARNING = "warning: "


def watch(project: Project, of: DatasetPlan | RunPlan) -> None:
    """From now on, watch the files that a dataset's source or a run's model reads in this process."""
    mode = project.runtime.watch_reads
    if mode == "off":
        return
    files, folders = map(str, _files_of(project, of)), map(str, _folders_of(project, of))
    known = watch_reads.counted(project.workdir, files, folders)
    remedy = watch_reads.SOURCE_REMEDY
    if isinstance(of, RunPlan):
        remedy = watch_reads.MODEL_REMEDY
    elif of.python:
        remedy = watch_reads.PYTHON_REMEDY
    watch_reads.start(watch_reads.WatchedReads(known=known, mode=mode, remedy=remedy))


def write_watched_files(project: Project, run: RunPlan, work: Path | None = None) -> None:
    """Write the list of files that a run's ranks may read without a report.

    Args:
        work: folder for the list, which the ranks may read too; default: the run's folder in the store.
    """
    if project.runtime.watch_reads != "off":
        folder = work or project.layout.work(run.id)
        files, folders = _files_of(project, run), [*_folders_of(project, run), folder]
        watch_reads.write_counted(
            folder / watch_reads.COUNTED_FILE, project.workdir, files, folders
        )


def end_watch(others: Mapping[str, str] | None = None) -> None:
    """Warn of unexpected reads before the stage's result is sealed.

    Args:
        others: files that other processes of the stage read.

    Raises:
        ConfigError: the code read a file that is not part of any identity, and caught the error
            that was raised.
    """
    if warning := watch_reads.finish(others):
        logging.warning("%s", warning)
        job_progress.report(warning=mask(warning))


def report_warnings(log: Path) -> None:
    """Show on the screen which warning the ranks of this job have printed to its log."""
    lines = log.read_text(errors="replace").splitlines()
    for line in (line for line in lines if line.startswith(_WARNING)):
        job_progress.report(warning=line.removeprefix(_WARNING))


def _files_of(project: Project, of: DatasetPlan | RunPlan) -> Iterator[Path]:
    if isinstance(of, RunPlan):
        for part in of.parts:
            yield from _files_of(project, part.dataset)
        for path in of.code_paths.values():
            yield from _files_of_code(project, path)
        yield from files_that_count(of.model_class, of.settings, project.layout, of.row.where)
        yield from (one.path for one in of.bases if one.path.is_file())
        if of.settings.combined:
            from shardline.results.sweeps.combined_trials import known_members

            yield from map(project.layout.model, known_members(of))
    else:
        yield from (project.lock_file, *of.files, *filter(None, [of.tokenizer]))
        if of.read_as:  # its columns are needed
            yield from (*of.read_as.files, of.read_as.manifest)
        yield from _files_of_code(project, of.source_class)


def _files_of_code(project: Project, path: str) -> Iterator[Path]:
    if code := project.documents.program(path).code:
        yield from code.files


def _folders_of(project: Project, of: DatasetPlan | RunPlan) -> list[Path]:
    if isinstance(of, RunPlan):
        work = project.layout.work(of.id)
        folders = [one for part in of.parts for one in _folders_of(project, part.dataset)]
        for base in of.bases:
            folders += [project.layout.work(base.run)] if base.run else [base.path]
        return [*folders, *opted_out(of.settings, project.layout), of.folder, work]
    return [project.layout.shards(of.id), of.manifest.parent]
