"""Progress reports of a job, in `{log}.progress.json` beside its log.

The README of plugins/snakemake-logger-plugin-shardline documents the format; neither imports the
other. This module is separate from `progress`: a stage's imports decide its conda environment, and
most stages need no Rich.
"""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

# Device and inode of the standard error on which a logger plugin shows the reports of jobs.
STREAM = "SNAKEMAKE_LOGGER_STREAM"
_EVERY_S = 1.0


class JobProgress:
    """Report of this process's job; nothing is written before `begin` or on a full disk."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._fields: dict[str, Any] = {}
        self._written = 0.0

    def begin(self, log: Path) -> None:
        """Write reports beside a log from now on, and remove the report of an earlier job."""
        self._file, self._fields, self._written = log.with_suffix(".progress.json"), {}, 0.0
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def report(self, **fields: Any) -> None:
        """Add fields to the report, and write it at most once a second, or at once for an error, note or warning."""
        self._fields |= fields
        is_last = not fields.keys().isdisjoint({"error", "note", "warning"})
        is_due = is_last or time.monotonic() - self._written >= _EVERY_S
        if self._file is None or not is_due:
            return
        self._written = time.monotonic()
        draft = self._file.with_suffix(f".{os.getpid()}")
        with suppress(OSError, ValueError):
            draft.write_text(json.dumps(self._fields, allow_nan=False), encoding="utf-8")
            draft.replace(self._file)


job_progress = JobProgress()


def is_shown_by_logger(stream: TextIO) -> bool:
    """Return whether Snakemake's logger plugin shows the reports of jobs on this stream."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get(STREAM) == f"{status.st_dev}:{status.st_ino}"
