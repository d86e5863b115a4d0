"""Selection of Snakemake's messages: what to print of a record, and in which words."""

import os
import re
from logging import WARNING, LogRecord
from pathlib import Path

import snakemake

# Snakemake's messages about its own work; messages of the workflow are never matched against these.
_CHATTER = re.compile(
    r"Assuming unrestricted shared|Building DAG|Using shell|Provided (cores|remote|resources)|Rules claiming|"
    r"Conda environments: ignored|Singularity containers: ignored|Group jobs: inactive|Select jobs|Execute \d|"
    r"Trying to restart|Shutting down|Complete log|Elapsed time|Exiting because a job|Job rate limit|DAG of jobs will|"
    r"Removing output files of failed job|Handing over execution|Retrieving .* from storage|Storing .* in storage|"
    r"Finished jobid|None$"
)
_LOCKED = re.compile(
    r"Directory cannot be locked\. Please make sure that no other .*the following directory:\s*(?P<folder>.*?)\n.*"
    r"--unlock argument",
    re.DOTALL,
)
_FOLLOWS_A_JOB = re.compile(
    r"CalledProcessError in file|At least one job did not complete successfully"
)
# The location of a user's error in the workflow; `--verbose` shows it.
_LOCATION = re.compile(
    r"\AWorkflowError(?: in file .*, line \d+)?:\n(.*?)(?:\n  File \".*(?:Snakefile|\.smk)\", line \d+, in .*)*\Z",
    re.DOTALL,
)
# Snakemake creates its cache folder before it reads a workflow, and prints a bare traceback if that fails.
_NO_CACHE = re.compile(
    r"\ATraceback .*sourcecache\.py\", line \d+, in __init__\b.*^(\w+Error: .*?)\s*\Z",
    re.DOTALL | re.MULTILINE,
)
_PACKAGE = f"{Path(snakemake.__file__).parent}{os.sep}"


def in_words(text: str) -> str:
    """Return a message; for a traceback of Snakemake's own, a sentence with the remedy."""
    return _NO_CACHE.sub(
        r"Snakemake cannot make its cache folder, which lies in HOME or in XDG_CACHE_HOME (\1); "
        "set XDG_CACHE_HOME to a writable folder, and run the same command again",
        text,
    )


def message_of(record: LogRecord) -> str | None:
    """Return the text to print for a record that is no event of a job; None for no text."""
    text = str(record.msg or "").strip("\n")
    is_event = getattr(record, "event", None) not in (None, "error")
    if is_event or not text or (record.levelno < WARNING and _is_chatter(record, text)):
        return None
    if _is_of_snakemake(record) and (
        _FOLLOWS_A_JOB.search(text) or text.startswith("Exiting because a job")
    ):
        return None
    if _is_of_snakemake(record) and (locked := _LOCKED.search(text)):
        return (
            f"{locked['folder']} is locked: another snakemake runs here, or one was killed (kill -9, out of memory, "
            "power). If none runs, run the same command with --unlock at its end, which only removes the lock, and "
            "then run the same command again."
        )
    return _LOCATION.sub(r"\1", in_words(text))


def _is_chatter(record: LogRecord, text: str) -> bool:
    return _is_of_snakemake(record) and _CHATTER.match(text.strip()) is not None


def _is_of_snakemake(record: LogRecord) -> bool:
    return record.pathname.startswith(_PACKAGE)
