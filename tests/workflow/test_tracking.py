"""The real pipeline with every tracker."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.workspace import Workspace

pytestmark = pytest.mark.usefixtures("no_login")


@pytest.mark.slow
def test_every_tracker_shows_the_training_that_the_pipeline_did(tiny: Callable[..., Workspace]):
    row = {"name": "run", "dataset": "table", "model": "mlp", "devices": 2}
    trackers = ["csv", "mlflow", "tensorboard", "wandb"]
    runtime = {"tracking": trackers, "oversubscribe": True, "log_every_steps": 1}
    project = tiny(row, runtime=runtime)
    done = project.snakemake("--until", "train", "--cores", "2")
    assert done.returncode == 0, done.stdout
    assert "Warning: " not in done.stdout

    metrics = project.the("results/runs/*/metrics.jsonl").read_text().splitlines()
    losses = {r["step"]: r["train_loss"] for r in map(json.loads, metrics) if "train_loss" in r}
    provenance = json.loads(project.the("results/runs/*/provenance.json").read_text())
    places = provenance["tracking"]
    assert set(places) == set(trackers)

    table = pd.read_csv(project.path / places["csv"]["file"], index_col="step")
    assert table["train_loss"].dropna().to_dict() == losses
    events = EventAccumulator(str(project.path / places["tensorboard"]["folder"])).Reload()
    assert [event.step for event in events.Scalars("train_loss")] == [*losses]
    note = json.loads(project.the("store/work/*/tracking/mlflow.json").read_text())
    assert "model.safetensors" in note["files"]
    assert places["mlflow"]["run_id"] == note["where"]["run_id"]
    assert places["mlflow"]["uri"] == "sqlite:///store/mlflow/mlflow.db"
    with closing(sqlite3.connect(project.path / "store/mlflow/mlflow.db")) as database:
        query = "SELECT step, value FROM metrics WHERE run_uuid = ? AND key = 'train_loss'"
        assert dict(database.execute(query, [note["where"]["run_id"]])) == losses
    assert places["wandb"]["id"] == provenance["run"].replace("=", "-").replace(".", "-")
    assert project.the(f"store/wandb/offline-run-*-{places['wandb']['id']}/*.wandb").stat().st_size
    left = {tracker: project.the(f"store/work/*/tracking/{tracker}.json") for tracker in trackers}
    assert {t: json.loads(p.read_text())["not_sent"] for t, p in left.items()} == dict.fromkeys(
        trackers
    )
