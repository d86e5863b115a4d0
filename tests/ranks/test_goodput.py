"""What a real training of two ranks tells of its time, its steps, its attempts and its machine."""

import json

import pytest

from shardline.training.goodput import PARTS

# Each part of a step sleeps, a validation far longer, and a start for longer than the period of the machine curve.
SLOW = """
import time

from shardline.training.models.linear import Linear


class Slow(Linear):
    def on_fit_start(self):
        time.sleep(3)

    def training_step(self, *args):
        time.sleep(0.02)
        return super().training_step(*args)

    def on_validation_start(self):
        time.sleep(0.5)
"""
ROW = {"model": "slow:Slow", "trainer.accumulate": 2, "trainer.max_epochs": 2}


def test_a_training_killed_and_resumed_tells_where_its_time_went(prepare, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    ranks = prepare(10, **ROW)
    log = ranks.root / "run" / "work" / "metrics.jsonl"
    ranks.kill_when("run", lambda: log.exists() and '"step": 18' in log.read_text(), hold=19)
    ranks.train("run")
    found = ranks.provenance("run")

    assert found["attempts"] == 2
    killed, sealed = found["attempt_log"]
    assert (killed["end"], killed["resumed_step"]) == ("killed", 0)
    assert 18 <= killed["last_step"] < 20
    # eight steps of two parts each were done again
    assert 7 * 0.04 < killed["lost_s"] < found["goodput"]["elapsed_s"]
    assert (sealed["end"], sealed["resumed_step"], sealed["lost_s"]) == ("sealed", 10, 0)

    goodput = found["goodput"]
    parts = goodput["parts"]
    assert list(parts) == list(PARTS)
    assert parts["queue"] is None
    assert sum(filter(None, parts.values())) == pytest.approx(goodput["elapsed_s"], rel=0.02)
    assert parts["lost"] == killed["lost_s"]
    num_steps = found["training"]["steps"]
    assert parts["compute"] >= num_steps * 0.04  # of both attempts, what was lost not counted
    assert parts["validation"] >= 2 * 0.5
    assert min(parts[name] for name in ("environment", "rendezvous", "data_wait", "checkpoint")) > 0
    assert goodput["share"] == pytest.approx(parts["compute"] / goodput["elapsed_s"], abs=1e-3)

    speed = found["throughput"]
    assert speed["steps"] + speed["warmup_steps"] == num_steps - 10
    assert 0.04 < speed["step_s"]["p10"] <= speed["step_s"]["median"] <= speed["step_s"]["p90"]
    assert speed["step_s"]["p90"] < parts["validation"], "no validation is in it"
    per_s = speed["global_batch"] / speed["step_s"]["median"]
    assert speed["samples_per_s"] == pytest.approx(per_s, rel=1e-4)
    assert (speed["global_batch"], speed["ranks"]) == (32, 2)

    used = found["resources"]
    assert [rank["rank"] for rank in used["ranks"]] == [0, 1]
    for rank in used["ranks"]:
        assert used["memory_bytes"] > rank["peak_rss_bytes"] > 50e6
        assert rank["cpu_s"] > 0
        assert rank["peak_gpu_bytes"] is None
        assert rank["data_wait_s"] > 0
        assert rank["compute_s"] >= 10 * 0.04, "of the last attempt"
        curve = rank["curve"]
        assert sorted(set(curve["attempt"])) == [1, 2], "the resumed training continues it"
        assert curve["s"] == sorted(set(curve["s"]))
        assert 30e6 < max(curve["rss_bytes"]) < used["memory_bytes"]
        assert max(curve["cpu_percent"]) > 0
        assert "gpu_bytes" not in curve


def test_a_training_too_short_to_be_steady_gives_no_speed(prepare):
    ranks = prepare(devices=1, **{"global_batch": 64, "trainer.max_epochs": 1})
    ranks.train("run")
    speed = ranks.provenance("run")["throughput"]
    assert (speed["step_s"], speed["samples_per_s"]) == (None, None)
    assert (speed["steps"], speed["warmup_steps"]) == (5, 5)
    records = [json.loads(line) for line in (ranks.root / "run/work/attempts.jsonl").open()]
    assert [record["resumed_step"] for record in records] == [0]
