"""Results are made in the environment that they are named after, or say that they were not."""

import importlib.metadata
import json
import re

import pytest

from tests.support.workspace import REPOSITORY

ROW = {"name": "run", "dataset": "digits", "model": "linear", "devices": 2, "trainer.max_epochs": 1}


@pytest.mark.rotating
@pytest.mark.slow
def test_another_version_than_the_locks_stops_training_unless_it_is_allowed(tiny):
    installed = importlib.metadata.version("tqdm")
    text, changes = re.subn(
        r"^tqdm==.*$", "tqdm==4.0.1", (REPOSITORY / "requirements.lock").read_text(), flags=re.M
    )
    assert changes == 1
    workspace = tiny(ROW, lock="requirements.lock")
    workspace.write("requirements.lock", text)
    difference = f"tqdm {installed} is installed, 4.0.1 is locked"

    failed = workspace.snakemake()
    assert failed.returncode != 0
    assert re.search("rank [01] on host", failed.stdout), "the one that came first"
    assert difference in failed.stdout
    assert "runtime.strict_env=warn" in failed.stdout
    assert "Traceback" not in failed.stdout
    assert list(workspace.path.glob("results/datasets/*/manifest.json")), "which needs no tqdm"
    assert not list(workspace.path.glob("results/runs/*/model.safetensors"))

    allowed = workspace.snakemake("--config", "runtime={strict_env: warn}")
    assert allowed.returncode == 0, allowed.stdout
    assert difference in workspace.the("logs/train/<run>.log").read_text()
    assert difference in workspace.the("logs/evaluate/<run>-*.log").read_text()
    provenance = json.loads(workspace.the("results/runs/<run>/provenance.json").read_text())
    assert provenance["environment"]["packages"]["tqdm"] == installed
    ranks = provenance["world"]["ranks"]
    assert [rank["differences"] for rank in ranks] == [[difference]] * 2
    assert all(rank["libraries"]["cpu"] for rank in ranks)
