"""When the present `snakemake` began: recorded by its own process, read by the job of the report."""

from pathlib import Path

from shardline.core.errors import DataError
from shardline.core.files import read_json, utc_stamp, write_json

_FILE = Path(".snakemake/shardline-started.json")  # Snakemake's own folder, which nobody keeps


def record() -> None:
    """Write down that a pipeline run begins now."""
    write_json(_FILE, {"started": utc_stamp(timespec="seconds")})


def recorded() -> str | None:
    """Return when the present pipeline run began (UTC, ISO 8601); None where that is not known."""
    try:
        return str(read_json(_FILE, remedy="")["started"])
    except (DataError, KeyError, TypeError):
        return None
