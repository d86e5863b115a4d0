"""Replacement of whole folders, hard links, and locks of runs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shardline.core.errors import ShardlineError
from shardline.core.files import link_or_copy, make_folder, renamed_when_complete, writing
from shardline.core.package import snakefile_option


def link(source: Path, target: Path) -> None:
    """Create a hard link to a file, or a copy if the file system has no hard links."""
    if target.exists():
        return
    make_folder(target.parent)
    with writing(target), renamed_when_complete(target) as scratch:
        link_or_copy(source, scratch)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield a scratch folder that replaces a folder without a model when the context ends.

    After a kill, the folder is unchanged, complete or missing, never incomplete.
    """
    for left in folder.parent.glob(f".{folder.name}.*.accepting"):
        shutil.rmtree(left, ignore_errors=True)
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}.accepting")
    before = folder.with_name(f".{folder.name}.before.accepting")
    make_folder(scratch)
    try:
        with writing(folder):
            yield scratch
            if folder.exists():
                folder.rename(before)
            scratch.rename(folder)
    finally:
        for left in (scratch, before):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def held(work: Path, title: str, before: str = "an earlier result is accepted") -> Iterator[None]:
    """Hold the lock of a run's folder in the store, which a training also holds.

    Args:
        work: Folder of the run in the store.
        title: Name and id of the run, for the message.
        before: Purpose of the lock, for the message.

    Raises:
        ShardlineError: The run is being trained.
    """
    from filelock import FileLock, Timeout

    make_folder(work)
    lock = FileLock(work / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ShardlineError(
            f"{title} is being trained; wait for its end, or stop it, before {before}"
        ) from None
    try:
        yield
    finally:
        lock.release()


def forget_incomplete(workdir: Path, paths: Sequence[Path]) -> None:
    """Make Snakemake treat files as complete, although a killed job was to write them."""
    if not any((workdir / ".snakemake" / "incomplete").glob("*")):
        return
    subprocess.run(
        [
            sys.executable, "-m", "snakemake", *snakefile_option(), "--cores", "1",
            "--cleanup-metadata", *map(str, paths),
        ],
        cwd=workdir, check=False, capture_output=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
