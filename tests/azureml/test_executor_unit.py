"""What the executor makes of the service's answers, with a client that says what a test wants."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snakemake_executor_plugin_azureml.client import RemoteState
from snakemake_executor_plugin_azureml.errors import AzureMLError
from snakemake_executor_plugin_azureml.executor import Executor
from tests.azureml.fake_client import (
    KEY,
    REQUEST,
    Answer,
    FakeClient,
    ServiceResponseError,
    named,
    service_of,
)
from tests.azureml.test_request import request_of

pytestmark = pytest.mark.usefixtures("quick")

# Submission: what is made already is not made again


def test_a_job_is_submitted_once_and_then_adopted():
    client = FakeClient()
    first, is_adopted = service_of(client)[0].submit(REQUEST)
    assert (first.name, is_adopted) == (f"{REQUEST.stem}-1", False)
    client.set(first.name, "Running")
    second, is_adopted = service_of(client)[0].submit(REQUEST)  # another controller
    assert (second.name, is_adopted) == (first.name, True)
    assert client.count("submit") == 1


@pytest.mark.parametrize("status", ["Completed", "Failed", "Canceled"])
def test_after_an_ended_job_comes_the_next_number(status):
    client = FakeClient(named(status), named(status, 2))
    job, is_adopted = service_of(client)[0].submit(REQUEST)
    assert (job.name, is_adopted) == (f"{REQUEST.stem}-3", False)


@pytest.mark.parametrize(
    ("status", "code", "ended_s", "number"),
    [
        ("Completed", REQUEST.code, 5, 2),
        ("Completed", REQUEST.code, -5, 3),
        ("Completed", REQUEST.code, None, 3),
        ("Completed", "other", 5, 3),
        ("Failed", REQUEST.code, 5, 3),
    ],
)
def test_a_job_that_completed_since_the_storage_was_looked_at_is_adopted(
    status, code, ended_s, number
):
    client = FakeClient(named("Failed"), named(status, 2, code=code))
    if ended_s is not None:
        client.ends[f"{REQUEST.stem}-2"] = ended_s
    job, is_adopted = service_of(client)[0].submit(REQUEST)
    assert (job.name, is_adopted) == (f"{REQUEST.stem}-{number}", number == 2)


def test_a_job_whose_files_are_missing_after_its_end_is_made_again():
    client = FakeClient()
    made, _ = service_of(client)
    first, _ = made.submit(REQUEST)
    client.set(first.name, "Completed")
    client.ends[first.name] = 5
    assert made.submit(REQUEST)[0].name == f"{REQUEST.stem}-2"


def test_a_running_job_of_other_code_is_an_error_that_says_what_to_do():
    made, _ = service_of(FakeClient(named("Running", code="other")))
    with pytest.raises(AzureMLError) as error:
        made.submit(REQUEST)
    for part in (f"job {REQUEST.stem}-1 is Running", "is other", REQUEST.code, "or cancel it"):
        assert part in str(error.value)


def test_a_job_that_is_being_cancelled_is_waited_for():
    client = FakeClient(named("CancelRequested"))
    made, warnings = service_of(client)
    find = client.find

    def found(name):
        job = find(name)
        if client.count("find") == 3:
            client.set(f"{REQUEST.stem}-1", "Canceled")
        return job

    client.find = found
    job, _ = made.submit(REQUEST)
    assert job.name == f"{REQUEST.stem}-2"
    assert len(warnings) == 1


def test_a_submission_whose_answer_was_lost_is_found_again():
    client = FakeClient()
    client.lost["submit"] = [ServiceResponseError("connection aborted")]
    job, _ = service_of(client)[0].submit(REQUEST)
    assert job.name == f"{REQUEST.stem}-1"
    assert client.count("submit") == 1
    assert len(client.jobs) == 1


def test_a_submission_that_the_sdk_tried_twice_is_found_again():
    client = FakeClient()
    client.lost["submit"] = [Answer(409)]  # what the SDK's own second try is told
    job, _ = service_of(client)[0].submit(REQUEST)
    assert job.name == f"{REQUEST.stem}-1"


def test_a_refused_submission_is_not_tried_again():
    client = FakeClient()
    client.errors["submit"] = [Answer(400)]
    with pytest.raises(Answer):
        service_of(client)[0].submit(REQUEST)
    assert client.count("submit") == 1


def test_an_interrupted_submission_is_known_if_it_was_accepted():
    client = FakeClient()
    client.lost["submit"] = [Answer(503)]
    made, _ = service_of(client)
    made.stopped.set()
    job, _ = made.submit(REQUEST)
    assert job.name == f"{REQUEST.stem}-1"


# The executor


class Reports:
    """What Snakemake is told."""

    def __init__(self, client):
        self.executor = Executor.__new__(Executor)
        self.said, self.errors, self.done, self.submitted = [], [], [], []
        own = self.executor
        own.service, self.warnings = service_of(client)
        own.secrets = {"STORE": KEY}
        own.logger = SimpleNamespace(info=self.said.append, warning=self.warnings.append)
        own._live, own.shutdown = {}, lambda: None
        own._states, own._misses, own._preempted, own._last_warning = {}, {}, set(), ""
        own._submitting = ThreadPoolExecutor(1)
        own.report_job_error = lambda info, msg: self.errors.append(msg)
        own.report_job_success = lambda info: self.done.append(info.external_jobid)
        own.report_job_submission = self.submitted.append

    def check(self, *names):
        infos = [SubmittedJobInfo(SimpleNamespace(), external_jobid=name) for name in names]

        async def left():
            return [info.external_jobid async for info in self.executor.check_active_jobs(infos)]

        return asyncio.run(left())


def test_all_jobs_are_asked_for_at_once():
    client = FakeClient(named("Completed"), named("Running", 2), named("Weird", 3))
    reports = Reports(client)
    names = list(client.jobs)
    assert reports.check(*names) == names[1:]
    assert reports.done == names[:1]
    assert client.calls == [("status", *names)]


def test_a_failed_job_says_why():
    client = FakeClient(named("Failed"))
    client.jobs[f"{REQUEST.stem}-1"] = replace(named("Failed"), url="https://studio/runs/x")
    client.why = "UserError: process exited with code 1"
    client.tails = {
        "user_logs/std_log_process_0.txt": "all 2 processes joined\nazureml node: rank 1 (node 1) ended with code 7",
        "user_logs/std_log_process_1.txt": f"step 1\nValueError: AccountKey={KEY} {KEY} is wrong\n",
    }
    reports = Reports(client)
    assert reports.check(f"{REQUEST.stem}-1") == []
    message = reports.errors[0]
    for part in (
        f"Azure ML job {REQUEST.stem}-1 failed. UserError: process exited with code 1",
        "Azure ML studio: https://studio/runs/x",
        "The end of user_logs/std_log_process_1.txt:\n    step 1\n    ValueError: AccountKey=*** ***",
    ):
        assert part in message
    assert KEY not in message


def test_a_failed_job_is_reported_though_nothing_else_can_be_read():
    client = FakeClient(named("Failed"))
    client.errors = {"reason": [Answer(403)], "logs": [Answer(404)]}
    reports = Reports(client)
    assert reports.check(f"{REQUEST.stem}-1") == []
    assert "its reason cannot be read: Answer: answer 403" in reports.errors[0]
    assert "its logs cannot be read: Answer: answer 404" in reports.errors[0]


def test_a_cancelled_job_and_a_preempted_one_are_told_apart_from_failures():
    client = FakeClient(named("Canceled"), named("Failed", 2))
    reports = Reports(client)
    reports.check(f"{REQUEST.stem}-1")
    client.why = "JobNodePreempted: the node was preempted"
    reports.check(f"{REQUEST.stem}-2")
    assert "was cancelled, by a user or at its time limit" in reports.errors[0]
    assert "was preempted (low priority)" in reports.errors[1]
    assert "a preemption is not a failure of the rule" in reports.errors[1]


def test_a_job_that_azure_ml_queues_again_is_waited_for_and_mentioned_once():
    name, client = f"{REQUEST.stem}-1", FakeClient(named("Running"))
    reports = Reports(client)
    for status in ("Running", "Queued", "Running", "Preparing", "Running"):
        client.set(name, status)
        assert reports.check(name) == [name]
    assert len(reports.said) == 1
    assert "Azure ML preempted job" in reports.said[0]
    client.set(name, "Completed")
    assert reports.check(name) == []
    assert reports.done == [name]


def test_a_status_that_cannot_be_read_ends_no_job():
    client = FakeClient(named("Running"))
    client.errors["status"] = [Answer(403), Answer(403)]
    reports = Reports(client)
    name = f"{REQUEST.stem}-1"
    assert reports.check(name) == reports.check(name) == [name]
    assert len(reports.warnings) == 1
    assert reports.errors == []


def test_a_job_that_the_service_does_not_know_is_given_up_after_some_lists():
    reports = Reports(FakeClient())
    assert [reports.check("gone-1") for _ in range(3)] == [["gone-1"], ["gone-1"], []]
    assert "Azure ML job gone-1 no longer exists in the workspace" in reports.errors[0]


def test_cancelling_asks_for_every_job_and_names_those_that_cannot_be_asked_for():
    client = FakeClient(named("Running"), named("Running", 2))
    client.errors["cancel"] = [Answer(403)]
    reports = Reports(client)
    reports.executor.service.stopped.set()
    reports.executor.cancel_jobs(
        [SubmittedJobInfo(SimpleNamespace(), external_jobid=name) for name in client.jobs]
    )
    assert client.count("cancel") == 2
    assert sum(job.state is RemoteState.CANCELLING for job in client.jobs.values()) == 1
    assert "it costs money while it runs" in reports.warnings[0]


def test_a_job_is_cancelled_also_while_its_status_is_asked_for():
    client = FakeClient()
    reports = Reports(client)
    reports.executor._submit(SimpleNamespace(), REQUEST)
    status = client.status

    def interrupted(names):
        reports.executor.cancel()  # Ctrl-C, when Snakemake's list of active jobs is empty
        return status(names)

    client.status = interrupted
    assert reports.check(f"{REQUEST.stem}-1") == [f"{REQUEST.stem}-1"]
    assert client.jobs[f"{REQUEST.stem}-1"].state is RemoteState.CANCELLING


def test_submission_reports_the_job_or_the_error():
    client = FakeClient()
    reports = Reports(client)
    reports.executor._submit(SimpleNamespace(), REQUEST)
    assert reports.submitted[0].external_jobid == f"{REQUEST.stem}-1"
    assert "is submitted (1 node of cpu-cluster)" in reports.said[0]
    client.errors["find"] = [Answer(403)]
    reports.executor._submit(SimpleNamespace(), request_of({"mounts": "STORE=store"}, {"nodes": 2}))
    assert "was not submitted: Answer: answer 403" in reports.errors[0]
