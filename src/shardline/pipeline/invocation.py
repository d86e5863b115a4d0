"""Records of the current `snakemake` process for its jobs: the time of its start, and the project."""

from pathlib import Path

from shardline.config.job_plan import read_plan, write_plan
from shardline.config.project import Project
from shardline.core.errors import DataError
from shardline.core.files import read_json, utc_stamp, write_bytes, write_json

# in Snakemake's own folder, which is disposable
_FILE = Path(".snakemake/shardline-started.json")
_PROJECT = Path(".snakemake/shardline-project.json")


def record() -> None:
    """Record that a pipeline run starts now."""
    write_json(_FILE, {"started": utc_stamp(timespec="seconds")})


def recorded() -> str | None:
    """Return the start of the current pipeline run (UTC, ISO 8601); None if unknown."""
    try:
        return str(read_json(_FILE, remedy="")["started"])
    except (DataError, KeyError, TypeError):
        return None


def record_project(project: Project) -> None:
    """Record the whole project in a file: with thousands of runs it is too long for a rule's parameter.

    The file contains unmasked values that look like secrets, as Snakemake's own copies of the
    config do. `forget_project` removes it when the jobs have ended.
    """
    write_bytes(_PROJECT, write_plan(project).encode())


def forget_project() -> None:
    """Remove the file that `record_project` wrote."""
    _PROJECT.unlink(missing_ok=True)


def recorded_project() -> Project:
    """Return the project of the current pipeline run.

    Raises:
        DataError: the file is missing.
    """
    try:
        return read_plan(_PROJECT.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{_PROJECT} cannot be read ({error.strerror}); start the pipeline again to write it"
        ) from None
