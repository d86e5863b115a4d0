"""Folders that are replaced as a whole, files that get a second name."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shardline.core.errors import ShardlineError
from shardline.core.files import make_folder, renamed_when_complete, writing
from shardline.core.package import snakefile_option


def link(source: Path, target: Path) -> None:
    """Give a file a second name; where the file system cannot, copy it."""
    if target.exists():
        return
    make_folder(target.parent)
    with writing(target), renamed_when_complete(target) as scratch:
        try:
            os.link(source, scratch)
        except OSError:
            shutil.copyfile(source, scratch)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Give a scratch folder that takes the place of a folder when all is written.

    What it replaces holds no model. A kill leaves the folder as it was, as it is to be, or
    missing; never in between.
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
    """Hold a run's folder in the store, which a training of it would hold.

    Args:
        before: what it is held for.

    Raises:
        ShardlineError: one does.
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
    """Have Snakemake take the files as whole, though a job that was to write them was killed."""
    if not any((workdir / ".snakemake" / "incomplete").glob("*")):
        return
    subprocess.run(
        [
            sys.executable, "-m", "snakemake", *snakefile_option(), "--cores", "1",
            "--cleanup-metadata", *map(str, paths),
        ],
        cwd=workdir, check=False, capture_output=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
