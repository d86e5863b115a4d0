"""Snakemake's executor: submits jobs to Azure ML, waits for them, and reports failures with their reasons."""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import psutil
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from snakemake_executor_plugin_azureml.assets import variables_of
from snakemake_executor_plugin_azureml.client import RemoteJob, RemoteState, make_client
from snakemake_executor_plugin_azureml.errors import (
    AzureMLError,
    find_secrets,
    redact,
    text_of,
)
from snakemake_executor_plugin_azureml.job_request import (
    JobRequest,
    check_no_secrets,
    environment_of,
    make_request,
)
from snakemake_executor_plugin_azureml.logs import failure_message
from snakemake_executor_plugin_azureml.options import check_settings, read_mounts
from snakemake_executor_plugin_azureml.service import Service
from snakemake_executor_plugin_azureml.service_retries import Interrupted, Throttle
from snakemake_executor_plugin_azureml.settings import ExecutorSettings
from snakemake_executor_plugin_azureml.snakemake_jobs import (
    check_paths,
    passed_variables,
    portable_command,
    resources_of,
    target_of,
)
from snakemake_executor_plugin_azureml.snapshot import take_snapshot

_SUBMITTING_AT_ONCE = 4
_MISSES_BEFORE_LOST = 3  # the service's lists lag behind


class Executor(RemoteExecutor):
    """Runs a workflow's jobs on Azure ML."""

    def __post_init__(self) -> None:
        self.settings: ExecutorSettings = self.workflow.executor_settings
        check_settings(self.settings)
        check_paths(self.workflow)
        self.prefix = str(self.workflow.storage_settings.default_storage_prefix or "")
        key = hashlib.sha256(f"{self.settings.experiment}\0{self.prefix}".encode()).hexdigest()
        self.workflow_tag = f"snakemake_workflow_{key[:8]}"
        self.environment = environment_of(self.settings, self._environment_files())
        self.declared = sorted({*self.envvars(), *self.workflow.envvars})
        self.secrets = find_secrets(os.environ, self.declared)
        self.variables = passed_variables(
            self.envvars(), self.declared, self.settings.pass_envvars, self._warn
        )
        self.snapshot = take_snapshot(Path.cwd(), Path(".snakemake/azureml").absolute())
        pause = Throttle(self.settings.max_requests_per_second)  # shared by all clients
        self.service = Service(
            lambda: make_client(
                self.settings, code=self.snapshot.folder, workflow=self.workflow_tag, pause=pause
            ),
            since=datetime.fromtimestamp(psutil.Process().create_time(), UTC),
            minutes=self.settings.retry_minutes,
            warn=self._warn,
        )
        os.environ.update(variables_of(self.settings, read_mounts(self.settings)))
        # Submitting takes seconds, or minutes while the service is busy; the scheduler must go on.
        self._submitting = ThreadPoolExecutor(_SUBMITTING_AT_ONCE, "azureml-submit")
        # Snakemake's own list is empty while job states are queried, when the user may cancel.
        self._live: dict[str, SubmittedJobInfo] = {}
        self._states: dict[str, RemoteState] = {}
        self._misses: dict[str, int] = {}
        self._preempted: set[str] = set()
        self._last_warning = ""

    def run_job(self, job: JobExecutorInterface) -> None:
        """Queue a job for submission."""
        try:
            request = self._request(job)
        except WorkflowError as error:
            self.report_job_error(SubmittedJobInfo(job), msg=f"{error} ")
            return
        future = self._submitting.submit(self._submit, job, request)
        future.add_done_callback(self._check_submission)

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report the jobs that have ended, and yield the others."""
        if not active_jobs:
            return
        names = [str(info.external_jobid) for info in active_jobs]
        try:
            jobs = await asyncio.to_thread(self.service.status, names)
        except Exception as error:  # the jobs continue even if their status cannot be read
            warning = f"the status of {len(names)} jobs is unknown: {text_of(error)}"
            if warning != self._last_warning and not isinstance(error, Interrupted):
                self._warn(f"{warning}; trying again")
            self._last_warning = warning
            for info in active_jobs:
                yield info
            return
        self._last_warning = ""
        for info in active_jobs:
            name = str(info.external_jobid)
            if not await asyncio.to_thread(self._settle, info, name, jobs.get(name)):
                yield info

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Ask Azure ML to end jobs; warn of each job that cannot be cancelled."""

        def cancel(name: str) -> None:
            try:
                self.service.cancel(name)
            except Exception as error:
                self._warn(
                    f"job {name} could not be cancelled: {text_of(error)}; cancel it in Azure ML "
                    "studio, since it costs money while it runs"
                )

        names = [str(info.external_jobid) for info in active_jobs]
        if names:
            self.logger.info(f"Cancelling {len(names)} Azure ML jobs: {', '.join(names)}")
            with ThreadPoolExecutor(_SUBMITTING_AT_ONCE) as pool:
                list(pool.map(cancel, names))

    def cancel(self) -> None:
        """End all jobs, including those that are being submitted."""
        self.service.stopped.set()
        self._submitting.shutdown(wait=True, cancel_futures=True)
        self.cancel_jobs(list(self._live.copy().values()))
        self.shutdown()

    def shutdown(self) -> None:
        """Stop submissions and status requests."""
        self._submitting.shutdown(wait=True)
        super().shutdown()

    def _request(self, job: JobExecutorInterface) -> JobRequest:
        command = portable_command(self.format_job_exec(job), self.workflow.overwrite_workdir)
        request = make_request(
            self.settings,
            target_of(job, self.prefix),
            resources_of(job),
            command=command,
            snapshot=self.snapshot.digest,
            environment=self.environment,
            variables=self.variables,
            workflow=self.workflow_tag,
            attempt=job.attempt,
        )
        check_no_secrets(request, command, self.secrets)
        return request

    def _submit(self, job: JobExecutorInterface, request: JobRequest) -> None:
        try:
            made, is_adopted = self.service.submit(request)
        except Interrupted:
            return  # the workflow ends anyway
        except Exception as error:
            message = str(error) if isinstance(error, AzureMLError) else text_of(error)
            self._fail(
                SubmittedJobInfo(job), f"Azure ML job {request.stem} was not submitted: {message}"
            )
            return
        info = self._live[made.name] = SubmittedJobInfo(job, external_jobid=made.name)
        known = "has completed by now" if made.state.is_over else "is already running"
        how = f"{known} and is adopted" if is_adopted else "is submitted"
        nodes = "1 node" if request.nodes == 1 else f"{request.nodes} nodes"
        where = f"{nodes} of {request.instance_type or request.compute}"
        self.logger.info(f"Azure ML job {made.name} {how} ({where}) {made.url}".rstrip())
        self.report_job_submission(info)

    def _check_submission(self, future: "Future[None]") -> None:
        # An error of the plugin, not of the service; the pool would swallow it.
        if not future.cancelled() and (error := future.exception()) is not None:
            self.workflow.scheduler.executor_error_callback(error)

    def _settle(self, info: SubmittedJobInfo, name: str, job: RemoteJob | None) -> bool:
        """Report a job if it has ended; return whether it has."""
        if job is None:
            self._misses[name] = self._misses.get(name, 0) + 1
            if self._misses[name] < _MISSES_BEFORE_LOST:
                return False
            self._live.pop(name, None)
            self._fail(
                info,
                f"Azure ML job {name} no longer exists in the workspace; run the workflow again if it was deleted",
            )
            return True
        self._misses.pop(name, None)
        before, self._states[name] = self._states.get(name), job.state
        if (
            before is RemoteState.RUNNING
            and job.state is RemoteState.WAITING
            and name not in self._preempted
        ):
            self._preempted.add(name)
            self.logger.info(
                f"Azure ML preempted job {name} (low priority) and queued it again; "
                "a preemption is not a failure, and the workflow waits for the job."
            )
        if not job.state.is_over:
            return False
        self._live.pop(name, None)
        if job.state is RemoteState.COMPLETED:
            self.report_job_success(info)
        else:
            self._fail(info, failure_message(self.service, job))
        return True

    def _fail(self, info: SubmittedJobInfo, message: str) -> None:
        self.report_job_error(info, msg=redact(message, self.secrets) + "\n")

    def _warn(self, message: str) -> None:
        self.logger.warning(f"Azure ML: {redact(message, self.secrets)}")

    def _environment_files(self) -> dict[str, str]:
        read = {}
        for name in ("conda_file", "lock"):
            path = getattr(self.settings, name)
            if path:
                try:
                    read[name] = Path(path).read_text(encoding="utf-8")
                except OSError as error:
                    raise AzureMLError(
                        f"azureml-{name.replace('_', '-')}={path!r} cannot be read "
                        f"({error.strerror}); set it to an existing file"
                    ) from error
        return read
