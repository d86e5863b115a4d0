"""The same data in each competitor's own format, made on first use and kept."""

import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.reader.competitors import Competitor
from benchmarks.reader.crew import Crew
from benchmarks.reader.data import verify
from benchmarks.samples import made

WORKER = "benchmarks.samples.worker"


def plain_of(work: str, size: int, cache: Path) -> Path:
    """Return the folder of the plain files, written now unless they are there."""
    return _once(
        _home(work, size, cache) / "plain", lambda folder: made.make_plain(work, size, folder)
    )


def folder_of(competitor: Competitor, work: str, size: int, cache: Path) -> Path:
    """Return the folder of a competitor's files, written now unless they are there.

    Raises:
        CompetitorError: the competitor cannot write them.
    """
    plain, folder = plain_of(work, size, cache), _home(work, size, cache) / competitor.format

    def write(folder: Path) -> None:
        if competitor.environment is None:
            made.make_dataset(work, plain, folder)
            return
        with Crew(competitor, cache, worker=WORKER) as crew:
            crew.ask("write", work=work, plain=str(plain), folder=str(folder))

    folder = _once(folder, write)
    if competitor.environment is None:
        verify(folder)
    return folder


def _home(work: str, size: int, cache: Path) -> Path:
    return cache / "data" / f"{work}-{size}"


def _once(folder: Path, write: Callable[[Path], None]) -> Path:
    if not folder.exists():
        scratch = folder.with_suffix(".tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        write(scratch)
        scratch.rename(folder)
    return folder
