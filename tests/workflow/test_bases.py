"""Runs that begin from runs, under the real Snakemake: order, failures, deletions and a base outside of the config."""

import json
import shutil

import pytest

from tests.support.workspace import Workspace

ROW = {"dataset": "table", "model": "linear", "trainer.max_epochs": 1, "devices": 1}
BASE = {**ROW, "name": "base", "seed": 1}
TUNED = {**ROW, "name": "tuned", "seed": 2, "init_from": "run:base"}
AGAIN = {**ROW, "name": "again", "seed": 3, "init_from": "run:tuned@last"}


def provenance(workspace: Workspace, name: str) -> dict:
    return json.loads(workspace.the(f"results/runs/<{name}>/provenance.json").read_text())


@pytest.mark.rotating
@pytest.mark.slow
def test_a_chain_is_trained_in_order_whatever_becomes_of_its_base(tiny):
    workspace = tiny(TUNED, AGAIN, {**BASE, "divergence.max_loss": 1e-9})
    failed = workspace.snakemake("--keep-going")
    assert failed.returncode != 0, failed.stdout
    base, tuned = workspace.identity("base"), workspace.identity("tuned")
    through = f"begins from base ({base}), which diverged"
    assert failed.stdout.count(f"    it {through}\n") == 1
    assert failed.stdout.count(f"    it begins from tuned ({tuned}), which {through}\n") == 1

    tiny(TUNED, AGAIN, BASE)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    base, tuned = workspace.identity("base"), workspace.identity("tuned")
    starts = [done.stdout.index(f"  Training {name} (") for name in ("base", "tuned", "again")]
    assert starts == sorted(starts)
    files = provenance(workspace, "base")["files"]
    (found,), (last,) = (provenance(workspace, name)["bases"] for name in ("tuned", "again"))
    assert (found["run"], found["sha256"]) == (base, files["model.safetensors"])
    assert (last["run"], last["state"]) == (tuned, "last")
    page = (workspace.path / "results/report/index.html").read_text()
    assert page.count("<b>Begins from</b> run base") == 2

    # a sealed dependent asks for nothing where its base is trained again
    shutil.rmtree(workspace.path / "results/runs" / base)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    assert "Training base" in done.stdout
    assert not {"Training tuned", "Training again"} & {*done.stdout.split("  ")}
    assert provenance(workspace, "base")["files"] == files

    # outside of the config, the base is a file that has to be there, and that no job makes
    shutil.rmtree(workspace.path / "results/runs" / tuned)
    model = workspace.path / "results/runs" / base / "model.safetensors"
    aside = model.rename(workspace.path / "aside")
    tiny({**TUNED, "init_from": f"run:{base}"})
    missing = workspace.snakemake()
    assert missing.returncode != 0
    assert missing.stdout.count(f"the weights of run {base} are missing") == 1
    aside.rename(model)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    assert workspace.identity("tuned") == tuned
    assert "Training base" not in done.stdout
