"""Why ranks were started cold although `runtime.warm_ranks` is on, said once at the end of the command."""

import logging
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path

from shardline.core.errors import DataError
from shardline.core.files import make_folder, write_bytes

_FOLDER = Path(".snakemake/shardline-cold")  # Snakemake's own folder, which is disposable
_MOST = 3  # reasons to print


def note_cold(log: Path, reason: str) -> None:
    """Record for Snakemake's process why a job's ranks could not be forked.

    Args:
        log: Log of the job.
    """
    path = _FOLDER / log.parent.name / f"{log.stem}.txt"
    with suppress(DataError, OSError):  # not worth failing the job
        make_folder(path.parent)
        write_bytes(path, reason.encode(errors="replace"))


def forget_cold() -> None:
    """Remove what an earlier Snakemake process left, which may have been killed."""
    shutil.rmtree(_FOLDER, ignore_errors=True)


def tell_cold(logger: logging.Logger) -> None:
    """Print in how many jobs ranks were started cold, with each reason, the most frequent first."""
    reasons = Counter[str]()
    for path in sorted(_FOLDER.glob("*/*.txt")):
        with suppress(OSError):
            reasons[path.read_text(errors="replace")] += 1
    for reason, number in reasons.most_common(_MOST):
        jobs = "1 job" if number == 1 else f"{number:,} jobs"
        logger.info(
            f"The ranks of {jobs} have imported torch themselves, although runtime.warm_ranks is on: {reason}"
        )
    if len(reasons) > _MOST:
        logger.info("The logs of further jobs contain other reasons.")
    forget_cold()
