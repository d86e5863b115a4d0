"""The main job, really run: shards, two ranks, evaluation, report; and nothing the second time."""

import importlib.metadata
import json
import os
import re
import shutil

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from tests.support.workspace import REPOSITORY, TINY_CONFIG

NOTHING = "Nothing to be done"


@pytest.mark.slow
def test_main_job_learns_reports_and_is_then_up_to_date(workspace):
    shutil.copytree(REPOSITORY / "config/test", workspace.path / "config")
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    assert "Report: results/report/index.html" in done.stdout
    page = (workspace.path / "results/report/index.html").read_text()
    assert "linear" in page
    assert "known" in page

    latest = workspace.path / "results/latest/linear"
    contract = [
        "run.json",
        "identity.json",
        "metrics.jsonl",
        "model.safetensors",
        "evaluation.json",
        "provenance.json",
    ]
    assert [name for name in contract if not (latest / name).is_file()] == []
    evaluation = json.loads((latest / "evaluation.json").read_text())
    manifest = json.loads(workspace.the("results/datasets/<digits>/manifest.json").read_text())
    assert (
        evaluation["num_samples"]
        == manifest["splits"]["test"]
        == np.sum(evaluation["confusion"]["counts"])
    )
    assert evaluation["metrics"]["accuracy"] > 0.9
    provenance = json.loads((latest / "provenance.json").read_text())
    assert provenance["world"]["world_size"] == len(provenance["devices"]) == 2
    # cores are shared out, not taken by each rank: Snakemake sets thread variables of its own
    cores = len(os.sched_getaffinity(0))
    assert [rank["threads"] for rank in provenance["world"]["ranks"]] == [max(1, cores // 2)] * 2
    assert provenance["seed"] == 1
    assert provenance["software"]["torch"] == importlib.metadata.version("torch")
    assert len(provenance["shardline_git"]["commit"]) == 40
    assert provenance["git"]["commit"] is None, "the project's folder is no checkout"

    # the synthetic labels come from known weights: what was learnt must point their way
    weight = load_file(workspace.path / "results/latest/known/model.safetensors")["layer.weight"]
    from shardline.data.sources.synthetic import Synthetic

    true = Synthetic(num_shards=4, rows_per_shard=200, features=8, seed=3).weights
    learnt = weight[1] - weight[0]
    assert learnt @ true / np.linalg.norm(learnt) / np.linalg.norm(true) > 0.9

    again = workspace.snakemake()
    assert again.returncode == 0
    assert NOTHING in again.stdout

    # going back to an earlier setting runs nothing and moves the links back
    rows = (workspace.path / "config/runs.tsv").read_text()
    first = latest.resolve()
    workspace.write("config/runs.tsv", rows.replace("15", "2"))
    assert workspace.snakemake("--until", "evaluate").returncode == 0
    assert workspace.snakemake().returncode == 0
    assert latest.resolve() != first
    workspace.write("config/runs.tsv", rows)
    back = workspace.snakemake()
    assert NOTHING in back.stdout
    assert latest.resolve() == first


def code_blocks(page: str) -> list[str]:
    """Return the fenced blocks of a documentation page."""
    text = (REPOSITORY / "docs/how-to" / page).read_text()
    return re.findall(r"```[a-z]*\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.rotating  # a tutorial does the same
def test_a_users_own_model_and_data_run_as_documented_from_their_own_folder(workspace):
    model, table, *_ = code_blocks("write-a-model.md")
    source, entry, *_ = code_blocks("write-a-source.md")
    for block in (model, source):
        assert len(block.splitlines()) < 40
    config = {**TINY_CONFIG, **yaml.safe_load(entry)}
    config["defaults"] = {**config["defaults"], "trainer": {"max_epochs": 12}}
    workspace.configure(config, [])
    workspace.write("config/runs.tsv", table)
    workspace.write("mypkg/models.py", model)
    workspace.write("mypkg/sources.py", source)
    generator = np.random.default_rng(1)
    rows = [f"{1 + i % 2},{angle:.6f}" for i, angle in enumerate(generator.uniform(0, 6.28, 1200))]
    workspace.write("data/rings.csv", "\n".join(rows) + "\n")

    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    for width in (16, 64):
        evaluation = workspace.path / f"results/latest/net_width={width}/evaluation.json"
        assert json.loads(evaluation.read_text())["metrics"]["accuracy"] > 0.9

    workspace.write("data/rings.csv", "\n".join(rows[:-1]) + "\n")
    stale = workspace.snakemake("--dry-run").stdout
    assert re.search(r"^train +2$", stale, flags=re.MULTILINE)
    assert re.search(r"^build_shards +1$", stale, flags=re.MULTILINE)
