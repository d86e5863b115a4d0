"""Job arrays of Snakemake's Slurm plugin for jobs that request the same."""

from collections.abc import Callable, Iterable
from typing import Any


def arrays_of_equals() -> None:
    """Make Snakemake's Slurm plugin (2.6 or later) submit an array for each set of jobs with equal resources.

    The plugin submits all jobs of a rule with the resources of the first. Runs may differ in nodes, devices and
    accelerator, and would get the machines of another run.
    """
    from snakemake_executor_plugin_slurm import Executor

    submit = getattr(Executor, "_submit_array_jobs", None)
    if submit and not hasattr(submit, "of_equals"):
        Executor._submit_array_jobs = _in_groups(submit)


def _in_groups(submit: Callable[[Any, list[Any]], None]) -> Callable[[Any, list[Any]], None]:
    def submit_each(executor: Any, jobs: list[Any]) -> None:
        for group in alike(jobs):
            if len(group) == 1:
                executor._submit_job(group[0])
            else:
                submit(executor, group)

    submit_each.of_equals = True  # type: ignore[attr-defined]
    return submit_each


def alike(jobs: Iterable[Any]) -> list[list[Any]]:
    """Return jobs in groups of equal threads and resources, in the order of the first of each group."""
    groups: dict[str, list[Any]] = {}
    for job in jobs:
        asked = sorted((name, str(value)) for name, value in job.resources.items())
        groups.setdefault(repr((job.threads, asked)), []).append(job)
    return [*groups.values()]
