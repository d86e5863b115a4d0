"""What a job reports of itself beside its log, in `{log}.progress.json`, for whoever displays it.

The format is that of the logger plugin in plugins/snakemake-logger-plugin-shardline, whose README
documents it; neither imports the other. This is apart from `progress`, since what its importers
import decides their stage's conda environment, and most need no Rich.
"""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

# Device and inode of the standard error of which a logger plugin shows what jobs report.
STREAM = "SNAKEMAKE_LOGGER_STREAM"
_EVERY_S = 1.0


class JobProgress:
    """The report of this process's job. Nothing is written where no job has begun, or the disk is full."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._fields: dict[str, Any] = {}
        self._written = 0.0

    def begin(self, log: Path) -> None:
        """Report beside this log from now on; what an earlier job has left there is removed."""
        self._file, self._fields, self._written = log.with_suffix(".progress.json"), {}, 0.0
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def report(self, **fields: Any) -> None:
        """Add fields, and write all of them unless that was done within the last second."""
        self._fields |= fields
        is_due = time.monotonic() - self._written >= _EVERY_S or "error" in fields
        if self._file is None or not is_due:
            return
        self._written = time.monotonic()
        draft = self._file.with_suffix(f".{os.getpid()}")
        with suppress(OSError, ValueError):
            draft.write_text(json.dumps(self._fields, allow_nan=False), encoding="utf-8")
            draft.replace(self._file)


job_progress = JobProgress()


def is_shown_by_logger(stream: TextIO) -> bool:
    """Return whether Snakemake's logger plugin shows on this stream what jobs report."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get(STREAM) == f"{status.st_dev}:{status.st_ino}"
