"""Attempts, goodput and throughput: the arithmetic, and the file that survives a kill."""

import json
import os
import time
from types import SimpleNamespace

import pytest

from shardline.core.errors import Stopped
from shardline.launch.slurm.allocation import parse_job
from shardline.records.attempts import Attempt
from shardline.records.measured import StepSeconds
from shardline.records.trainings import PackedSamples
from shardline.supervision.attempt_log import (
    attempted,
    begin_attempt,
    read_attempts,
    record_resumed_step,
    sealed_log,
)
from shardline.training import sealed_training
from shardline.training.goodput import Timeline, goodput, throughput

FLOW = {"global_batch": 64, "ranks": 2}


@pytest.mark.parametrize(
    ("steps", "warmup"),
    [(0, 0), (1, 0), (12, 6), (20, 10), (60, 10), (150, 15), (2000, 200)],
)
def test_the_warm_up_is_ten_steps_or_a_tenth_and_at_most_half(steps, warmup):
    speed = throughput([0.5] * steps, 1, **FLOW)
    assert (speed.warmup_steps, speed.steps) == (warmup, steps - warmup)
    assert (speed.step_s is None) == (steps - warmup < 10)


def test_slow_first_steps_and_a_single_stall_leave_the_median_alone():
    readings = [9.0] * 10 + [0.25] * 40
    readings[30] = 5.0
    speed = throughput(readings, 1, **FLOW)
    assert speed.step_s == StepSeconds(median=0.25, p10=0.25, p90=0.25)
    assert speed.samples_per_s == 256


def test_readings_of_ten_steps_each_drop_whole_readings():
    speed = throughput([9.0, 9.0, *[0.5] * 13], 10, **FLOW)
    assert (speed.warmup_steps, speed.steps) == (20, 130)
    assert speed.step_s.p90 == 0.5
    one = throughput([9.0, 0.5], 10, **FLOW)
    assert (one.step_s.p10, one.steps) == (0.5, 10)


def attempt(number, seconds, **changes):
    start = f"2026-01-0{number}T00:00:00.000Z"
    end = f"2026-01-0{number}T00:00:{seconds:02d}.000Z"
    return Attempt(host="n1", started=start, ended=end, **changes)


def test_parts_of_all_attempts_sum_to_the_elapsed_time():
    kept = {
        1: {"environment": 2.0, "compute": 5.0},  # up to the state that the third goes on from
        3: {"environment": 3.0, "rendezvous": 1.0, "compute": 20.0, "other": 6.0},
    }
    log = [attempt(1, 10, queue_s=4.0), attempt(2, 5, queue_s=1.0), attempt(3, 30)]
    found = goodput(log, kept)
    assert found.elapsed_s == 50
    assert {name: value for name, value in found.parts.items() if value} == {
        "queue": 5, "environment": 5, "rendezvous": 1, "compute": 25, "lost": 3 + 5, "other": 6,
    }  # fmt: skip
    assert sum(found.parts.values()) == 50
    assert found.share == 0.5


def test_of_a_script_what_is_not_known_is_other():
    found = goodput(
        [attempt(1, 10), attempt(2, 20)], {2: {"environment": 3.0, "other": 17.0}}, is_script=True
    )
    known = {name: value for name, value in found.parts.items() if value is not None}
    assert known == {"environment": 3, "rendezvous": 0, "other": 27}
    assert (found.elapsed_s, found.share) == (30, None)
    log = [attempt(1, 10, lost_s=4.0), attempt(2, 20, resumed_step=7)]
    found = goodput(log, {2: {"environment": 3.0, "other": 17.0}}, is_script=True)
    assert (found.parts["lost"], found.parts["other"]) == (4, 23), "as shardline_io has told"


def test_a_timeline_has_one_part_at_a_time():
    timeline = Timeline(time.time() - 100)
    assert timeline.switch("compute") == "environment"
    assert timeline.switch("checkpoint") == "compute"
    seconds = timeline.seconds()
    assert seconds["environment"] >= 100
    assert seconds["compute"] > 0 < seconds["checkpoint"]
    assert timeline.stepping_s() == seconds["compute"]


def record_steps(work, *steps):
    text = "".join(json.dumps({"step": step, "train_loss": 1.0}) + "\n" for step in steps)
    (work / "metrics.jsonl").write_text(text)


def test_the_next_attempt_completes_the_line_of_one_that_was_killed(tmp_path):
    now = time.time()
    assert begin_attempt(tmp_path, job="17", queue_s=2.5, started=now - 50) == 1
    record_resumed_step(tmp_path, 1, 0, {}, world=2)
    record_steps(tmp_path, 10, 20)
    os.utime(tmp_path / "metrics.jsonl", (now - 10,) * 2)
    assert begin_attempt(tmp_path) == 2
    killed, running = read_attempts(tmp_path)
    assert killed.duration_s == pytest.approx(40, abs=1)  # to the last sign of life
    assert (killed.job, killed.queue_s, killed.end) == ("17", 2.5, "killed")
    assert (killed.resumed_step, killed.last_step) == (0, 20)
    assert (running.ended, running.end, running.last_step) == (None, None, None)
    record_resumed_step(tmp_path, 2, 10, {1: 30.0}, world=1)
    killed, running = read_attempts(tmp_path)
    assert killed.lost_s == pytest.approx(10, abs=1)
    assert running.resumed_step == 10


@pytest.mark.parametrize(
    ("error", "end"), [(None, "sealed"), (KeyboardInterrupt, "killed"), (OSError, "failed")]
)
def test_a_job_says_how_its_attempt_ended(tmp_path, error, end):
    def work():
        with attempted(tmp_path) as number:
            assert number == 1
            if error:
                raise error

    if error:
        with pytest.raises(error):
            work()
    else:
        work()
    (line,) = read_attempts(tmp_path)
    assert line.end == end
    assert line.ended >= line.started
    assert line.last_step is None, "it never came to a step"


def test_a_stop_is_recorded_at_the_step_that_was_saved(tmp_path):
    def work():
        with attempted(tmp_path):
            record_resumed_step(tmp_path, 1, 100, {}, world=1)
            record_steps(tmp_path, 200, 210)  # every 10 steps
            raise Stopped("interrupted", 218)

    with pytest.raises(Stopped):
        work()
    (line,) = read_attempts(tmp_path)
    assert (line.end, line.last_step, line.steps_done) == ("stopped", 218, 118)
    assert "saved at step 218" in line.reason
    begin_attempt(tmp_path)
    record_resumed_step(tmp_path, 2, 218, {1: 1e9}, world=1)
    assert read_attempts(tmp_path)[0].steps_lost == 0


@pytest.mark.parametrize(("step", "last", "lost"), [(26, 26, 0), (20, 24, 4), (24, 24, 0)])
def test_what_a_killed_attempt_has_saved_behind_its_last_metrics_counts(tmp_path, step, last, lost):
    begin_attempt(tmp_path)
    record_resumed_step(tmp_path, 1, 10, {}, world=1)
    record_steps(tmp_path, 20, 24)
    begin_attempt(tmp_path)
    record_resumed_step(tmp_path, 2, step, {}, world=1)
    killed, _ = read_attempts(tmp_path)
    assert (killed.last_step, killed.steps_lost) == (last, lost)
    assert killed.steps_done == last - 10


def test_a_torn_last_line_is_dropped(tmp_path):
    begin_attempt(tmp_path)
    with (tmp_path / "attempts.jsonl").open("a") as file:
        file.write('{"host": "n1", "sta')
    assert len(read_attempts(tmp_path)) == 1
    assert begin_attempt(tmp_path) == 2
    assert [line.end for line in sealed_log(tmp_path)] == ["killed", "sealed"]


def job(name, **times):
    fields = {"JobName": name, "NodeList": "n1", "NumCPUs": 4, **times}
    return parse_job("17", " ".join(f"{key}={value}" for key, value in fields.items()))


def test_the_queue_of_a_slurm_job_is_from_when_it_could_start():
    name = "1f0c6c3e-0d3c-4c39-9b53-5f4a2f9f2a11"
    times = {
        "SubmitTime": "2026-01-01T10:00:00", "EligibleTime": "2026-01-01T10:05:00",
        "StartTime": "2026-01-01T10:06:30",
    }  # fmt: skip
    assert job(name, **times).queue_s == 90
    assert job(name, **{**times, "EligibleTime": "Unknown"}).queue_s == 390
    assert job(name, **{**times, "StartTime": "Unknown"}).queue_s is None
    # a shell in an allocation, from which Snakemake was started: its wait is no run's
    assert job("interactive", **times).queue_s is None
    assert not job("interactive", **times).is_own


def test_what_packs_waste_is_recorded_of_a_training_that_has_them_alone(tmp_path):
    begin_attempt(tmp_path)
    packs = PackedSamples(method="concat", column="tokens", length=4, datasets=[])
    run = SimpleNamespace(model_class="nets:Net", settings=SimpleNamespace(global_batch=8))
    task = SimpleNamespace(run=run, work=tmp_path)
    assert sealed_training._measured(task, {}, [], packs=packs)["packs"] == packs
    assert "packs" not in sealed_training._measured(task, {}, [])
