"""A training in MLflow's own database in the store, and as its real server shows it."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from shardline import tracking
from shardline.core.process import kill_group
from shardline.tracking.backends.mlflow import without_credentials
from shardline.tracking.run_links import read_places
from tests.support.processes import free_port, wait_until
from tests.support.tracked_training import PATIENT, Training, history, track

pytestmark = pytest.mark.usefixtures("no_login")
tracked = partial(tracking.tracked, limits_s=PATIENT)


def database(training: Training) -> str:
    return f"sqlite:///{training.context.store}/mlflow/mlflow.db"


def train(training: Training, *steps: int) -> None:
    with tracked(["mlflow"], training.context):
        training.log(*steps)
        training.save("best-1.safetensors")
        training.seal()


def test_without_a_server_a_training_is_in_the_store(training, caplog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO):
        training.show(1)
        train(training, 1, 2, 3)
    client = MlflowClient(database(training))
    run = client.get_run(training.run_id())
    assert caplog.messages == [f"MLflow run {run.info.run_id}"]
    assert (run.info.run_name, run.info.status) == ("net", "FINISHED")
    assert run.data.params["optim.lr"] == "0.1"
    assert run.data.tags["shardline.identity"] == "abc"
    assert run.data.tags["mlflow.source.git.commit"] == "c0ffee"
    (given,) = run.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("digits", "abcdef012345")
    assert history(client, run.info.run_id, "train_loss") == [1, 2, 3]
    artifacts = Path(training.context.store, "mlflow/artifacts", run.info.run_id, "artifacts")
    assert (artifacts / "model.safetensors").read_text() == "weights"
    assert (artifacts / "checkpoints/best-1.safetensors").exists()
    assert (artifacts / "logged/text/00000001.txt").read_text() == "at 1"
    assert (artifacts / "logged/a table/00000001.csv").read_text() == "x,y\n1,a|b\n,2.5\n"
    assert [*(artifacts / "logged/val/images").glob("*/00000001.png")]
    assert not Path("mlruns").exists()
    assert read_places(training.work, ["mlflow"]) == {
        "mlflow": {
            "run_id": run.info.run_id,
            "experiment_id": run.info.experiment_id,
            "uri": database(training),
        }
    }
    assert (training.links("mlflow")["ended"], training.links("mlflow")["not_sent"]) == (
        "sealed",
        None,
    )


def test_a_server_without_datasets_gets_the_rest(training, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise MlflowException("404")

    monkeypatch.setattr(MlflowClient, "log_inputs", refuse)
    said = track(training, 1, 2, 3)
    assert said[1:] == [
        "the dataset cannot be sent to MLflow; the tags of the run contain it: MlflowException: 404"
    ]
    assert history(MlflowClient(database(training)), training.run_id(), "train_loss") == [1, 2, 3]


def test_trainings_that_begin_at_once_make_one_store(tmp_path):
    trainings = [Training(tmp_path / name, store=tmp_path / "store") for name in "abc"]
    with ExitStack() as jobs:
        for training in trainings:
            jobs.enter_context(tracked(["mlflow"], training.context))
            training.log(*range(1, 300))
            training.seal()
    client = MlflowClient(database(trainings[0]))
    (experiment,) = [e for e in client.search_experiments() if e.name == "shardline"]
    assert len(client.search_runs([experiment.experiment_id])) == 3
    for training in trainings:
        assert training.links("mlflow")["not_sent"] is None
        assert history(client, training.run_id(), "train_loss") == [*range(1, 300)]


@pytest.mark.slow
def test_mlflows_own_server_shows_trainings(training, server, tmp_path, monkeypatch):
    train(training, 1, 2, 3)
    uri = server(training)
    run = ask(f"{uri}/api/2.0/mlflow/runs/get?run_id={training.run_id()}")["run"]
    assert run["info"]["status"] == "FINISHED"
    assert {metric["key"]: metric["value"] for metric in run["data"]["metrics"]}["val_loss"] == 1.0
    assert run["inputs"]["dataset_inputs"][0]["dataset"]["digest"] == "abcdef012345"
    model = f"{uri}/get-artifact?path=model.safetensors&run_uuid={training.run_id()}"
    with urlopen(model, timeout=60) as file:
        assert file.read() == b"weights"

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    other = Training(tmp_path / "other")
    train(other, 1, 2)
    run = ask(f"{uri}/api/2.0/mlflow/runs/get?run_id={other.run_id()}")["run"]
    assert {metric["key"]: metric["step"] for metric in run["data"]["metrics"]} == {
        "epoch": 2, "train_loss": 2, "val_loss": 2,
    }  # fmt: skip
    assert other.links("mlflow")["where"]["uri"] == uri
    assert not Path(other.context.store, "mlflow").exists()


@pytest.mark.parametrize(
    ("uri", "recorded"),
    [
        ("https://me:pass@host:1/p?token=t#f", "https://host:1/p"),
        ("azureml://westeurope.api.azureml.ms/mlflow/v1.0/a", "azureml://westeurope.api.azureml.ms/mlflow/v1.0/a"),
        ("sqlite:///store/mlflow/mlflow.db", "sqlite:///store/mlflow/mlflow.db"),
        ("postgresql://me:p%40ss@host/db", "postgresql://host/db"),
    ],
)  # fmt: skip
def test_credentials_are_not_recorded(uri, recorded):
    assert without_credentials(uri) == recorded


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """Start MLflow's own server over a training's store, and return its address once it answers."""
    started: list[subprocess.Popen[bytes]] = []

    def start(training: Training) -> str:
        Path(training.context.store, "mlflow").mkdir(parents=True, exist_ok=True)
        port = free_port()
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--backend-store-uri", database(training)]
        command += ["--artifacts-destination", str(tmp_path / "artifacts")]
        with (tmp_path / "server.log").open("w") as log:
            env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
            server = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, cwd=tmp_path, env=env
            )
        started.append(server)
        uri = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(f"{uri}/health"), server)
        return uri

    yield start
    for server in started:
        kill_group(server.pid)
        server.wait()


def answers(uri: str) -> bool:
    with suppress(URLError, ConnectionError), urlopen(uri, timeout=60):
        return True
    return False


def ask(uri: str) -> Any:
    with urlopen(Request(uri), timeout=60) as answer:
        return json.load(answer)
