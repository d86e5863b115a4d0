"""The frame of every job: logging, errors and the check of its environment."""

import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from shardline.config.layout import ResultsLayout
from shardline.config.project import Project
from shardline.core.errors import ConfigError, ShardlineError, Stopped, is_final
from shardline.core.extras import naming_extras
from shardline.core.files import utc_stamp
from shardline.core.job_progress import is_shown_by_logger, job_progress
from shardline.core.masked_output import MaskingFormatter, masked_output
from shardline.core.one_lightning import keep
from shardline.core.redaction import mask
from shardline.environments.installed import explain_differences, find_differences
from shardline.launch.slurm.sacct import write_reason
from shardline.pipeline import invocation
from shardline.provenance.resolved_run import locked
from shardline.records.failures import Failure
from shardline.records.identities import IdentityDocument
from shardline.supervision.job_failures import FailureFile

_T = TypeVar("_T")
REMAKE = "delete it and run the pipeline again to write it"


@contextmanager
def job(log: str, config: Mapping[str, object] | None = None) -> Iterator[Path]:
    """Run a rule's job: one clear sentence for a user's mistake, a traceback for a bug of Shardline.

    A job's error is recorded in the store until the job succeeds. A retry by the same command
    exits at once after a final error, and prints nothing.

    Args:
        log: path of the rule's log, which gets all output.
        config: config as merged by Snakemake; without it, nothing is recorded.
    """
    path = Path(log)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = FailureFile(_failures(config), path) if config is not None else None
    if record:
        _refuse_again(record)
    handler = logging.FileHandler(path)
    handler.setFormatter(MaskingFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    keep()  # modules of the user may import either package of Lightning
    job_progress.begin(path)
    with masked_output():
        yield from _reporting_errors(path, record)
    if record:
        record.clear()


def _failures(config: Mapping[str, Any]) -> Path:
    named = os.environ.get("SHARDLINE_STORE") or config.get("runtime", {}).get("store", "store")
    return ResultsLayout(root=Path(), named_store=Path(named)).failures


def _refuse_again(record: FailureFile) -> None:
    """Exit if an earlier attempt of this command ended with a final error; remove other commands' records."""
    earlier, command = record.read(), invocation.recorded()
    if earlier and earlier.is_final and command and earlier.command == command:
        record.restore_log()
        write_reason(earlier.sentence)
        sys.exit(earlier.code)
    record.clear()


def _reporting_errors(path: Path, record: FailureFile | None) -> Iterator[Path]:
    try:
        with naming_extras():
            yield path
    except ShardlineError as error:
        logging.error("%s", error)
        if not isinstance(error, Stopped):  # the same command resumes a stopped job
            _record(record, error, str(error), error.exit_code)
        _leave(str(error), error.exit_code, stopped=isinstance(error, Stopped))
    except KeyboardInterrupt:
        _leave("interrupted; the next run continues from what is on disk", 130, stopped=True)
    except Exception as error:
        logging.exception("unexpected error")
        _record(record, error, f"unexpected error: {type(error).__name__}: {error}", 1)
        _leave(traceback.format_exc(), 1)


def _record(record: FailureFile | None, error: Exception, sentence: str, code: int) -> None:
    if record is None:
        return
    kind = getattr(error, "kind", "")
    failure = Failure(
        sentence=mask(sentence),
        kind=kind if kind in ("hung", "diverged") else "failed",
        log=record.declared_log,
        rule=record.rule,
        key=record.key,
        when=utc_stamp(timespec="seconds"),
        code=code,
        is_final=is_final(error),
        command=invocation.recorded(),
    )
    record.write(failure)


def _leave(message: str, code: int, *, stopped: bool = False) -> None:
    masked = mask(message)
    write_reason(masked)
    job_progress.report(error=masked, **({"stopped": True} if stopped else {}))
    if not is_shown_by_logger(sys.stderr):
        print(f"\n{message}\n", file=sys.stderr, flush=True)
    sys.exit(code)


def only(known: Mapping[str, _T]) -> _T:
    """Return the only value of a mapping: the run, dataset or prediction of a job's plan."""
    (one,) = known.values()
    return one


def check_environment(project: Project, document: IdentityDocument) -> None:
    """Compare the installed packages with the lock that is part of a stage's identity.

    Raises:
        ConfigError: the packages differ, and `runtime.strict_env` is `error`.
    """
    problem = explain_differences(find_differences(**locked(project, document)))
    if problem and project.runtime.strict_env == "error":
        raise ConfigError(problem)
    if problem:
        logging.warning("%s", problem)
