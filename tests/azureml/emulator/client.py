"""What a user of each SDK writes, for tests of the emulator and by hand:

    python -m tests.azureml.emulator.client v2 '{"name": "a", "code": "folder", "command": "ls"}'

The SDKs are used as they are documented; nothing here knows that the service is emulated.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from tests.azureml.emulator.constants import (
    COMPUTE,
    DATASTORE,
    RESOURCE_GROUP,
    SUBSCRIPTION,
    WORKSPACE,
)
from tests.azureml.emulator.jobs import TERMINAL

IMAGE = "mcr.example.com/training:1"
PATIENCE = 5  # failed questions after which a client gives up


@dataclass(frozen=True)
class Order:
    """What to run.

    Attributes:
        mount: Path of the default datastore that is mounted; the command finds it in $STORE.
        then: `wait` for the end, `cancel` once it runs, or `leave` it alone.
    """

    name: str
    code: str
    command: str
    nodes: int = 1
    processes_per_node: int = 1
    distribution: str = ""
    compute: str = COMPUTE
    mount: str = ""
    then: str = "wait"
    timeout_s: int = 600
    environment: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


class Client(Protocol):
    """The few things that both SDKs can do."""

    def submit(self, order: Order) -> None: ...
    def status(self, name: str) -> str: ...
    def cancel(self, name: str) -> None: ...
    def logs(self, name: str, folder: Path) -> dict[str, str]: ...


class V2:
    """azure-ai-ml."""

    def __init__(self, credential: Any) -> None:
        from azure.ai.ml import MLClient

        place = (SUBSCRIPTION, RESOURCE_GROUP, WORKSPACE)
        self._client = MLClient(credential, *place, enable_telemetry=False, show_progress=False)

    def submit(self, order: Order) -> None:
        from azure.ai.ml import Output, command
        from azure.ai.ml.entities import Environment

        environment = self._client.environments.create_or_update(
            Environment(name="training", version="1", image=IMAGE)
        )
        uri = f"azureml://datastores/{DATASTORE}/paths/{order.mount}/"
        store = {"store": Output(type="uri_folder", mode="rw_mount", path=uri)}
        processes = {"process_count_per_instance": order.processes_per_node}
        job = command(
            name=order.name,
            code=order.code,
            command=f"{'STORE=${{outputs.store}} ' if order.mount else ''}{order.command}",
            environment=f"{environment.name}:{environment.version}",
            compute=order.compute,
            instance_count=order.nodes,
            distribution={"type": order.distribution, **processes} if order.distribution else None,
            outputs=store if order.mount else None,
            environment_variables=order.environment,
            tags=order.tags,
            experiment_name="tests",
            timeout=order.timeout_s,
        )
        self._client.jobs.create_or_update(job)

    def status(self, name: str) -> str:
        status = self._client.jobs.get(name).status
        return str(getattr(status, "value", status))

    def cancel(self, name: str) -> None:
        self._client.jobs.begin_cancel(name).wait()

    def logs(self, name: str, folder: Path) -> dict[str, str]:
        self._client.jobs.download(name, download_path=folder)
        return _texts(folder / "artifacts")


class V1:
    """azureml-core."""

    def __init__(self, credential: Any) -> None:
        from azureml.core import Experiment, Workspace
        from azureml.core.authentication import TokenAuthentication

        authentication = TokenAuthentication(
            lambda audience: credential.get_token(f"{audience.rstrip('/')}/.default").token,
            cloud="AzureCloud",
        )
        self._workspace = Workspace.get(WORKSPACE, authentication, SUBSCRIPTION, RESOURCE_GROUP)
        self._experiment = Experiment(self._workspace, "tests")

    def submit(self, order: Order) -> None:
        from azureml.core import Environment, ScriptRunConfig
        from azureml.core.runconfig import (
            DataReferenceConfiguration,
            DockerConfiguration,
            MpiConfiguration,
            PyTorchConfiguration,
        )

        environment = Environment("training")
        environment.docker.base_image = IMAGE
        environment.python.user_managed_dependencies = True
        total = order.nodes * order.processes_per_node
        distributions: dict[str, Callable[[], Any]] = {
            "mpi": lambda: MpiConfiguration(order.processes_per_node, order.nodes),
            "pytorch": lambda: PyTorchConfiguration(process_count=total, node_count=order.nodes),
            "": lambda: None,
        }
        config = ScriptRunConfig(
            order.code,
            command=f"{'STORE=$AZUREML_DATAREFERENCE_store ' if order.mount else ''}{order.command}",
            compute_target=order.compute,
            environment=environment.register(self._workspace),
            distributed_job_config=distributions[order.distribution](),
            docker_runtime_config=DockerConfiguration(use_docker=True),
            max_run_duration_seconds=order.timeout_s,
        )
        config.run_config.environment_variables.update(order.environment)
        if order.mount:
            config.run_config.data_references["store"] = DataReferenceConfiguration(
                datastore_name=DATASTORE, path_on_datastore=order.mount, mode="mount"
            )
        self._experiment.submit(config, tags=order.tags, run_id=order.name)

    def status(self, name: str) -> str:
        return str(self._run(name).get_status())

    def cancel(self, name: str) -> None:
        self._run(name).cancel()

    def logs(self, name: str, folder: Path) -> dict[str, str]:
        self._run(name).download_files(output_directory=str(folder))
        return _texts(folder)

    def _run(self, name: str) -> Any:
        from azureml.core import Run

        return Run.get(self._workspace, name)


def make_client(sdk: str) -> Client:
    """Return a client with the credential that the environment names."""
    module, _, factory = os.environ["SNAKEMAKE_AZUREML_CREDENTIAL"].partition(":")
    credential = getattr(import_module(module), factory)()
    return V1(credential) if sdk == "v1" else V2(credential)


def carry_out(sdk: str, order: Order) -> dict[str, Any]:
    """Run something and return how it went: status, logs, and what went wrong on the way."""
    client, errors = make_client(sdk), list[str]()

    def ask(question: Callable[[], Any]) -> Any:
        while True:
            try:
                return question()
            except Exception as error:
                errors.append(f"{type(error).__name__}: {_text(error)}")
                if len(errors) >= PATIENCE:
                    return "gave up"

    ask(lambda: client.submit(order))
    wanted = {"wait": TERMINAL, "cancel": ("Running", *TERMINAL), "leave": ()}[order.then]
    status = ask(lambda: client.status(order.name))
    while wanted and status not in (*wanted, "gave up"):
        time.sleep(0.2)
        status = ask(lambda: client.status(order.name))
    if order.then == "cancel":
        ask(lambda: client.cancel(order.name))
        while status not in (*TERMINAL, "gave up"):
            time.sleep(0.2)
            status = ask(lambda: client.status(order.name))
    folder = Path(os.environ["HOME"]) / "downloads" / order.name
    logs = ask(lambda: client.logs(order.name, folder)) if order.then != "leave" else {}
    return {"status": status, "logs": logs, "errors": errors}


def _texts(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def _text(error: Exception) -> str:
    try:
        return str(error)
    except TypeError:  # azureml-core's exceptions cannot always be printed
        return repr(error.args)


if __name__ == "__main__":
    outcome = carry_out(sys.argv[1], Order(**json.loads(sys.argv[2])))
    print(json.dumps(outcome))  # on a line of its own, after what the SDK prints
