"""azureml-core changes what other code of Snakemake's process does in no way."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from snakemake_executor_plugin_azureml.child_process import ChildProcess
from snakemake_executor_plugin_azureml.errors import AzureMLError, SdkError, text_of
from snakemake_executor_plugin_azureml.service_retries import (
    ClientGoneError,
    is_transient,
    needs_new_client,
    retry_after_s,
    status_code,
)
from tests.azureml.emulator import AzureMLEmulator

# One request of this process, and one of azure-core's, which azure-ai-ml sends, are answered later
# than azureml-core would wait, while a job is submitted with SDK v1.
PROGRAM = """
import json, logging, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import requests
from azure.core.pipeline.transport import HttpRequest, RequestsTransport
from snakemake_executor_plugin_azureml.client import make_client
from snakemake_executor_plugin_azureml.settings import ExecutorSettings
from tests.azureml.test_request import request_of

REQUEST_TIMEOUT_S = 4  # in which a busy machine answers


class Late(BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(1.5 * REQUEST_TIMEOUT_S)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def state():
    parts = [requests, requests.api, requests.adapters, requests.sessions, requests.utils]
    parts += [requests.Session, requests.adapters.HTTPAdapter]
    functions = {f"{part.__name__}.{name}": value for part in parts for name, value in vars(part).items()}
    return {
        "requests": functions, "environment": dict(os.environ), "folder": os.getcwd(),
        "logging": list(logging.root.handlers), "level": logging.getLogger("azure").level,
    }


def outcome(function):
    try:
        return function().status_code
    except Exception as error:
        return repr(error)


place = json.loads(sys.argv[1])
settings = ExecutorSettings(**place, request_timeout_s=REQUEST_TIMEOUT_S)
request = request_of({"sdk": "v1"})
server = ThreadingHTTPServer(("127.0.0.1", 0), Late)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
before, ended, seen = state(), threading.Event(), {}
Path("code").mkdir()
Path("code/file").touch()
client = make_client(settings, code=Path("code").absolute(), workflow="w", pause=lambda: None)
others = {
    "requests": lambda: requests.get(url, timeout=30),
    "azure.core": lambda: RequestsTransport(read_timeout=30).send(HttpRequest("GET", url)),
}
threads = [
    threading.Thread(target=lambda name=name, call=call: seen.update({name: outcome(call)}))
    for name, call in others.items()
]
for thread in threads:
    thread.start()
seen["job"] = client.submit(request).name
seen["found"] = client.find(request.name).name
client.cancel(request.name)
for thread in threads:
    thread.join()
after = state()
seen["changed"] = [part for part in before if before[part] != after[part]]
seen["modules"] = sorted(name for name in sys.modules if name.partition(".")[0] == "azureml")
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def service(start_azureml: Callable[..., Any]) -> Any:
    """An emulator without blob storage."""
    return start_azureml(nodes=1, azurite=False)


def test_a_submission_changes_nothing_for_other_requests_of_the_process(
    service: AzureMLEmulator, tmp_path: Path
) -> None:
    place = {
        "subscription": service.subscription, "resource_group": service.resource_group,
        "workspace": service.workspace, "image": "registry.example.com/training:1", "sdk": "v1",
    }  # fmt: skip
    answer = service.login.run(
        "python", "-c", PROGRAM, json.dumps(place), cwd=tmp_path, env=service.environment, timeout=300
    )  # fmt: skip
    seen = json.loads(answer.stdout.splitlines()[-1])
    assert (seen["requests"], seen["azure.core"]) == (204, 204)
    assert (seen["changed"], seen["modules"]) == ([], [])
    assert seen["job"] == seen["found"] in service.jobs


CLIENT = """
import os, threading
from snakemake_executor_plugin_azureml.child_process import serve
from snakemake_executor_plugin_azureml.errors import AzureMLError


class Response:
    status_code, headers = 503, {"Retry-After": "7"}


class BusyError(Exception):
    response = Response()


class Client:
    met, blocked = threading.Barrier(2), threading.Event()

    def meet(self, word):
        self.met.wait(60)
        return word

    def fail(self, error):
        raise {"busy": BusyError("later"), "bug": KeyError("a"), "user": AzureMLError("set it")}[error]

    def block(self):
        self.blocked.set()
        threading.Event().wait()

    def wait_for_block(self):
        return self.blocked.wait(60)

    def pid(self):
        return os.getpid()

    def end(self):
        os._exit(3)


def make(answer):
    if answer != 42:
        raise ModuleNotFoundError("no module", name="azureml")
    return Client()


if __name__ == "__main__":
    serve(make)
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ChildProcess]:
    """Start a process that serves the client above."""
    (tmp_path / "served_client.py").write_text(CLIENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda answer=42: ChildProcess("served_client", answer=answer)


def test_calls_are_carried_out_side_by_side(start):
    child = start()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda word: child.call("meet", word), "ab")) == ["a", "b"]


def test_an_error_arrives_with_all_that_a_retry_asks_about_it(start):
    child = start()
    with pytest.raises(SdkError) as busy:
        child.call("fail", "busy")
    assert text_of(busy.value) == "BusyError: later"
    assert (status_code(busy.value), retry_after_s(busy.value)) == (503, 7)
    assert is_transient(busy.value)
    with pytest.raises(SdkError) as bug:
        child.call("fail", "bug")
    assert (text_of(bug.value), is_transient(bug.value)) == ("KeyError: 'a'", False)
    with pytest.raises(AzureMLError, match="^set it$"):
        child.call("fail", "user")


def test_an_sdk_that_cannot_be_imported_is_named(start):
    with pytest.raises(ModuleNotFoundError) as error:
        start(answer=0)
    assert error.value.name == "azureml"


def test_a_process_that_ends_takes_a_new_client(start):
    child = start()
    for _ in range(2):  # while a call is under way, and before one
        with pytest.raises(ClientGoneError, match="served_client") as gone:
            child.call("end")
        assert needs_new_client(gone.value)


def test_the_process_ends_with_its_client_and_with_its_parent(start, tmp_path):
    child = start()
    process = psutil.Process(child.call("pid"))
    del child
    process.wait(60)
    program = (
        "import os, signal, threading\n"
        "from snakemake_executor_plugin_azureml.child_process import ChildProcess\n"
        "child = ChildProcess('served_client', answer=42)\n"
        "threading.Thread(target=child.call, args=['block'], daemon=True).start()\n"
        "assert child.call('wait_for_block')\n"
        "print(child.call('pid'), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert killed.returncode == -signal.SIGKILL
    AzureMLEmulator.wait_until(
        lambda: has_ended(int(killed.stdout)), lambda: f"process {killed.stdout} runs on"
    )


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, whoever is to ask for its exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
