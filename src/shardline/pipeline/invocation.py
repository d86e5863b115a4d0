"""What the process of the present `snakemake` records for the job of the report: when it began, and the project."""

from pathlib import Path

from shardline.config.job_plan import read_plan, write_plan
from shardline.config.project import Project
from shardline.core.errors import DataError
from shardline.core.files import read_json, utc_stamp, write_bytes, write_json

# in Snakemake's own folder, which nobody keeps
_FILE = Path(".snakemake/shardline-started.json")
_PROJECT = Path(".snakemake/shardline-project.json")


def record() -> None:
    """Write down that a pipeline run begins now."""
    write_json(_FILE, {"started": utc_stamp(timespec="seconds")})


def recorded() -> str | None:
    """Return when the present pipeline run began (UTC, ISO 8601); None where that is not known."""
    try:
        return str(read_json(_FILE, remedy="")["started"])
    except (DataError, KeyError, TypeError):
        return None


def record_project(project: Project) -> None:
    """Write down the whole project; the value of a parameter would be too long for thousands of runs.

    As in the copies of the config that Snakemake keeps for its scripts, what looks like a secret is in it,
    so that it goes when the jobs have ended.
    """
    write_bytes(_PROJECT, write_plan(project).encode())


def forget_project() -> None:
    """Remove what `record_project` has written."""
    _PROJECT.unlink(missing_ok=True)


def recorded_project() -> Project:
    """Return the project of the present pipeline run.

    Raises:
        DataError: the file is not there.
    """
    try:
        return read_plan(_PROJECT.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{_PROJECT} cannot be read ({error.strerror}); start the pipeline again, which writes it"
        ) from None
