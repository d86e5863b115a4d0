"""Real ranks, fewer than planned for a while: the same samples, and the same losses but for rounding."""

import json
from dataclasses import replace

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from shardline.config.resolved import ActualGeometry
from shardline.ledger import read_ledger
from tests.support.processes import end_of_ranks
from tests.support.rotation import rotating

# 20 steps an epoch
ROW = {
    "elastic": "true", "precision": "64-true", "trainer.max_epochs": 3, "optim.name": "sgd", "optim.lr": 0.1,
}  # fmt: skip
ALONE = ActualGeometry(nodes=1, devices=1)


def losses(ranks, name):
    lines = (ranks.root / name / "work/metrics.jsonl").read_text().splitlines()
    return [record["val_loss"] for record in map(json.loads, lines) if "val_loss" in record]


def weights(ranks, name):
    return load_file(ranks.results(name) / "model.safetensors")


@pytest.mark.parametrize(
    "row",
    [
        {"trainer.accumulate": 2, "schedule.name": "cosine", "data.last_batch": "pad"},
        *rotating({}),
    ],
    ids=["accumulated", "whole-shares"],
)
def test_two_ranks_then_one_then_two_learn_what_two_do(prepare, row):
    """With dropout: what is drawn for a sample is the same whichever rank it is on."""
    ranks = prepare(7, devices=2, **{**ROW, **row})
    ranks.train("planned")
    alone = replace(ranks, devices=1)
    ranks.kill_after("shrunk", 7)  # in mid-epoch
    on_one = alone.kill_after("shrunk", 28, geometry=ALONE)
    output = ranks.train("shrunk")
    assert f"resuming from step {on_one}: 2 ranks" in output
    assert read_ledger(ranks.root / "shrunk/work/ledger") == read_ledger(
        ranks.root / "planned/work/ledger"
    )
    for name, weight in weights(ranks, "planned").items():
        # one rank sums up other parts than two
        assert_close(weights(ranks, "shrunk")[name], weight, rtol=0, atol=1e-10)
    assert losses(ranks, "shrunk") == pytest.approx(losses(ranks, "planned"), abs=1e-6)
    assert len(losses(ranks, "shrunk")) == 3, "no validation is left out or done twice"
    log = ranks.provenance("shrunk")["attempt_log"]
    assert [attempt["world"] for attempt in log] == [2, 1, 2]


def test_single_precision_differs_by_rounding_alone(prepare):
    ranks = prepare(100, devices=2, **{**ROW, "precision": "32-true"})
    ranks.train("planned")
    replace(ranks, devices=1).train("alone", geometry=ALONE)
    assert losses(ranks, "alone") == pytest.approx(losses(ranks, "planned"), abs=1e-6)


def test_fewer_ranks_than_planned_are_refused_by_name(prepare):
    ranks = replace(prepare(devices=2), devices=1)
    process = ranks.start("run", geometry=ALONE)
    output = end_of_ranks(process)
    assert process.returncode == 4
    assert (
        'run "run" is planned for nodes=1 x devices=2, but its ranks are on 1 x 1; start as many as '
        "planned, or set elastic: true to train with the same global batch on fewer ranks"
    ) in output
