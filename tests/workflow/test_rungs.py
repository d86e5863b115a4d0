"""Successive halving by the real Snakemake: killed once, continued, and no step trained for two rungs."""

import json
from typing import Any

import pytest

from shardline.ledger import read_ledger
from tests.support.workspace import Workspace

ROW = {
    "name": "base", "dataset": "digits", "model": "linear", "devices": 1, "trainer.max_epochs": 9,
    "schedule.name": "cosine", "optim.lr": 0.02,
}  # fmt: skip
SWEEP = {
    "base": "base", "space": {"optim.lr": [1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1]},
    "sampler": "grid", "parallel": 3, "stop": {"halving": {"rungs": [1, 3, 9], "keep": 3}},
}  # fmt: skip
RUNTIME = {"threads_per_rank": 1, "ledger": True}


def own_steps(workspace: Workspace, run: str, after: int) -> set[int]:
    """Return the steps that were trained by a run itself, after those that it took over."""
    own = set()
    for file in workspace.matching(f"store/work/{run}/ledger/from-*.jsonl"):
        if int(file.name.split("-")[1]) >= after:
            own |= {json.loads(line)["step"] for line in file.read_text().splitlines()}
    return own


def results(workspace: Workspace) -> list[dict[str, Any]]:
    files = workspace.matching("results/studies/*/*/result-0.json")
    return [{**json.loads(file.read_text()), "slot": file.parent.name} for file in files]


@pytest.mark.slow
@pytest.mark.rotating
@pytest.mark.parametrize("unit", ["epochs", "steps"])
def test_a_killed_halving_continues_and_its_ledgers_have_each_step_once(tiny, unit):
    row, sweep = ROW, SWEEP
    if unit == "steps":  # those of the last rung are more than an epoch
        row = {**ROW, "trainer.max_epochs": -1, "trainer.max_steps": 54}
        sweep = {**SWEEP, "stop": {"halving": {"rungs": {"steps": [6, 18, 54]}, "keep": 3}}}
    workspace = tiny(row, runtime=RUNTIME, sweeps={"lr": sweep})
    workspace.killed_and_continued("results/studies/*/r1-0/result-0.json")

    found = results(workspace)
    assert sorted(one["rung"] for one in found) == [0] * 9 + [1] * 3 + [2]
    shortest, trained = 0, 0
    cut = unit == "steps"  # the last step of a training that ends within an epoch is trained again
    for one in sorted(found, key=lambda one: one["rung"]):
        record = json.loads(workspace.the(f"results/runs/{one['run']}/provenance.json").read_text())
        steps, before = record["training"]["steps"], record.get("continued", {}).get("step", 0)
        shortest = shortest or steps
        assert before == max(0, [0, 1, 3][one["rung"]] * shortest - cut)
        assert steps == [1, 3, 9][one["rung"]] * shortest
        assert own_steps(workspace, one["run"], before) == {*range(before + 1, steps + 1)}
        assert sorted(read_ledger(workspace.path / f"store/work/{one['run']}/ledger")) == [
            *range(1, steps + 1)
        ]
        trained += steps - before
    assert trained == (9 * 1 + 3 * 2 + 1 * 6) * shortest + cut * (3 + 1)
    # no promotion is open, so only the winner has a state, as any sealed run
    states = workspace.matching("store/work/*/checkpoints/step-*")
    (winner,) = (one["run"] for one in found if one["rung"] == 2)
    (base,) = workspace.matching("results/latest/base")
    assert {path.parts[-3] for path in states} == {winner, base.resolve().name}

    trials = json.loads(workspace.shardline("ls", "--study", "lr", "--json"))
    assert sorted(one["state"] for one in trials) == ["done"] + ["stopped"] * 8
    verified = json.loads(workspace.shardline("verify", "--deep", "--json"))
    assert [one["problems"] for one in verified] == [[]] * len(verified)
    page = workspace.the("results/report/index.html").read_text()
    assert ("54 steps" if cut else "9 epochs") in page

    assert workspace.evaluated_best("lr", row) == winner
