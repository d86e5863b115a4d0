"""Which errors pass by themselves, how long they are waited for, and which log tells most."""

import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from snakemake_executor_plugin_azureml import service_retries
from snakemake_executor_plugin_azureml.client import RemoteJob, RemoteState
from snakemake_executor_plugin_azureml.errors import AzureMLError, text_of
from snakemake_executor_plugin_azureml.logs import own_logs, relevant_logs
from snakemake_executor_plugin_azureml.service import Service
from snakemake_executor_plugin_azureml.service_retries import (
    Interrupted,
    Throttle,
    is_transient,
    retry,
    retry_after_s,
    status_code,
)
from tests.azureml.fake_client import (
    REQUEST,
    SINCE,
    Answer,
    FakeClient,
    ServiceResponseError,
    named,
    service_of,
)

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (Answer(429), True),
        (Answer(500), True),
        (Answer(503), True),
        (Answer(400), False),
        (Answer(403), False),
        (Answer(404), False),
        (ServiceResponseError("aborted"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (KeyError("a bug"), False),
        (Exception("Error retrieving the environment. Code: 503\n: busy"), True),
        (Exception('{"status_code": 400, "text": "no"}'), False),
        (AzureMLError("yours"), False),
    ],
)
def test_what_passes_by_itself(error, is_so):
    assert is_transient(error) is is_so


def test_an_error_is_looked_for_below_others():
    error = RuntimeError("submission failed")
    error.__cause__ = Answer(429, Retry_After="7")
    assert status_code(error) == 429
    assert retry_after_s(error) == 7
    assert is_transient(error)


JSON = """{
    "error_details": {
        "correlation": {"request": "1"},
        "error": {"code": "TooManyRequests", "message": "Too many\\r\\n\\"requests\\"."}
    },
    "status_code": 429
}"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"Message: {JSON} ErrorResponse {JSON}", 'TooManyRequests: Too many "requests".'),
        ('Code: 503\n: {"error":{"code":"Busy","message":"Later."}}', "Busy: Later."),
        ("(Busy) Later.\nCode: Busy\nMessage: Later.\nDetails: a\n b", "Busy: Later. Details: a b"),
        ("nothing\n  else", "nothing else"),
    ],
)
def test_of_an_answer_the_code_and_message_are_told(text, told):
    assert text_of(ValueError(text)) == f"ValueError: {told}"


def test_retry_after_may_be_a_date():
    now = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    error = Answer(429, Retry_After="Thu, 01 Jan 2026 12:00:30 GMT")
    assert retry_after_s(error, now) == 30
    assert retry_after_s(Answer(429, Retry_After="soon"), now) is None


def test_a_busy_service_is_asked_again_after_the_time_it_names():
    client, waits = FakeClient(named("Running")), []
    client.errors["status"] = [Answer(429, Retry_After="0"), Answer(500), ServiceResponseError()]
    made, warnings = service_of(client)
    made.stopped = SimpleNamespace(wait=lambda seconds: waits.append(seconds) and False)
    assert made.status([f"{REQUEST.stem}-1"])
    assert len(waits) == len(warnings) == 3
    assert 0 <= waits[0] <= 1  # jitter alone


def test_the_last_error_is_raised_when_the_time_is_over():
    client = FakeClient()
    client.errors["find"] = [Answer(503) for _ in range(10000)]
    with pytest.raises(Answer):
        service_of(client, minutes=0.0005)[0].find("x")
    assert client.count("find") > 1


def test_a_refused_token_is_renewed_once():
    made, clients = [], []

    def make():
        client = FakeClient(named("Running"))
        if len(clients) < 1:
            client.errors["find"] = [Answer(401)]
        clients.append(client)
        return client

    once = Service(make, since=SINCE, minutes=0.02, warn=made.append)
    assert once.find(f"{REQUEST.stem}-1") is not None
    assert len(clients) == 2
    refused = FakeClient()
    refused.errors["find"] = [Answer(401), Answer(401)]
    with pytest.raises(Answer):
        service_of(refused)[0].find("x")


def test_waiting_ends_when_the_workflow_is_cancelled():
    stop = threading.Event()

    def busy():
        stop.set()
        raise Answer(429, Retry_After="3600")

    with pytest.raises(Interrupted):
        retry(busy, minutes=60, stop=stop, renew=lambda: None, notice=lambda *_: None)


def test_the_rate_is_limited(monkeypatch):
    clock, slept = [100.0], []
    monkeypatch.setattr(service_retries.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(service_retries.time, "sleep", slept.append)
    throttle = Throttle(2.0)
    for _ in range(3):
        throttle()
    assert slept == [0.0, 0.5, 1.0]


def test_the_logs_that_tell_most():
    names = [f"user_logs/std_log_process_{number}.txt" for number in (10, 2, 0)]
    logs = own_logs({**dict.fromkeys(names, "u"), "system_logs/x.log": "u"})
    assert list(logs) == names[::-1]
    tails = dict.fromkeys(names[::-1], "fine")
    leader = names[2]  # who ran the rule
    assert relevant_logs(tails, "") == [leader]
    assert relevant_logs({**tails, names[1]: "Traceback ..."}, "") == [names[1], leader]
    assert relevant_logs(tails, f"see {names[0]}") == [names[0], leader]
    for said in (
        "azureml node: rank 10 (node 5) is lost",
        "rank 10 on node5: ValueError: nonsense",
    ):
        assert relevant_logs({**tails, leader: said}, f"see {names[1]}") == [names[0], leader]
    assert relevant_logs({}, "") == []


def test_of_several_starts_the_last_ones_logs_count():
    names = [
        f"user_logs/{start}std_log_process_{rank}.txt"
        for start in ("", "retry_001/", "retry_010/", "retry_002/")
        for rank in (0, 1)
    ]
    assert list(own_logs(dict.fromkeys(names, "u"))) == names[4:6]
    assert list(own_logs(dict.fromkeys(["retry_001/other.txt", *names[:2]], "u"))) == names[:2]


def test_states_of_the_service():
    states = {status: RemoteJob(name="a", status=status).state for status in (
        "NotStarted", "Starting", "Provisioning", "Preparing", "Queued", "Running", "Finalizing",
        "CancelRequested", "Completed", "Failed", "Canceled", "NotResponding", "Finished", "Brandnew",
    )}  # fmt: skip
    assert [status for status, state in states.items() if state is RemoteState.WAITING] == [
        "NotStarted", "Starting", "Provisioning", "Preparing", "Queued", "Brandnew",
    ]  # fmt: skip
    assert [status for status, state in states.items() if state.is_over] == [
        "Completed", "Failed", "Canceled", "Finished",
    ]  # fmt: skip
