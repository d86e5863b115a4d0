"""Job arrays of Snakemake's Slurm plugin: an array for the jobs of a rule that request the same."""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

_TOGETHER_S = 10.0  # jobs that become ready within this time form arrays
_MOST_TASKS = 250  # Slurm accepts scripts of 4 MB, and the command of a task has some KB


def arrays_of_equals() -> None:
    """Make Snakemake's Slurm plugin (2.6 or later) submit an array for each set of jobs with equal resources.

    By itself, version 2.8 of the plugin cannot submit Shardline's jobs as arrays:

    - It gives all jobs of a rule the resources of the first one.
    - It puts the command between double quotes, and the options of a profile contain such quotes.
    - Each task of a job with `mpi` runs the first task's command.
    - It never submits the ready jobs of a rule if more of them wait for their turn (`jobs` of the profile).
    """
    from snakemake_executor_plugin_slurm import Executor

    run_jobs = Executor.run_jobs
    if hasattr(Executor, "run_array_jobs") and not hasattr(run_jobs, "of_equals"):
        Executor.run_jobs = _in_groups(run_jobs)


def _in_groups(run_jobs: Callable[[Any, list[Any]], None]) -> Callable[[Any, list[Any]], None]:
    def run_each(executor: Any, jobs: list[Any]) -> None:
        arrayed = [job for job in jobs if _may_be_task(executor, job)]
        ours = {id(job) for job in arrayed}
        run_jobs(executor, [job for job in jobs if id(job) not in ours])
        if arrayed:
            if not hasattr(executor, "shardline_waiting"):
                executor.shardline_waiting = _Waiting(executor)
            executor.shardline_waiting.add(arrayed)

    run_each.of_equals = True  # type: ignore[attr-defined]
    return run_each


def _may_be_task(executor: Any, job: Any) -> bool:
    return not job.is_group() and bool(executor.array_jobs & {job.rule.name, "all"})


class _Waiting:
    """Jobs that wait for others to be submitted together."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self._lock = threading.Lock()
        self._jobs: list[Any] = []

    def add(self, jobs: list[Any]) -> None:
        """Submit these jobs soon, with those that come until then."""
        for job in jobs:
            self._executor.run_job_pre(job)
        with self._lock:
            is_first = not self._jobs
            self._jobs += jobs
        if is_first:
            timer = threading.Timer(_TOGETHER_S, self._submit)
            timer.daemon = True
            timer.start()

    def _submit(self) -> None:
        with self._lock:
            jobs, self._jobs = self._jobs, []
        executor = self._executor
        most = min(_MOST_TASKS, executor.max_array_size)
        for group in alike(jobs):
            for start in range(0, len(group), most):
                with suppress(RuntimeError):  # after Ctrl-C nothing is submitted
                    executor._job_submission_executor.submit(
                        _submit, executor, group[start : start + most]
                    )


def alike(jobs: Iterable[Any]) -> list[list[Any]]:
    """Return jobs in groups of equal rule, threads and resources, in the order of the first of each group."""
    groups: dict[str, list[Any]] = {}
    for job in jobs:
        asked = sorted((name, str(value)) for name, value in job.resources.items())
        groups.setdefault(repr((job.rule.name, job.threads, asked)), []).append(job)
    return [*groups.values()]


def _submit(executor: Any, jobs: list[Any]) -> None:
    if len(jobs) == 1:
        executor.run_job(jobs[0])
    else:
        type(executor).run_array_jobs(_OfArray(executor, jobs), jobs)


class _OfArray:
    """An executor whose one command is a script with the command of each task.

    The plugin passes the script to sbatch by standard input, where nothing needs quotes. It adds an option with
    the tasks' commands, which the script's last line ignores: a job with `mpi` would not read it.
    """

    def __init__(self, executor: Any, jobs: list[Any]) -> None:
        self._executor, self._first = executor, jobs[0]
        self._script = array_script(executor.format_job_exec(job) for job in jobs)
        self.workflow = _Over(
            executor.workflow,
            executor_settings=_Over(
                executor.workflow.executor_settings,
                pass_command_as_script=True,
                disable_memory_fudge=True,
            ),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def format_job_exec(self, job: Any) -> str:
        """Return the script in place of the first task's command."""
        return self._script if job is self._first else ":"

    def _report_job_submission_threadsafe(self, info: Any) -> None:
        # the plugin expects a folder for each job, but an array has one
        log = self._executor.slurm_logdir / f"rule_{info.job.name}" / f"{info.external_jobid}.log"
        info.aux["slurm_logfile"] = log
        self._executor._report_job_submission_threadsafe(info)


class _Over:
    """An object with some attributes replaced."""

    def __init__(self, of: Any, **replaced: Any) -> None:
        self._of = of
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def array_script(commands: Iterable[str]) -> str:
    """Return a shell script that runs the command of its task, counted from 1.

    The script ends with the exit code of the command, and ignores what follows it.
    """
    cases = [f"{number})\n{command}\n;;" for number, command in enumerate(commands, start=1)]
    return "\n".join(['case "$SLURM_ARRAY_TASK_ID" in', *cases, "*) false ;;", "esac", "exit $? #"])
