"""Environments of training scripts, checked: does what is there have the packages that the scripts import?"""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from shardline.config.project import Project
from shardline.config.run import Run
from shardline.core.errors import DataError, ShardlineError
from shardline.environments.python import interpreter_of, problem_of
from shardline.results.check.found import Finding


def check_script_environments(project: Project, runs: Mapping[str, Run]) -> Iterator[Finding]:
    """Yield what the environments of scripts lack; one that is not built yet is checked when it is.

    Args:
        runs: by key of the project.
    """
    for run in runs.values():
        environment = run.environment
        if environment is None:
            continue
        found = None
        with suppress(DataError):  # its rule builds it
            found = interpreter_of(environment, run.environment_file)
        if found is None:
            continue
        try:
            if problem := problem_of(project, run, found):
                yield Finding(kind="error", sentence=problem, runs=run.names)
        except ShardlineError as error:
            yield Finding(kind="error", sentence=str(error), runs=run.names)
