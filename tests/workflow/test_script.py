"""A training script without `shardline_io` as the train stage: really run, failing, resumed, reported."""

import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.support.workspace import REPOSITORY, Workspace

PAGE = (REPOSITORY / "docs/how-to/use-your-own-training-loop.md").read_text()
SCRIPT = (REPOSITORY / "tests/support/plain_script.py").read_text()
# Rank 1 gives up in the second epoch, once: the checkpoints' folder remembers it.
STOPS = SCRIPT.replace(
    "        order = ",
    "        if rank == 1 and epoch == 1 and not (WORK / 'stopped').exists():\n"
    "            (WORK / 'stopped').touch()\n"
    "            raise RuntimeError('rank 1 has had enough')\n"
    "        order = ",
)
VARIABLES = re.findall(r"^\| `(SHARDLINE_[A-Z_]+)` \|", PAGE, re.MULTILINE)
SILENT = (
    f"VARIABLES = {VARIABLES}"
    + """
import os, sys
import shardline_io as io
import torch
from safetensors.torch import save_file
batch = next(io.train())
assert batch.keys() == {"features", "labels"} and (batch["features"] <= 0).all(), batch
assert sys.argv[1:] == ["a b", "--flag"], sys.argv
assert len(VARIABLES) == 5 and set(VARIABLES) <= set(os.environ), VARIABLES
assert os.environ["WORLD_SIZE"] == "1" and not os.listdir(os.environ["SHARDLINE_OUTPUT"])
save_file({"w": torch.ones(2, dtype=torch.bfloat16)}, os.environ["SHARDLINE_OUTPUT"] + "/model.safetensors")
"""
)


CHANGES = """
class Negative:
    def __call__(self, sample, generator):
        return {**sample, "features": -abs(sample["features"])}
"""


def sealed(workspace: Workspace, name: str) -> dict[str, Any]:
    folder = workspace.path / "results/latest" / name
    return {
        "model": load_file(folder / "model.safetensors"),
        "records": [json.loads(line) for line in (folder / "metrics.jsonl").open()],
        **{
            stem: json.loads((folder / f"{stem}.json").read_text())
            for stem in ("run", "evaluation", "provenance", "identity")
        },
    }


@pytest.mark.rotating
def test_a_script_trains_fails_by_name_resumes_and_is_reported(tiny):
    assert "raise RuntimeError" in STOPS
    script = {"dataset": "digits", "model": "script: train.py --lr 0.01", "devices": 2}
    alone = {"model": "script: tools/silent.py 'a b' --flag", "devices": 1}
    alone |= {"data.transform": "changes:Negative"}
    workspace = tiny(
        {"name": "plain", **script},
        {"name": "stops", **script, "model": "script: stops.py --lr 0.01"},
        {"name": "silent", **script, **alone},
    )
    workspace.write("train.py", SCRIPT)
    workspace.write("stops.py", STOPS)
    workspace.write("tools/silent.py", SILENT)
    workspace.write("changes.py", CHANGES)

    failed = workspace.snakemake("--retries", "0")
    assert failed.returncode != 0
    log = workspace.the("logs/train/<stops>/rank-1.log")
    where = f"rank 1 on {platform.node()}, its log is {log.relative_to(workspace.path)}: "
    assert f"{where}script stops.py ended with code 1:" in failed.stdout, failed.stdout
    assert "RuntimeError: rank 1 has had enough" in failed.stdout
    assert "RuntimeError: rank 1 has had enough" in log.read_text()
    assert not workspace.matching("results/runs/<stops>/model.safetensors")

    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    plain, stops = sealed(workspace, "plain"), sealed(workspace, "stops")
    check_sealed(plain, workspace)
    for log in workspace.path.glob("logs/**/*.log"):
        assert "runtime.watch_reads=warn" not in log.read_text(), "each file that is read counts"
    assert [stops["provenance"]["attempts"], plain["provenance"]["attempts"]] == [2, 1]
    check_measured(stops["provenance"])
    assert stops["records"] == plain["records"]
    for name, weight in plain["model"].items():
        assert (stops["model"][name] == weight).all(), "resumed, it ends where the other ended"
    check_without_figures(workspace)
    check_report(workspace.path / "results/report/index.html")
    assert "Nothing to be done" in workspace.snakemake().stdout
    check_commands(workspace)


def check_measured(found: dict[str, Any]) -> None:
    assert [attempt["end"] for attempt in found["attempt_log"]] == ["failed", "sealed"]
    goodput, used = found["goodput"], found["resources"]["ranks"]
    known = {name: value for name, value in goodput["parts"].items() if value is not None}
    assert known.keys() == {"environment", "rendezvous", "other"}
    assert sum(known.values()) == pytest.approx(goodput["elapsed_s"], rel=0.02)
    assert [(rank["rank"], rank["cpu_s"] > 0) for rank in used] == [(0, True), (1, True)]
    assert found["throughput"]["samples_per_s"] is None


def check_commands(workspace: Workspace) -> None:
    runs = {record["run"]: record for record in json.loads(workspace.shardline("ls", "--json"))}
    assert {record["state"] for record in runs.values()} == {"done"}
    assert runs["silent"]["headline"] is None
    assert runs["plain"]["headline"]["metric"] == "accuracy"
    assert workspace.shardline("verify").count("model, metrics, provenance, 1 evaluation") == 3
    table = workspace.path / "config/runs.tsv"
    workspace.write(
        "config/runs.tsv", table.read_text().replace("stops.py --lr 0.01", "stops.py --lr 0.1")
    )
    workspace.write("train.py", SCRIPT.replace("torch.nn.Linear(", "torch.nn.LazyLinear("))
    why = workspace.shardline("why", "stops")
    assert "model script: stops.py --lr 0.01 -> script: stops.py --lr 0.1" in why
    assert "code of the model: train.py: main changed" in workspace.shardline("why", "plain")


def check_sealed(run: dict, workspace: Workspace) -> None:
    accuracy = run["evaluation"]["metrics"]["accuracy"]
    assert accuracy > 0.85
    assert run["evaluation"]["headline"] == {"metric": "accuracy", "value": accuracy, "mode": "max"}
    assert "confusion" not in run["evaluation"]
    manifest = json.loads(workspace.the("results/datasets/<digits>/manifest.json").read_text())
    assert run["evaluation"]["num_samples"] == manifest["splits"]["test"]
    assert run["evaluation"]["split"] == "test"
    assert [record["epoch"] for record in run["records"]] == [0, 1, 2]
    assert run["provenance"]["training"]["script"] == "train.py"
    assert run["provenance"]["training"]["arguments"] == ["--lr", "0.01"]
    assert [rank["rank"] for rank in run["provenance"]["world"]["ranks"]] == [0, 1]
    path = workspace.path / "results/latest/plain/model.safetensors"
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"identity": run["run"]["identity"]}
    assert run["identity"]["code"].keys() == {"model"}
    assert {"torch", "safetensors"} <= run["identity"]["environment"]["packages"].keys()


def check_without_figures(workspace: Workspace) -> None:
    folder = workspace.path / "results/latest/silent"
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert evaluation["headline"] == {"metric": "accuracy", "value": None, "mode": "max"}
    assert evaluation["metrics"] == {}
    assert (folder / "metrics.jsonl").read_text() == ""


def check_report(page: Path) -> None:
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.read_text()))
    assert "script: train.py --lr 0.01" in text
    assert "measured by the training script" in text
    assert "not measured by the training script" in text
    assert "Confusion matrix" not in text
    assert re.search(r"– silent script: tools/silent.py &#39;a b&#39; --flag –", text)


SHIM = "import runpy, sys\n\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
FILLED = """
import os, sys
import torch
from safetensors.torch import save_file
with open(sys.argv[1]) as file:
    weights = {"w": torch.full((2,), float(file.read()))}
save_file(weights, os.environ["SHARDLINE_OUTPUT"] + "/model.safetensors")
"""


@pytest.mark.rotating
def test_files_among_the_arguments_count_in_a_real_run(tiny):
    script = "script: run.py tools/filled.py fill.txt"
    workspace = tiny({"name": "own", "dataset": "digits", "model": script, "devices": 1})
    for name, text in {"run.py": SHIM, "tools/filled.py": FILLED, "fill.txt": "1.5"}.items():
        workspace.write(name, text)
    # no file that counts is reported
    done = workspace.snakemake("--config", "runtime={watch_reads: error, check: false}")
    assert done.returncode == 0, done.stdout
    assert sealed(workspace, "own")["model"]["w"].tolist() == [1.5, 1.5]
    workspace.write("tools/filled.py", f"# why\n{FILLED}")
    assert "Nothing to be done" in workspace.snakemake("--dry-run").stdout
    workspace.write("fill.txt", "2.5")
    assert "Nothing to be done" not in workspace.snakemake("--dry-run").stdout
