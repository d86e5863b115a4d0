"""Predictions by the rule and by the command: the same bytes, of files without labels, and up to date."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from shardline.errors import ConfigError
from shardline.projects import Project as open_project
from tests.support.command_line import shardline

DATASETS = {
    "points": {
        "source": {"type": "csv", "files": ["data/t.csv"], "label": "y", "classes": ["in", "out"]},
        "shards": 2,
    },
    "photos": {
        "source": {"type": "image_folder", "files": ["photos"], "size": [8, 8], "mode": "L"},
        "shards": 1,
    },
}
ROWS = [
    {
        "name": "flat",
        "dataset": "points",
        "model": "linear",
        "devices": 2,
        "trainer.max_epochs": 10,
        "evaluation.batch": 2,
    },
    {
        "name": "shades",
        "dataset": "photos",
        "model": "linear",
        "devices": 1,
        "trainer.max_epochs": 20,
    },
]


@pytest.mark.slow
@pytest.mark.rotating
def test_new_files_are_predicted_by_the_rule_and_by_the_command(tiny, monkeypatch):
    predictions = {
        "new": {"run": "flat", "files": ["data/new*.csv"]},
        "held": {"run": "flat", "dataset": "points"},
    }
    workspace = tiny(*ROWS, datasets=DATASETS, predictions=predictions)
    points = np.random.default_rng(1).normal(size=(400, 2)).round(3)
    lines = [f"{a},{b},{'in' if a > b else 'out'}" for a, b in points]
    workspace.write("data/t.csv", "\n".join(["a,b,y", *lines]))
    workspace.write("data/new.csv", "\n".join(["b,a", *(f"{b},{a}" for a, b in points[:80])]))
    for number in range(40):
        shade = np.random.default_rng(number).integers(0, 60, (9, 9), dtype=np.uint8)
        for place in (("dark", "light")[number % 2], "unsorted"):
            path = workspace.path / ("new" if place == "unsorted" else "photos") / place
            path.mkdir(parents=True, exist_ok=True)
            Image.fromarray(shade + np.uint8(150 * (number % 2))).save(path / f"{number}.png")
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout

    logs = [path.read_text() for path in workspace.path.glob("logs/predict/*.log")]
    assert len(logs) == 2
    assert all("2 ranks, nodes=1 x devices=2" in text for text in logs)
    file = workspace.path / "results/predictions/new.parquet"
    table = pq.read_table(file)
    assert table.column_names == ["id", "file", "prediction", "probability", "probabilities"]
    assert table["file"].to_pylist() == ["new.csv"] * 80
    right = np.array(["in" if a > b else "out" for a, b in points[:80]])
    assert np.mean(right == table["prediction"].to_numpy()) > 0.9, "columns are taken by name"
    about = json.loads(table.schema.metadata[b"shardline"])
    assert about["run"] == workspace.identity("flat")
    assert list(about["source"]) == ["00000/new.csv"]
    held = pq.read_table(workspace.path / "results/predictions/held.parquet")
    evaluation = json.loads((workspace.path / "results/latest/flat/evaluation.json").read_text())
    accuracy = np.mean(held["label"].to_numpy() == held["prediction"].to_numpy())
    assert accuracy == pytest.approx(evaluation["metrics"]["accuracy"])
    again = workspace.snakemake()
    assert "Nothing to be done" in again.stdout

    monkeypatch.chdir(workspace.path)
    first = file.read_bytes()
    made = file.resolve()
    for path in (made, made.with_suffix(".json")):
        path.unlink()
    done = shardline("predict", "flat", "data/new.csv", "--output", "mine.parquet")
    assert (done.exit_code, "80 rows predicted by flat" in done.stdout) == (0, True), done.output
    assert (workspace.path / "mine.parquet").read_bytes() == first == file.read_bytes()
    done = shardline("predict", "shades", "new/unsorted", "--output", "images.parquet")
    assert done.exit_code == 0, done.output
    images = pq.read_table("images.parquet")
    assert sorted(images["file"].to_pylist()) == sorted(f"{number}.png" for number in range(40))
    dark = [int(name.split(".")[0]) % 2 == 0 for name in images["file"].to_pylist()]
    assert (
        np.mean([name == "dark" for name in images["prediction"].to_pylist()] == np.array(dark))
        == 1
    )
    done = shardline("predict", "flat", "data/new.csv", "--output", "mine.parquet")
    assert done.exit_code == 2
    assert "mine.parquet exists already, and nothing is overwritten" in done.stderr

    project = open_project(workspace.path)
    flat, shades = project["flat"], project["shades"]
    assert project.runs.loc["flat", "accuracy"] == evaluation["metrics"]["accuracy"]
    found = flat.predict(pd.DataFrame(points[:80], columns=["a", "b"]))
    assert found["prediction"].to_list() == table["prediction"].to_pylist()
    with pytest.raises(ConfigError, match="image_folder, which reads no tables"):
        shades.predict(pd.DataFrame({"a": [1.0]}))
    for run in (flat, shades):
        test, model = run.data("test"), run.model()
        hits = [(model(rows).argmax(1) == labels) for rows, labels in test.loader]
        assert torch.cat(hits).float().mean().item() == pytest.approx(
            run.evaluation.metrics["accuracy"]
        )
        assert len(test.dataset) == sum(map(len, hits))
        train = run.data("train")
        consumed = [len(labels) for _, labels in train.loader]
        assert consumed == [run.settings["global_batch"]] * len(train.loader)
        first = next(iter(train.loader))[1]
        train.loader.epoch = 1
        assert first.tolist() != next(iter(train.loader))[1].tolist(), "epochs have other orders"
    labels = torch.cat([labels for _, labels in test.loader]).tolist()
    assert [test.dataset[place]["labels"].item() for place in range(len(labels))] == labels
    assert test.dataset[-1]["labels"].item() == labels[-1]
    with pytest.raises(IndexError):
        test.dataset[len(test.dataset)]
