"""What the stages that run user code may read without a report: see `watch_reads`."""

import logging
from collections.abc import Iterator
from pathlib import Path

from shardline.config.dataset import Dataset
from shardline.config.project import Project
from shardline.config.run import Run
from shardline.config.source_files import find_code_files
from shardline.identity import watch_reads


def watch_dataset(project: Project, dataset: Dataset) -> None:
    """Watch what a dataset's source reads from here on in this process."""
    _watch(
        project,
        _files_of_dataset(project, dataset),
        _folders_of_dataset(project, dataset),
        watch_reads.SOURCE_REMEDY,
    )


def watch_run(project: Project, run: Run) -> None:
    """Watch what a run's model reads from here on in this process."""
    _watch(
        project,
        _files_of_run(project, run),
        _folders_of_run(project, run),
        watch_reads.MODEL_REMEDY,
    )


def write_watched_files(project: Project, run: Run) -> None:
    """Write the list of files that a run's ranks may read without a report."""
    if project.runtime.watch_reads != "off":
        file = project.layout.work(run.id) / watch_reads.COUNTED_FILE
        files, folders = _files_of_run(project, run), _folders_of_run(project, run)
        watch_reads.write_counted(file, project.workdir, files, folders)


def end_watch() -> None:
    """Warn of what was read, before the stage's result is sealed.

    Raises:
        ConfigError: a file was read that no identity holds, and the source's or model's code has
            caught the error.
    """
    if warning := watch_reads.finish():
        logging.warning("%s", warning)


def _watch(project: Project, files: Iterator[Path], folders: list[Path], remedy: str) -> None:
    mode = project.runtime.watch_reads
    if mode != "off":
        known = watch_reads.counted(project.workdir, map(str, files), map(str, folders))
        watch_reads.start(watch_reads.Watch(known=known, mode=mode, remedy=remedy))


def _files_of_dataset(project: Project, dataset: Dataset) -> Iterator[Path]:
    yield from (project.lock_file, *dataset.files)
    yield from _files_of_code(project, dataset.source_class)


def _files_of_run(project: Project, run: Run) -> Iterator[Path]:
    yield from _files_of_dataset(project, run.dataset)
    yield from _files_of_code(project, run.model_class)
    yield from find_code_files(run.settings.code_files, project.workdir, run.row.where)


def _files_of_code(project: Project, path: str) -> Iterator[Path]:
    if code := project.documents.program(path).code:
        yield from code.files


def _folders_of_dataset(project: Project, dataset: Dataset) -> list[Path]:
    return [project.layout.shards(dataset.id), dataset.manifest.parent]


def _folders_of_run(project: Project, run: Run) -> list[Path]:
    work = project.layout.work(run.id)
    return [*_folders_of_dataset(project, run.dataset), run.folder, work]
