"""A scaling study, really trained at one and at two ranks."""

import json
from typing import Any

import pytest

from tests.support.workspace import TINY_SCALING, Workspace

KNOWN = {"name": "known", "dataset": "table", "model": "linear", "devices": 1}
DERIVED = "known_nodes=1_devices=2"


def provenance(workspace: Workspace, name: str) -> dict[str, Any]:
    path = workspace.the(f"results/runs/<{name}>/provenance.json")
    return dict(json.loads(path.read_text()))


@pytest.mark.slow
@pytest.mark.rotating
def test_a_study_is_trained_by_name_and_its_runs_are_runs_like_others(tiny):
    # with the same rate it would be a shorter training, which the measured run continues
    other = {**KNOWN, "name": "other", "optim.lr": 0.02}
    workspace = tiny({**KNOWN, "trainer.max_epochs": 8}, other, scaling=TINY_SCALING)
    done = workspace.snakemake("scaling")
    assert done.returncode == 0, done.stdout
    check_measured(workspace)
    assert not (workspace.path / "results/report").exists()
    assert not workspace.matching("results/runs/<other>"), "no study asks for it"
    assert "Nothing to be done" in workspace.snakemake("scaling").stdout
    assert state_of_runs(workspace) == {"known": "done", "other": "new", DERIVED: "done"}
    log = workspace.the(f"store/work/<{DERIVED}>/attempts.jsonl").read_text()
    assert [json.loads(line)["end"] for line in log.splitlines()] == ["sealed"]


def state_of_runs(workspace: Workspace) -> dict[str, str]:
    return {item["run"]: item["state"] for item in json.loads(workspace.shardline("ls", "--json"))}


@pytest.mark.rotating
def test_nothing_is_trained_beside_a_run_that_is_measured(tiny):
    """Each of these takes one core, and there are two or more."""
    names = ("known", "other", "third")
    rows = [{**KNOWN, "name": name, "seed": seed} for seed, name in enumerate(names)]
    workspace = tiny(*rows, scaling=TINY_SCALING, runtime={"threads_per_rank": 1})
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    spans = {name: span(workspace, name) for name in ("known", DERIVED, "other", "third")}
    for name in ("known", DERIVED):
        begin, end = spans.pop(name)
        assert [other for other, (b, e) in spans.items() if b < end and e > begin] == []
    assert "Nothing to be done" in workspace.snakemake().stdout
    assert json.loads(workspace.shardline("gc", "--json"))["items"] == []
    assert (workspace.path / "results/latest" / DERIVED / "model.safetensors").exists()


def span(workspace: Workspace, name: str) -> tuple[str, str]:
    """When the job that trained a run began and ended."""
    (attempt,) = provenance(workspace, name)["attempt_log"]
    return attempt["started"], attempt["ended"]


def check_measured(workspace: Workspace) -> None:
    runs = [provenance(workspace, name) for name in ("known", DERIVED)]
    assert [run["world"]["world_size"] for run in runs] == [1, 2]
    each = [rank["threads"] for run in runs for rank in run["world"]["ranks"]]
    assert len(set(each)) == 1, "a rank has as many threads at every size"
    for run in runs:
        speed, goodput = run["throughput"], run["goodput"]
        assert (speed["steps"], speed["warmup_steps"], speed["global_batch"]) == (144, 16, 32)
        assert speed["samples_per_s"] > 0
        total = sum(filter(None, goodput["parts"].values()))
        assert total == pytest.approx(goodput["elapsed_s"], rel=0.02)
        assert [attempt["end"] for attempt in run["attempt_log"]] == ["sealed"]
