"""The service as the executor uses it: requests are retried, and no job is created twice."""

import threading
import time
from collections.abc import Callable, Collection
from datetime import datetime
from typing import TypeVar

from snakemake_executor_plugin_azureml.client import Client, RemoteJob, RemoteState
from snakemake_executor_plugin_azureml.errors import AzureMLError, text_of
from snakemake_executor_plugin_azureml.job_request import CODE_TAG, JobRequest
from snakemake_executor_plugin_azureml.service_retries import Interrupted, retry

T = TypeVar("T")

_CANCEL_MINUTES = 1.0  # a user who pressed Ctrl-C waits this long
_CANCELLING_MINUTES = 10.0
_CANCELLING_POLL_S = 5.0


class Service:
    """One workspace, through one SDK.

    Args:
        make: returns a new client with a new credential; called at the first
            request and whenever the service rejects a token.
        since: time at which this workflow started and looked for existing outputs.
        minutes: minutes for which a request is retried.
        warn: called with a message about each retried request.
    """

    def __init__(
        self,
        make: Callable[[], Client],
        *,
        since: datetime,
        minutes: float,
        warn: Callable[[str], None],
    ) -> None:
        self._make = make
        self._since = since
        self._minutes = minutes
        self._warn = warn
        self._client: Client | None = None
        self._making = threading.Lock()
        self._numbers: dict[str, int] = {}
        self.stopped = threading.Event()

    def submit(self, request: JobRequest) -> tuple[RemoteJob, bool]:
        """Return the job for a request, and whether it existed already.

        The job's name follows from its outputs. So the job of a crashed Snakemake, or a job
        whose creation was accepted without an answer, is found and not created again. The same
        holds for a job that has completed since this workflow looked for its outputs.

        Raises:
            AzureMLError: a job with the same outputs and other code is still running.
        """
        number, last = self._numbers.get(request.stem, 1), None
        while (job := self._ended_by_now(request.numbered(number).name)) is not None:
            if not job.state.is_over:
                if job.runs == request.code:
                    self._numbers[request.stem] = number
                    return job, True
                raise AzureMLError(_occupied(job, request))
            number, last = number + 1, job
        if last and request.stem not in self._numbers and self._is_new(last, request):
            self._numbers[request.stem] = number - 1
            return last, True
        self._numbers[request.stem] = number
        return self._create(request.numbered(number)), False

    def find(self, name: str) -> RemoteJob | None:
        """Return the job with this name, or None if no job has it."""
        return self._ask(f"looking for job {name}", lambda client: client.find(name))

    def status(self, names: Collection[str]) -> dict[str, RemoteJob]:
        """Return the existing ones of these jobs."""
        return self._ask("asking for the status of jobs", lambda client: client.status(names))

    def reason(self, name: str) -> str:
        """Return the service's reason for a job's failure."""
        return self._ask(f"asking why job {name} failed", lambda client: client.reason(name))

    def logs(self, name: str) -> dict[str, str]:
        """Return the last part of each log of a job."""
        return self._ask(f"reading the logs of job {name}", lambda client: client.logs(name))

    def ended(self, name: str) -> datetime | None:
        """Return the end time of a job; None if unknown."""
        return self._ask(f"asking when job {name} ended", lambda client: client.ended(name))

    def cancel(self, name: str) -> None:
        """Ask the service to end a job, even while the workflow is being cancelled."""
        self._ask(
            f"cancelling job {name}",
            lambda client: client.cancel(name),
            minutes=_CANCEL_MINUTES,
            stop=threading.Event(),
        )

    def _create(self, request: JobRequest) -> RemoteJob:
        has_tried = False

        def create(client: Client) -> RemoteJob:
            nonlocal has_tried
            if has_tried and (job := self._ours(client, request)):
                return job
            has_tried = True
            return client.submit(request)

        try:
            return self._ask(f"submitting job {request.name}", create)
        except Exception as error:
            # The name may exist from an earlier attempt, whose answer was lost. An interrupted
            # submission may have been accepted too, and is cancelled with the other jobs.
            job = self._ours(self._current(), request)
            if job is None:
                raise
            self._warn(
                f"job {job.name} exists, although the answer to its submission was an error: {text_of(error)}"
            )
            return job

    def _ours(self, client: Client, request: JobRequest) -> RemoteJob | None:
        job = client.find(request.name)
        return job if job is not None and job.runs == request.code else None

    def _is_new(self, job: RemoteJob, request: JobRequest) -> bool:
        """Return whether a job with the same code completed after this workflow looked for outputs."""
        if job.state is not RemoteState.COMPLETED or job.runs != request.code:
            return False
        ended = self.ended(job.name)
        return ended is not None and ended > self._since

    def _ended_by_now(self, name: str) -> RemoteJob | None:
        """Return the job of this name; if it is being cancelled, wait for its end."""
        deadline = time.monotonic() + 60 * _CANCELLING_MINUTES
        is_noted = False
        while (job := self.find(name)) is not None and job.state is RemoteState.CANCELLING:
            if not is_noted:
                self._warn(f"job {name} is being cancelled; waiting until it has ended")
                is_noted = True
            if time.monotonic() > deadline:
                raise AzureMLError(
                    f"job {name} has been in cancellation for {_CANCELLING_MINUTES:.0f} minutes; "
                    f"check it in Azure ML studio, and start again when it has ended {job.url}"
                )
            if self.stopped.wait(_CANCELLING_POLL_S):
                raise Interrupted("the workflow is being cancelled; no further job is submitted")
        return job

    def _ask(
        self,
        what: str,
        function: Callable[[Client], T],
        *,
        minutes: float | None = None,
        stop: threading.Event | None = None,
    ) -> T:
        return retry(
            lambda: function(self._current()),
            minutes=minutes or self._minutes,
            stop=stop or self.stopped,
            renew=self._renew,
            notice=lambda error, wait_s: self._warn(
                f"{what}: {text_of(error)}; retrying in {wait_s:.0f} s"
            ),
        )

    def _current(self) -> Client:
        with self._making:
            if self._client is None:
                self._client = self._make()
            return self._client

    def _renew(self) -> None:
        with self._making:
            self._client = None


def _occupied(job: RemoteJob, request: JobRequest) -> str:
    return (
        f"Azure ML job {job.name} is {job.status} and makes the same files from other code or "
        f"settings (its tag {CODE_TAG} is {job.runs or 'not set'}, this workflow's is "
        f"{request.code}; its tags: {dict(job.tags)}); wait until it has ended, or cancel it, and "
        f"start again {job.url}"
    ).rstrip()
