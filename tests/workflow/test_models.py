"""The shipped models of the field, each trained, evaluated and reported through the real pipeline."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from shardline.config.resolved import RunSpec
from shardline.records.base import read_record
from shardline.records.datasets import Manifest
from shardline.records.runs import ResolvedRun
from shardline.training.model import make_model
from shardline.transforms import Normalize, Resize
from tests.support.command_line import shardline
from tests.support.exported import lines_of_card, predicted

CELLS = """
import numpy as np
from shardline.sources import Schema, Source, Table, shard_range


class Cells(Source):
    schema = Schema(columns={"image": "uint8[13,11,3]", "mask": "uint8[13,11]"})

    def iter_tables(self, shard):
        ids = np.array(shard_range(120, shard, self.num_shards))
        images = np.random.default_rng(shard).integers(0, 256, (len(ids), 13, 11, 3), dtype=np.uint8)
        masks = (images[..., 0] > 127).astype(np.uint8)
        masks[:, 0] = 255
        yield Table(ids=ids, columns={"image": images, "mask": masks})
"""
DATASETS = {
    "books": {"source": {"type": "text", "files": ["data/*.txt"]}, "shards": 2},
    "cells": {"source": {"type": "mypkg.sources:Cells"}, "shards": 2},
    "photos": {
        "source": {"type": "image_folder", "files": ["photos"], "decode": "at_read"},
        "splits": {"train": 0.5, "validation": 0.3, "test": 0.2},
        "shards": 2,
    },
}
TRANSFORM = "[[{type: resize, size: [16, 16]}, normalize]]"
ROWS = [
    {
        "name": "gpt", "dataset": "books", "model": "gpt", "devices": 2, "strategy": "fsdp",
        "model_args.layers": 1, "model_args.width": 32, "trainer.accumulate": 2,
        "data.pack": "{column: tokens, length: 32, method: best_fit}",
    },
    {
        "name": "unet", "dataset": "cells", "model": "unet", "devices": 1, "global_batch": 8,
        "checkpoint.monitor": "val_miou", "checkpoint.mode": "max", "model_args.classes": 2,
        "model_args.ignore_index": 255, "model_args.depth": 1, "model_args.width": 8,
    },
    {
        "name": "resnet", "dataset": "photos", "model": "resnet", "devices": 2, "global_batch": 8,
        "optim.lr": 0.001, "evaluation.split": "validation", "data.normalize": "none",
        "data.transform": TRANSFORM, "data.eval_transform": TRANSFORM,
    },
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.rotating
def test_models_of_the_field_are_trained_evaluated_reported_and_exported(tiny, monkeypatch):
    workspace = tiny(*ROWS, datasets=DATASETS, runtime={"log_every_steps": 1})
    workspace.write("mypkg/__init__.py", "")
    workspace.write("mypkg/sources.py", CELLS)
    for number in range(2):
        workspace.write(f"data/{number}.txt", "\n".join("ab" * (n % 9 + 2) for n in range(150)))
    for number in range(80):
        shade = np.random.default_rng(number).integers(0, 60, (20, 24, 3), dtype=np.uint8)
        path = workspace.path / "photos" / ("dark", "light")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(shade + np.uint8(150 * (number % 2))).save(path)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout

    found, best = {}, {}
    for row in ROWS:
        folder = workspace.path / "results/latest" / row["name"]
        found[row["name"]] = json.loads((folder / "evaluation.json").read_text())["metrics"]
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert any("train_loss" in record for record in records), row["name"]
        best[row["name"]] = min(record["val_loss"] for record in records if "val_loss" in record)
    assert found["gpt"]["test_perplexity"] < 60, "of 256"
    assert found["unet"]["test_miou"] > 0.6
    assert found["unet"]["test_pixel_accuracy"] > 0.75
    # of the running statistics that are sealed, whichever rank has measured it
    assert found["resnet"]["loss"] == pytest.approx(best["resnet"], rel=1e-5)
    assert "val_miou" in workspace.the("results/reports/*/index.html").read_text()
    again = workspace.snakemake("--dry-run")
    assert "Nothing to be done" in again.stdout

    monkeypatch.chdir(workspace.path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    photo = workspace.path / "photos/light/1.jpg"
    Image.fromarray(np.full((13, 11, 3), 200, np.uint8)).save("cell.png")
    given = {"gpt": "abab", "unet": str(workspace.path / "cell.png"), "resnet": str(photo)}
    for name, raw in given.items():
        done = shardline("export", name, "--to", "onnx", "--output", name)
        assert done.exit_code == 0, done.output
        outputs, shown = predicted(workspace.path / name, lines_of_card(workspace.path / name), raw)
        expected, tolerance = sealed_outputs(workspace, name, raw)
        assert np.abs(outputs - expected).max() <= tolerance * max(1, np.abs(expected).max())
        if name == "resnet":
            assert shown == ("dark", "light")[int(expected.argmax())]


def sealed_outputs(workspace, name, raw):
    """Return what the sealed model gives for raw input, as an evaluation does, and how near the export is."""
    folder = (workspace.path / "results/latest" / name).resolve()
    spec = RunSpec.of(read_record(folder / "run.json", ResolvedRun, remedy=""))
    (dataset,) = spec.datasets
    path = workspace.path / "results/datasets" / dataset / "manifest.json"
    model = make_model(spec, read_record(path, Manifest, remedy="").schema)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    model.eval()
    tolerance = 1e-4
    if name == "gpt":
        given = torch.tensor([list(raw.encode())])
    elif name == "unet":
        given = torch.from_numpy(np.asarray(Image.open(raw)).copy())[None]
    else:  # Pillow resizes, and a pixel differs by 1 of 255
        sample = Normalize()(Resize([16, 16])({"image": Path(raw).read_bytes()}))
        given, tolerance = torch.from_numpy(sample["image"])[None], 0.02
    with torch.inference_mode():
        return model(given).numpy(), tolerance
