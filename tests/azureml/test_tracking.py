"""A training as MLflow has it, through its real client; and services that fail.

Here, since MLflow is installed with `azureml`. On the emulated Azure ML see test_pipeline.py.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shardline.tracking import tracked
from shardline.tracking.backends.mlflow import MlflowRun
from shardline.tracking.metric_batches import MetricBatch, Value
from shardline.tracking.run_links import RunLinks
from shardline.tracking.tracker_process import TrackerProcess
from tests.support.rotation import rotating
from tests.support.tracked_training import PROMPT, Service, history, track
from tests.support.workspace import Workspace

pytestmark = pytest.mark.usefixtures("azure_sdks")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of MLflow's own store of files, which needs no database."""
    from mlflow import MlflowClient

    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    return MlflowClient()


def test_a_training_and_all_that_is_told_of_it(training, client, capsys, caplog):
    with caplog.at_level(logging.INFO), tracked(["mlflow"], training.context):
        training.log(1, 2, 3)
        training.save("best-epoch=0000-step=00000002.safetensors")
        training.save("best-epoch=0001-step=00000004.safetensors")
        training.save("last.ckpt")
        (training.work / "checkpoints/best-gone.safetensors").symlink_to("nowhere")
        training.seal()
    run = client.get_run(training.run_id())
    assert (run.info.run_name, run.info.status) == ("net", "FINISHED")
    assert run.data.params == {"optim.lr": "0.1", "model": "mlp", "model_args.a b_c_": "[1]"}
    told = {key: value for key, value in run.data.tags.items() if key.startswith("shardline.")}
    assert told == {
        "shardline.run": "0123456789ab", "shardline.identity": "abc",
        "shardline.commit": "c0ffee", "shardline.step": "3",
    }  # fmt: skip
    assert client.get_experiment(run.info.experiment_id).name == "shardline"
    assert history(client, run.info.run_id, "train_loss") == [1, 2, 3]
    assert history(client, run.info.run_id, "val_loss") == [2]
    times = [m.timestamp for m in client.get_metric_history(run.info.run_id, "train_loss")]
    assert [later - earlier for earlier, later in pairwise(times)] == [100, 100]
    files = [file.path for file in client.list_artifacts(run.info.run_id, "checkpoints")]
    assert [name[-20:] for name in files] == ["00000002.safetensors", "00000004.safetensors"]
    assert "model.safetensors" in {file.path for file in client.list_artifacts(run.info.run_id)}
    assert caplog.messages == [f"MLflow run {run.info.run_id}"]
    assert capsys.readouterr().err == ""


def test_metrics_and_files_take_turns_in_a_store_of_files(training, client, monkeypatch):
    busy, overlaps = threading.Lock(), []

    def alone(method: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **options: Any) -> None:
            if not busy.acquire(blocking=False):
                overlaps.append(method)
                return
            time.sleep(0.01)
            method(*args, **options)
            busy.release()

        return call

    for name in ("log_batch", "log_artifact"):
        monkeypatch.setattr(type(client), name, alone(getattr(type(client), name)))
    run = MlflowRun(training.context, RunLinks(training.work, "mlflow"))
    run.open()
    training.seal()

    def send() -> None:
        for step in range(5):
            values = [Value(name=f"m{step}", value=1.0, step=step, wall_s=0.0)]
            run.send(MetricBatch(values=values, step=step, records=1), None)

    with ThreadPoolExecutor() as threads:
        metrics = threads.submit(send)
        while not metrics.done():
            run.upload(training.model)
    metrics.result()
    assert not overlaps


def test_a_resumed_training_sends_no_record_twice_and_leaves_none_out(training, client):
    track(training, 1, 2, 3, 4, how="failed")
    run_id = training.run_id()
    assert history(client, run_id, "train_loss") == [1, 2, 3]  # step 4 may get a validation
    assert client.get_run(run_id).info.status == "FAILED"
    training.rewind(2)
    track(training, *range(3, 9))
    assert training.run_id() == run_id
    assert history(client, run_id, "train_loss") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert history(client, run_id, "val_loss") == [2, 4, 6, 8]
    assert client.get_run(run_id).info.status == "FINISHED"


@pytest.mark.parametrize("how", ["gone", *rotating("deleted", "given")])
def test_a_new_run_of_a_resumed_training_has_the_whole_curve(
    training, client, how, tmp_path, monkeypatch
):
    training.save("best-1.safetensors")
    track(training, 1, 2, 3, 4, how="failed")
    first = training.run_id()
    if how == "gone":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "other").as_uri())
        client = type(client)()
    elif how == "deleted":
        client.delete_run(first)
    else:
        given = client.create_run("0").info.run_id
        monkeypatch.setenv("MLFLOW_RUN_ID", given)
    track(training, 5, 6)
    run_id = training.run_id()
    assert run_id != first
    assert history(client, run_id, "train_loss") == [1, 2, 3, 4, 5, 6]
    assert [file.path for file in client.list_artifacts(run_id, "checkpoints")] == [
        "checkpoints/best-1.safetensors"
    ]
    # who gave a run ends it
    assert client.get_run(run_id).info.status == ("RUNNING" if how == "given" else "FINISHED")


def test_two_trainings_do_not_share_a_run(training, client, monkeypatch):
    given = client.create_run("0", tags={"shardline.run": "other-0123456789ab"}).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", given)
    begun, left = track(training, 1)
    assert f"MLFLOW_RUN_ID={given} already contains other-0123456789ab" in begun
    assert "1 metric records and 1 files" in left
    assert history(client, given, "train_loss") == []


def test_thousands_of_values_arrive(training, client):
    track(training, *range(1, 1501))
    assert history(client, training.run_id(), "train_loss") == [*range(1, 1501)]


@pytest.mark.parametrize("state", ["ill", *rotating("away")])
def test_a_service_that_fails_is_told_of_when_it_begins_and_at_the_end(
    training, serve, state, monkeypatch
):
    service = serve(answers=True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", service.uri)
    if state == "away":
        service.stop()
    training.save("best-1.safetensors")
    begun, left = track(training, 1, 2, 3)
    assert "metrics cannot be sent to MLflow at present; Shardline tries again" in begun
    assert "not sent to MLflow: 4 metric records and 2 files (model.safetensors, best-1" in left
    assert "secret" not in begun + left


def test_a_job_whose_ranks_never_came_ends_at_once(training, serve, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", serve(answers=False).uri)
    never = {"sealed": 0.0, "failed": 1e6, "stopped": 0.0}
    with (
        pytest.raises(ValueError, match="ill"),
        tracked(["mlflow"], training.context, limits_s=never),
    ):
        raise ValueError("ill")
    assert capsys.readouterr().err == ""


def test_a_training_that_is_stopped_does_not_wait_long_for_a_silent_service(
    training, serve, monkeypatch, capsys, caplog
):
    service = serve(answers=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", service.uri)
    stopped = pytest.raises(KeyboardInterrupt)
    with stopped, tracked(["mlflow"], training.context, limits_s=PROMPT):
        training.log(1, 2)
        assert service.asked.wait(240)
        training.seal()
        raise KeyboardInterrupt
    (said,) = capsys.readouterr().err.splitlines()
    assert "not sent to MLflow: 1 metric records" in said
    assert said.endswith("it did not answer in time")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_service_that_goes_again_gets_what_it_missed(training, client, monkeypatch):
    said: list[str] = []
    lost = threading.Event()
    process = TrackerProcess("mlflow", training.context, lambda text, is_warning: said.append(text))
    log_batch = type(client).log_batch

    def lossy(self: Any, run_id: str, **what: Any) -> None:
        """Carry out every request, and lose the answer to the first that holds metrics."""
        log_batch(self, run_id, **what)
        if what.get("metrics") and not lost.is_set():
            lost.set()
            raise ConnectionError("no answer")

    monkeypatch.setattr(type(client), "log_batch", lossy)
    worker = threading.Thread(target=process.run)
    worker.start()
    training.log(1, 2, 3)
    assert lost.wait(60)
    training.log(4, 5)
    training.seal()
    process.end("sealed")
    worker.join(60)
    process.report()
    for name, steps in {"train_loss": [1, 2, 3, 4, 5], "val_loss": [2, 4]}.items():
        assert history(client, training.run_id(), name) == steps
    assert [text.partition(":")[0] for text in said[1:]] == [
        "metrics cannot be sent to MLflow at present; Shardline tries again until the training ends",
        "metrics can be sent to MLflow again",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_job_trains_as_usual_where_the_service_is_ill(
    tiny: Callable[..., Workspace], serve: Callable[..., Service]
):
    service = serve(answers=True)
    row = {"name": "run", "dataset": "table", "model": "mlp", "devices": 1, "trainer.max_epochs": 1}
    project = tiny(row, runtime={"tracking": ["mlflow"], "oversubscribe": True})
    done = project.snakemake(
        "--until", "train", "--cores", "2", env={"MLFLOW_TRACKING_URI": service.uri}
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Warning: metrics cannot be sent to MLflow at present") == 1
    assert "metric records and 2 files (model.safetensors, best-" in done.stdout
    assert "secret" not in done.stdout + project.the("logs/train/*.log").read_text()
    assert project.the("results/runs/*/model.safetensors").exists()


@pytest.mark.slow
def test_without_a_server_and_the_whole_of_mlflow_a_job_is_refused_before_it_trains(tiny):
    row = {"name": "run", "dataset": "table", "model": "mlp", "devices": 1, "trainer.max_epochs": 1}
    project = tiny(row, runtime={"tracking": ["mlflow"]})
    done = project.snakemake("--until", "train", "--cores", "2", env={"MLFLOW_TRACKING_URI": ""})
    assert done.returncode == 1
    assert "MLFLOW_TRACKING_URI is not set" in done.stdout
    assert not list(project.path.glob("logs/train/*/*"))  # no rank was started
