"""A service in memory that says what a test wants."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

from snakemake_executor_plugin_azureml.client import RemoteJob
from snakemake_executor_plugin_azureml.service import Service
from tests.azureml.test_request import request_of

SINCE = datetime(2026, 11, 1, tzinfo=UTC)
KEY = "Zm9vYmFyYmF6cXV4Zm9vYmFy=="


class Answer(Exception):
    """An error as the SDKs raise them, with the answer's status and headers."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"answer {status}")
        self.response = SimpleNamespace(
            status_code=status,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )


class ServiceResponseError(Exception):
    """Named as azure-core's, which is known by its name."""


class FakeClient:
    """A service in memory; `errors` are raised by the next calls, `lost` after they took effect."""

    def __init__(self, *jobs):
        self.jobs = {job.name: job for job in jobs}
        self.calls = []
        self.errors = {}
        self.lost = {}
        self.why, self.tails = "", {}
        self.ends = {}  # seconds after the workflow's start, by name

    def _call(self, method, *arguments):
        self.calls.append((method, *arguments))
        if self.errors.get(method):
            raise self.errors[method].pop(0)

    def submit(self, request):
        self._call("submit", request.name)
        if request.name in self.jobs:
            raise Answer(409)
        job = RemoteJob(name=request.name, status="Queued", tags=request.tags, code=request.code)
        self.jobs[request.name] = job
        if self.lost.get("submit"):
            raise self.lost["submit"].pop(0)
        return job

    def find(self, name):
        self._call("find", name)
        return self.jobs.get(name)

    def status(self, names):
        self._call("status", *names)
        return {name: self.jobs[name] for name in names if name in self.jobs}

    def reason(self, name):
        self._call("reason", name)
        return self.why

    def ended(self, name):
        self._call("ended", name)
        return SINCE + timedelta(seconds=self.ends[name]) if name in self.ends else None

    def logs(self, name):
        self._call("logs", name)
        return self.tails

    def cancel(self, name):
        self._call("cancel", name)
        self.jobs[name] = replace(self.jobs[name], status="CancelRequested")

    def set(self, name, status):
        self.jobs[name] = replace(self.jobs[name], status=status)

    def count(self, method):
        return sum(call[0] == method for call in self.calls)


def service_of(client, minutes=0.02):
    warnings = []
    made = Service(lambda: client, since=SINCE, minutes=minutes, warn=warnings.append)
    return made, warnings


REQUEST = request_of()


def named(status, number=1, code=REQUEST.code):
    return RemoteJob(name=f"{REQUEST.stem}-{number}", status=status, tags={"snakemake_code": code})
