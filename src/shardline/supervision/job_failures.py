"""The errors with which jobs ended, one file for each job, kept until the job succeeds or is started again.

`ls`, `why` and the report read them, and a second attempt of the same command, which leaves a final error alone.
"""

import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardline.core.errors import (
    CODE_ERROR,
    ConfigError,
    CrashLoop,
    DataError,
    ShardlineError,
    Stopped,
)
from shardline.core.files import read_json, write_json

# What another attempt may find repaired: a disk, a network or a machine, and no file's name or content.
_LASTING = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)  # fmt: skip
_FINAL_CODES = (ConfigError.exit_code, DataError.exit_code, CODE_ERROR)


@dataclass(frozen=True, kw_only=True)
class JobFailure:
    """How a job ended.

    Attributes:
        rule: of the workflow.
        key: what the job was about, as in its log's name: an identity comes first.
        sentence: the error; no secret is in it.
        log: the job's log, from the project's folder.
        when: UTC, ISO 8601.
        code: exit code.
        is_final: whether another attempt would end alike.
        command: when the pipeline run of the job began; None where that is not known.
    """

    rule: str
    key: str
    sentence: str
    log: str
    when: str
    code: int
    is_final: bool
    command: str | None = None


class FailureFile:
    """The record of one job's failure.

    Args:
        folder: of all records, `ResultsLayout.failures`.
        log: the job's log, which lies in a folder `logs`.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        parts = log.parts
        place = Path(*parts[len(parts) - parts[::-1].index("logs") :] if "logs" in parts else parts)
        self.rule, self.key = place.parts[0].removesuffix(".log"), str(Path(*place.parts[1:]))
        self.key = self.key.removesuffix(".log") if len(place.parts) > 1 else ""
        self.declared_log = f"logs/{place}"
        self._log, self._path = log, (folder / place).with_suffix(".json")

    def write(self, failure: JobFailure) -> None:
        """Write the record, and keep the log, which Snakemake deletes before the next attempt.

        A store that cannot be written to hides no error.
        """
        with suppress(DataError, OSError):
            write_json(self._path, asdict(failure))
            shutil.copyfile(self._log, self._path.with_suffix(".log"))

    def read(self) -> JobFailure | None:
        """Return the record; None where there is none, or it is damaged."""
        return read_failure(self._path)

    def restore_log(self) -> None:
        """Make the log again what the attempt that failed has written."""
        with suppress(OSError):
            shutil.copyfile(self._path.with_suffix(".log"), self._log)

    def clear(self) -> None:
        """Remove the record."""
        for path in (self._path, self._path.with_suffix(".log")):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def read_failure(path: Path) -> JobFailure | None:
    """Return the record in a file; None where there is none, or it is damaged."""
    with suppress(DataError, TypeError):
        return JobFailure(**read_json(path, remedy=""))
    return None


def failures_of(folder: Path, rule: str, key: str = "") -> list[JobFailure]:
    """Return the records of a rule's jobs about something, the earliest first.

    Args:
        folder: of all records.
        key: of one job, or of several jobs: the folder of their logs. Empty: of a rule without a key.
    """
    place = folder / rule / key if key else folder / rule
    paths: list[Path] = [place.with_name(f"{place.name}.json"), *sorted(place.glob("*.json"))]
    found = [failure for failure in map(read_failure, paths) if failure]
    return sorted(found, key=lambda one: one.when)


def is_final(error: BaseException) -> bool:
    """Return whether another attempt would end with the same error: one of config, data or model.

    A file system or a network that failed on the way may work again.
    """
    if isinstance(error, Stopped) or not isinstance(error, ShardlineError):
        return False
    if isinstance(error, CrashLoop) or error.kind == "diverged":
        return True
    return error.exit_code in _FINAL_CODES and not any(map(_is_transient, _chain(error)))


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, OSError) and not isinstance(error, _LASTING)


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and those that it came of, also where `raise ... from None` hides them."""
    found: list[Any] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return found
