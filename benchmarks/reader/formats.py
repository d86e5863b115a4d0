"""The same rows in each competitor's own format, made on first use and kept."""

import os
import shutil
from pathlib import Path

from benchmarks.reader.competitors import COMPETITORS, Competitor
from benchmarks.reader.crew import Crew
from benchmarks.reader.data import make_dataset


def home_of(shape: str, num_shards: int, cache: Path) -> Path:
    """Return the folder that holds the same rows in all formats."""
    return cache / "data" / f"{shape}-{num_shards}"


def folder_of(competitor: Competitor, shape: str, num_shards: int, cache: Path) -> Path:
    """Return the folder of a competitor's files, written now unless they are there.

    Raises:
        CompetitorError: the competitor cannot write them.
    """
    home = home_of(shape, num_shards, cache)
    source, folder = home / "shardline", home / competitor.format
    make_dataset(source, shape, num_shards)
    if not folder.exists():
        scratch = folder.with_suffix(".tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        with Crew(_writer(competitor), cache) as crew:
            crew.ask("write", source=str(source), folder=str(scratch))
        scratch.rename(folder)
    return folder


def _writer(competitor: Competitor) -> Competitor:
    return next(c for c in COMPETITORS.values() if c.module == competitor.format)


def files_of(folder: Path) -> list[Path]:
    """Return the files below a folder."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def warm(folder: Path) -> None:
    """Read all files, so that the page cache has them."""
    for path in files_of(folder):
        with path.open("rb", buffering=0) as file:
            while file.read(8 << 20):
                pass


def evict(folder: Path) -> None:
    """Ask the kernel to drop all files from the page cache, once they are on disk."""
    for path in files_of(folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
