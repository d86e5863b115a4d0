"""Trackers that hang, fail or are missing, beside those that work; and what is kept from all."""

import logging
import os
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from msgspec.structs import replace

from shardline.errors import ConfigError
from shardline.tracking import tracked
from shardline.tracking.run_links import read_places
from tests.support.planted_secrets import plant
from tests.support.processes import descendants
from tests.support.tracked_training import PROMPT, Training

pytestmark = pytest.mark.usefixtures("no_login")

SECRET = "5ecretofthetest" * 3  # as long as a key of W&B's


def have_begun(training: Training, *trackers: str) -> None:
    """Wait until trackers have imported their clients, which may take a busy machine longer than they have later."""
    places = read_places(training.work, trackers, wait_s=240)
    assert all(places.values()), places


@pytest.mark.rotating
def test_a_tracker_that_hangs_holds_up_no_other(training, serve, monkeypatch, capsys):
    service = serve(answers=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", service.uri)
    with tracked(["mlflow", "csv", "wandb"], training.context, limits_s={**PROMPT, "sealed": 20.0}):
        training.log(1, 2)
        assert service.asked.wait(240)
        have_begun(training, "csv", "wandb")
        training.log(3)
        training.seal()
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("Warning: not sent to MLflow: 4 metric records and 1 files (model.")
    assert "4 metric records" in training.links("mlflow")["not_sent"]
    for tracker in ("csv", "wandb"):
        links = training.links(tracker)
        assert (links["ended"], links["not_sent"]) == ("sealed", None)
    assert list(pd.read_csv(training.work / "tracking/metrics.csv")["step"]) == [1, 2, 3]


@pytest.mark.parametrize("answers", [True, False])
def test_where_wandb_cannot_be_reached_its_run_is_written_to_the_store(
    training, serve, answers, monkeypatch, capsys, caplog
):
    service = serve(answers=answers)
    monkeypatch.setenv("WANDB_BASE_URL", service.uri.replace("me:secret@", ""))
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "2")
    # as on a busy machine, where what a tracker says last is read after its end
    monkeypatch.setattr(logging, "warning", lambda *_: time.sleep(2))
    with caplog.at_level(logging.INFO), tracked(["wandb"], training.context):
        training.log(1, 2, 3)
        training.seal()
    assert service.asked.is_set()
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("Warning: W&B cannot be reached, so the run is written offline: ")
    assert any("(offline; to send it, run `wandb sync " in message for message in caplog.messages)
    assert list(Path(training.context.store).glob("wandb/offline-run-*/run-*.wandb"))
    links = training.links("wandb")
    assert (links["ended"], links["not_sent"]) == ("sealed", None)
    files = [file for file in Path(training.context.store).rglob("*") if file.is_file()]
    assert [file for file in files if SECRET.encode() in file.read_bytes()] == []


def test_no_secret_of_the_environment_reaches_what_trackers_write(
    training, tmp_path, monkeypatch, capsys, caplog
):
    for name in ("WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_TOKEN", "MY_PASSWORD"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("WANDB_MODE", "offline")
    planted = plant(7)
    params = {f"model_args.n{number}.{one.name}": one.value for number, one in enumerate(planted)}
    said = {f"source.options.{number}": one.text for number, one in enumerate(planted)}
    training.context = replace(training.context, params={**params, **said, "pad_token": "<pad>"})
    with (
        caplog.at_level(logging.INFO),
        tracked(["csv", "mlflow", "tensorboard", "wandb"], training.context),
    ):
        training.log(1, 2, 3)
        training.seal()
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.suffix == ".wandb" for file in written)
    assert any(file.name == "mlflow.db" for file in written)
    assert [file for file in written if SECRET.encode() in file.read_bytes()] == []
    assert SECRET not in caplog.text + "".join(capsys.readouterr())
    content = {file: file.read_bytes() for file in written}
    shown = [file.name for file in written if b"<pad>" in content[file]]
    for kind in ("mlflow.db", "tfevents", ".wandb"):
        assert any(kind in name for name in shown), kind
    forms = [form for one in planted for form in one.spellings()]
    assert [(file, form) for file in written for form in forms if form in content[file]] == []


def test_a_tracker_whose_process_dies_is_told_of(training, monkeypatch, capsys):
    (training.work / "tracking").mkdir()
    (training.work / "tracking/csv.json").mkdir()  # so that no links can be written
    with tracked(["csv", "tensorboard"], training.context):
        training.log(1, 2, 3)
        training.seal()
    (said,) = capsys.readouterr().err.splitlines()
    assert said == "Warning: the process of csv ended with code 1; some data was not sent"
    assert training.links("tensorboard")["not_sent"] is None


def tracker_processes() -> list[psutil.Process]:
    """The processes that track, in the order in which they were started."""
    own = os.getpid()
    module = "shardline.tracking.tracker_process"
    found = descendants(own, lambda child: child.ppid() == own and module in child.cmdline())
    return sorted(found, key=lambda child: child.pid)


def test_a_tracker_whose_process_is_stuck_is_killed(training, monkeypatch, capsys):
    monkeypatch.setattr("shardline.tracking.processes._GRACE_S", 0.0)
    with tracked(["csv", "tensorboard"], training.context, limits_s={**PROMPT, "sealed": 10.0}):
        stuck, _ = tracker_processes()
        have_begun(training, "tensorboard")
        stuck.suspend()  # as by a client that holds the interpreter's lock
        training.log(1, 2, 3)
        training.seal()
    (said,) = capsys.readouterr().err.splitlines()
    assert (
        said
        == "Warning: the process of csv did not end in time and was killed; some data was not sent"
    )
    assert not stuck.is_running()
    assert training.links("tensorboard")["not_sent"] is None


def test_a_missing_package_is_told_before_anything_is_started(training, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", None)
    monkeypatch.setattr("shardline.tracking.processes.find_spec", lambda module: None)
    for tracker in ("mlflow", "tensorboard", "wandb"):
        with (
            pytest.raises(ConfigError, match=rf"pip install 'shardline\[{tracker}\]'"),
            tracked(["csv", tracker], training.context),
        ):
            raise AssertionError("the training began")
