"""Ranks that are told to stop: all save at the same step, nothing is lost, and the bits are the same."""

import json

import pytest

from shardline.supervision.failure_records import read_failures
from tests.support.processes import end_of_ranks

# A rank is signalled at a known place: from within, as the plan of the test says.
TOLD = """
import json
import os
import signal
from pathlib import Path

from shardline.training.models.mlp import MLP


class Told(MLP):
    def _tell(self, where):
        plan = json.loads(Path("plan.json").read_text())
        here = [where, self.global_step, self.trainer.global_rank]
        for signal_name, *place in plan:
            if place == here:
                os.kill(os.getpid(), signal.Signals[signal_name])

    def training_step(self, batch, batch_idx):
        accumulate = self.trainer.accumulate_grad_batches
        self._tell("step" if batch_idx % accumulate == 0 else "accumulation")
        return super().training_step(batch, batch_idx)

    def on_validation_start(self):
        self._tell("validation")
"""
STEPS = 20  # of an epoch


def told(ranks, name: str, *plan: tuple[str, str, int, int]) -> list[int]:
    """Start the ranks, which the plan's signals reach, and return the step at which each has stopped."""
    (ranks.root / "plan.json").write_text(json.dumps(plan))
    process = ranks.start(name)
    output = end_of_ranks(process)
    assert process.returncode == (75 if plan else 0), output
    failures = read_failures(ranks.root / name / "work")
    assert {one.kind for one in failures} <= {"stopped"}
    return [one.step for one in failures]


def records(ranks, name: str) -> list[dict[str, object]]:
    """Return the records of an attempt's metrics, without seconds."""
    lines = (ranks.root / name / "work" / "metrics.jsonl").read_text().splitlines()
    return [{**json.loads(line), "wall_s": 0} for line in lines]


@pytest.mark.parametrize(
    ("row", "plans"),
    [
        (
            {"trainer.accumulate": 2, "trainer.max_epochs": 3},
            [
                [("SIGTERM", "step", 4, 1)],  # one of two
                [("SIGUSR1", "accumulation", 9, 0), ("SIGTERM", "step", 10, 1)],  # both, by others
                [("SIGINT", "validation", 20, 1)],
                [("SIGUSR1", "accumulation", 30, 1)],
            ],
        ),
        (
            {"devices": 1, "trainer.max_epochs": 2},
            [[("SIGTERM", "step", 4, 0)], [("SIGUSR1", "validation", 20, 0)]],
        ),
    ],
    ids=["two", "one"],
)
def test_ranks_that_are_told_to_stop_lose_nothing(prepare, tmp_path, row, plans):
    (tmp_path / "told.py").write_text(TOLD)
    ranks = prepare(1000, model="told:Told", **row)
    told(ranks, "whole")
    expected = 0
    for plan in plans:
        steps = told(ranks, "stopped", *plan)
        _, where, asked, _ = plan[0]
        assert len(steps) == ranks.devices
        assert len(set(steps)) == 1, "all at the same step"
        later = steps[0] - asked
        assert later == 0 if where == "validation" else 1 <= later <= 1 + ranks.devices
        expected = steps[0]
        told_steps = records(ranks, "stopped")
        assert max(record["step"] for record in told_steps) == expected
        assert not ranks.results("stopped").exists()
    told(ranks, "stopped")
    assert ranks.model("stopped") == ranks.model("whole")
    assert records(ranks, "stopped") == records(ranks, "whole")
    log = ranks.provenance("stopped")["attempt_log"]
    assert [attempt["steps_lost"] for attempt in log] == [0] * (len(plans) + 1)
    resumed = [attempt["resumed_step"] for attempt in log]
    assert resumed == [0, *[attempt["last_step"] for attempt in log[:-1]]]


def test_a_training_that_has_done_its_steps_is_sealed_and_not_stopped(prepare, tmp_path):
    (tmp_path / "told.py").write_text(TOLD)
    ranks = prepare(1000, model="told:Told", devices=1, **{"trainer.max_epochs": 1})
    (ranks.root / "plan.json").write_text(json.dumps([("SIGTERM", "validation", STEPS, 0)]))
    ranks.train("run")
    assert ranks.provenance("run")["training"]["steps"] == STEPS
