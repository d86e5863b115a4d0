"""Each example is a project that runs by its README's command, and learns what the README shows."""

import csv
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from shardline.config.load import load_project
from shardline.ledger import read_ledger
from tests.support.frameworks import TESTED
from tests.support.workspace import REPOSITORY, SNAKEMAKE

EXAMPLES = REPOSITORY / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/Makefile"))

Runs = dict[str, dict[str, Any]]  # of report.json, by name


def is_in_mlflow(folder: Path, run: dict[str, Any]) -> bool:
    """Return whether MLflow has a run; its training may have ended before MLflow's client was imported."""
    known = run["tracking"]["mlflow"]["run_id"]
    note = json.loads((folder / f"store/work/{run['id']}/tracking/mlflow.json").read_text())
    return bool(note["where"]["run_id"]) and known in (None, note["where"]["run_id"])


def check_contrastive(folder: Path, runs: Runs) -> None:
    assert score(runs["simclr"], "test_loss") < 4.0, "of ln 127 = 4.84 by chance"
    untrained, trained = map(float, re.findall(r": ([\d.]+)%", make(folder, "probe")))
    assert trained > untrained + 5


def check_delta_scaling(folder: Path, runs: Runs) -> None:
    sizes = runs["net"], runs["net_nodes=1_devices=2_global_batch=256"]
    for run, ranks in zip(sizes, (1, 2), strict=True):
        assert score(run, "accuracy") > 0.8, "of 0.2 by chance"
        assert run["training"]["world_size"] == ranks
        assert run["training"]["epochs"] < run["settings"]["trainer.max_epochs"], "stopped early"
        assert run["throughput"]["samples_per_s"] > 0
        assert is_in_mlflow(folder, run)


def check_detection(folder: Path, runs: Runs) -> None:
    assert score(runs["detector"], "test_recall") > 0.4
    assert runs["detector"]["metrics"]["test_precision"] > 0.6


def check_gpt(folder: Path, runs: Runs) -> None:
    assert score(runs["gpt"], "test_perplexity") < 12, "of 256 by chance"
    # the text is printed with the quotes that it does not have
    assert re.search(r"^['\"]To install the package, ", make(folder, "continue"), re.MULTILINE)


SEEDS = (1, 2, 3)


def check_lightning_template(folder: Path, runs: Runs) -> None:
    """Compare with the project's own training: samples of an epoch, and curves within the noise of seeds."""
    run = runs["mnist"]
    assert score(run, "test/acc") > 0.95
    steps = [
        rows for _, rows in sorted(read_ledger(folder / f"store/work/{run['id']}/ledger").items())
    ]
    epochs = [steps[first : first + 28] for first in range(0, len(steps), 28)]
    assert [len({row for rows in epoch for row in rows}) for epoch in epochs] == [1400] * 6
    assert {len(rows) for rows in steps} == {50}
    lines = (folder / f"results/runs/{run['id']}/metrics.jsonl").read_text().splitlines()
    ours = {one["step"]: one for one in map(json.loads, lines) if "val/loss" in one}

    own = [own_curves(folder, seed) for seed in SEEDS]
    for step in (28, 56, 84, 112, 140, 168):
        losses = [curve[step]["val/loss"] for curve in own]
        noise = max(max(losses) - min(losses), 0.03 * min(losses))
        assert min(losses) - noise < ours[step]["val/loss"] < max(losses) + noise, step
        hits = [curve[step]["val/acc"] for curve in own]
        assert min(hits) - 0.03 < ours[step]["val/acc"] < max(hits) + 0.03, step
    for file in (EXAMPLES / "lightning-template").glob("src/**/*.py"):
        assert "shardline" not in file.read_text().lower()


def own_curves(folder: Path, seed: int) -> dict[int, dict[str, float]]:
    """Return what the project's `train.py` logs in validations, by the number of steps."""
    command = [sys.executable, "src/train.py", f"seed={seed}", "test=false"]
    subprocess.run(command, cwd=folder, check=True, timeout=1800, stdout=subprocess.DEVNULL)
    logged = max(folder.glob("logs/train/**/metrics.csv"), key=lambda path: path.stat().st_mtime_ns)
    with logged.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["val/loss"]]
    return {
        int(row["step"]) + 1: {name: float(row[name]) for name in ("val/loss", "val/acc")}
        for row in rows
    }


def check_mnist_tracking(folder: Path, runs: Runs) -> None:
    assert score(runs["cnn"], "accuracy") > 0.8, "of 0.1 by chance"
    assert runs["cnn"]["training"]["world_size"] == 2
    assert is_in_mlflow(folder, runs["cnn"])
    rows = (folder / runs["cnn"]["tracking"]["csv"]["file"]).read_text().splitlines()
    assert "val_accuracy" in rows[0]
    table = pq.read_table(folder / "results/predictions/test-digits.parquet").to_pandas()
    right = (table["prediction"] == table["label"]).mean()
    assert (len(table), right) == (1000, pytest.approx(score(runs["cnn"], "accuracy")))


def check_partitions(folder: Path, runs: Runs) -> None:
    assert score(runs["boring"], "accuracy") > 0.65, "of 0.5 by chance"
    assert score(runs["network"], "accuracy") > 0.88
    steps = read_ledger(folder / f"store/work/{runs['network']['id']}/ledger")
    partitions = [{row // 8000 for row in rows} for _, rows in sorted(steps.items())]
    assert {len(of_step) for of_step in partitions} == {1}, "an epoch is of one partition"
    assert set.union(*partitions) == set(range(16)), "and all of them are passed through"


def check_resnet(folder: Path, runs: Runs) -> None:
    assert score(runs["resnet18"], "accuracy") > 0.45, "of 0.33 by chance"


def check_throughput(folder: Path, runs: Runs) -> None:
    sizes = runs["resnet50"], runs["resnet50_nodes=1_devices=2_global_batch=4"]
    assert [run["throughput"]["ranks"] for run in sizes] == [1, 2]
    for run in sizes:
        assert run["throughput"]["samples_per_s"] > 0
        assert all(0 < one["data_wait_s"] < one["compute_s"] for one in run["resources"]["ranks"])
    page = (folder / "results/report/index.html").read_text()
    assert "throughput, samples/s" in page
    assert "waiting for batches, by rank" in page


def check_torchrun(folder: Path, runs: Runs) -> None:
    assert score(runs["ddp"], "accuracy") > 0.9, "of 0.1 by chance"
    assert len(read_ledger(folder / f"store/work/{runs['ddp']['id']}/ledger")) == 264


def check_transfer(folder: Path, runs: Runs) -> None:
    assert score(runs["frozen"], "accuracy") > score(runs["scratch"], "accuracy")
    assert score(runs["tuned"], "accuracy") > 0.8, "of 0.6 if none had a loop"
    weights = {
        name: load_file(folder / f"results/latest/{name}/model.safetensors") for name in runs
    }
    for name in (name for name in weights["base"] if name.startswith("body.")):
        assert torch.equal(weights["base"][name], weights["frozen"][name]), "it is frozen"
        assert not torch.equal(weights["base"][name], weights["tuned"][name]), "it is trained"
    assert runs["frozen"]["training"]["init"]["ignored"] == ["head.weight", "head.bias"]


def check_unet(folder: Path, runs: Runs) -> None:
    assert score(runs["unet"], "test_miou") > 0.6, "of 0.24 if all were ground"


CHECKS = {
    "contrastive": check_contrastive,
    "delta-scaling": check_delta_scaling,
    "detection": check_detection,
    "gpt": check_gpt,
    "lightning-template": check_lightning_template,
    "mnist-tracking": check_mnist_tracking,
    "partitions": check_partitions,
    "resnet": check_resnet,
    "throughput": check_throughput,
    "torchrun": check_torchrun,
    "transfer": check_transfer,
    "unet": check_unet,
}


def score(run: dict[str, Any], metric: str) -> float:
    assert run["headline"]["metric"] == metric
    return float(run["headline"]["value"])


def copied(name: str, folder: Path) -> Path:
    """Copy what git keeps of an example, links followed."""
    made = {"data", "results", "store", "logs", "benchmarks", ".snakemake"}
    shutil.copy(EXAMPLES / "example.mk", folder)
    for path in (EXAMPLES / name).iterdir():
        if path.is_dir() and path.name not in made:
            shutil.copytree(path, folder / name / path.name)
        elif path.is_file():
            (folder / name).mkdir(exist_ok=True)
            shutil.copy(path, folder / name)
    return folder / name


def make(folder: Path, *arguments: str) -> str:
    command = ["make", "-C", str(folder), f"BIN={SNAKEMAKE.parent}", *arguments]
    done = subprocess.run(
        command, text=True, check=False, timeout=1800, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_each_example_has_a_check_here_or_in_the_tests_of_frameworks():
    assert sorted({*CHECKS, *TESTED}) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_a_valid_project_with_commands_figures_and_a_picture(
    name, tmp_path, monkeypatch
):
    folder = copied(name, tmp_path)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["make_data.py", "data"])
    runpy.run_path("make_data.py", run_name="__main__")
    assert load_project().runs
    profiles = {path.name for path in (folder / "profiles").iterdir()}
    assert profiles == {"default", "local", "slurm", "azureml"}

    page = (folder / "README.md").read_text()
    assert len(page.splitlines()) <= 60
    has_own = "environments:" in (folder / "config/config.yaml").read_text()  # not on Azure ML
    for ending in ("", " PROFILE=slurm", *([] if has_own else [" PROFILE=azureml"])):
        assert f"`make -C examples/{name} run{ending}`" in page
    assert re.search(r"measured on.*\n.*\n.*2 cores of a shared machine \|.*\d", page)
    assert re.search(r"!\[[^]]+\]\(picture.png\)", page)
    assert (folder / "picture.png").stat().st_size < 60_000
    assert f"[{name}]({name}/README.md)" in (EXAMPLES / "README.md").read_text()


@pytest.mark.rotating
@pytest.mark.parametrize("name", sorted(CHECKS))
def test_an_example_runs_by_its_command(name, tmp_path):
    folder = copied(name, tmp_path)
    assert "Report: results/report/index.html" in make(folder, "run")
    report = json.loads((folder / "results/report/report.json").read_text())
    CHECKS[name](folder, {run["name"]: run for run in report["runs"]})
    for log in folder.glob("logs/**/*.log"):
        assert "runtime.watch_reads=warn" not in log.read_text(), "each file that is read counts"
    assert "Nothing to be done" in make(folder, "run")
