"""Failure records of jobs: one file per job, kept until the job succeeds or starts again.

`ls`, `why` and the report read these records. A retry reads them too, and does not repeat a final error.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from shardline.core.errors import DataError
from shardline.core.files import read_json, write_json
from shardline.records.base import decode, encode
from shardline.records.failures import Failure


class FailureFile:
    """The file with one job's failure record.

    Args:
        folder: folder of all records, `ResultsLayout.failures`.
        log: the job's log, within a folder `logs`.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        parts = log.parts
        place = Path(*parts[len(parts) - parts[::-1].index("logs") :] if "logs" in parts else parts)
        self.rule, self.key = place.parts[0].removesuffix(".log"), str(Path(*place.parts[1:]))
        self.key = self.key.removesuffix(".log") if len(place.parts) > 1 else ""
        self.declared_log = f"logs/{place}"
        self._log, self._path = log, (folder / place).with_suffix(".json")

    def write(self, failure: Failure) -> None:
        """Write the record, and copy the log, which Snakemake deletes before the next attempt.

        Errors of writing are ignored, so that they do not hide the job's error.
        """
        with suppress(DataError, OSError):
            write_json(self._path, encode(failure))
            shutil.copyfile(self._log, self._path.with_suffix(".log"))

    def read(self) -> Failure | None:
        """Return the record; None if it is missing or damaged."""
        return read_failure(self._path)

    def restore_log(self) -> None:
        """Restore the log of the failed attempt."""
        with suppress(OSError):
            shutil.copyfile(self._path.with_suffix(".log"), self._log)

    def clear(self) -> None:
        """Remove the record."""
        for path in (self._path, self._path.with_suffix(".log")):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def read_failure(path: Path) -> Failure | None:
    """Return the record in a file; None if it is missing or damaged."""
    with suppress(DataError):
        return decode(read_json(path, remedy=""), Failure, where=path, remedy="")
    return None


def failures_of(folder: Path, rule: str, key: str = "") -> list[Failure]:
    """Return the failure records of a rule's jobs, the earliest first.

    Args:
        folder: folder of all records.
        key: key of one job, or the folder of several jobs' logs; empty for a rule without a key.
    """
    place = folder / rule / key if key else folder / rule
    paths: list[Path] = [place.with_name(f"{place.name}.json"), *sorted(place.glob("*.json"))]
    found = [failure for failure in map(read_failure, paths) if failure]
    return sorted(found, key=lambda one: one.when)
