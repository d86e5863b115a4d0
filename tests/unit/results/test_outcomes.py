"""What became of runs without a result: failures of jobs, states, and the report that names each run once."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardline.core.errors import (
    CODE_ERROR,
    ConfigError,
    CrashLoop,
    DataError,
    Diverged,
    LaunchError,
    Stopped,
    exit_code_of,
    is_final,
)
from shardline.core.files import write_json
from shardline.pipeline import invocation, job_frame, late_report
from shardline.records.failures import Failure
from shardline.results.gc import find_garbage
from shardline.results.outcomes import outcomes_of, present_report
from shardline.results.states import State, describe_runs
from shardline.supervision.attempt_log import attempted, begin_attempt, record_resumed_step
from shardline.supervision.job_failures import FailureFile
from shardline.supervision.watchdog.heartbeats import RankHeartbeat, write_heartbeat

STATES = (
    "sealed", "failed", "failed dataset", "missing", "killed", "stopped", "running", "evaluation failed",
)  # fmt: skip
SHOWN = {
    "failed dataset": "failed", "evaluation failed": "failed", "killed": "missing",
}  # fmt: skip


def fail(log: str, sentence: str = "optim.lr=-1, expected more than 0", **fields) -> None:
    path = Path(log)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(sentence)
    file = FailureFile(Path("store/failures"), path)
    known = {
        "rule": file.rule,
        "key": file.key,
        "log": file.declared_log,
        "code": 2,
        "is_final": True,
    }
    file.write(Failure(sentence=sentence, when="2026-01-31T10:00:00Z", **known, **fields))


def train_now(run, *, step: int = 3) -> None:
    work = Path("store/work") / run.id
    (work / "watch").mkdir(parents=True)
    begin_attempt(work)
    beat = {
        "host": "a",
        "pid": 1,
        "count": 1,
        "phase": "steps",
        "place": 0,
        "ticks": 1,
        "idle_s": 0.0,
    }
    write_heartbeat(work, RankHeartbeat(rank=0, step=step, state="R", **beat))


def stop(run) -> None:
    def train() -> None:
        with attempted(Path("store/work") / run.id) as number:
            record_resumed_step(Path("store/work") / run.id, number, 0, {}, world=1)
            raise Stopped("interrupted", 218)

    with pytest.raises(Stopped):
        train()


def make(fake, run, state: str) -> None:
    """Leave what a run of a state leaves."""
    match state:
        case "sealed":
            fake.seal_run(run)
            fake.seal_evaluation(run)
        case "failed":
            fail(f"logs/train/{run.id}.log")
        case "failed dataset":
            fail(f"logs/build_shards/{run.dataset.id}/00000-00003.log")
        case "killed":
            fake.begin_training(run, steps=2)
        case "stopped":
            fake.begin_training(run, steps=2)
            stop(run)
        case "running":
            train_now(run)
        case "evaluation failed":
            fake.seal_run(run)
            fail(f"logs/evaluate/{run.id}-{run.evaluation_id}.log")


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(states=st.lists(st.sampled_from(STATES), min_size=1, max_size=4))
def test_each_run_is_once_in_the_report_with_its_state(fake, tmp_path_factory, monkeypatch, states):
    monkeypatch.chdir(tmp_path_factory.mktemp("project"))
    fake = type(fake)(type(fake.workspace)(Path.cwd()))
    fake.rows = [
        {"name": f"run-{n}", "dataset": "table", "model": "linear", "seed": n}
        for n in range(len(states))
    ]
    project = fake.load()
    for run, state in zip(project.runs.values(), states, strict=True):
        make(fake, run, state)
    shared = "failed dataset" in states  # a dataset that all of them need

    found = late_report.render(project)

    folder = (project.workdir / found["report"]).parent
    document = json.loads((folder / "report.json").read_text())
    outcomes = {name: one for one in document.get("outcomes", ()) for name in one["names"]}
    results = [name for run in document["runs"] for name in run["names"]]
    assert sorted([*outcomes, *results]) == sorted(row["name"] for row in fake.rows)
    for row, state in zip(fake.rows, states, strict=True):
        if state == "sealed":
            assert row["name"] in results
            continue
        expected = SHOWN.get(state, state)
        if shared and expected in ("missing", "stopped"):
            expected = "failed"
        one = outcomes[row["name"]]
        assert one["state"] == expected
        assert one["cause"]
        assert one["remedy"]
        if one["state"] == "stopped":
            assert one["cause"].startswith(
                "interrupted: saved at step 218; the same command resumes"
            )
    is_complete = set(states) == {"sealed"}
    assert (folder == project.report.parent) == is_complete
    assert (project.workdir / "results/report").resolve() == folder
    assert present_report(project) == folder / "index.html"
    kept = {item.path for item in find_garbage(project, ["table", "rows"])}
    assert folder not in kept
    again = late_report.render(fake.load())
    assert again["report"] == found["report"], "the same results and outcomes are the same report"


def test_ls_and_why_name_the_failure(fake):
    run = fake.run("flat")
    fail(f"logs/train/{run.id}.log", "the loss is NaN at step 3")
    record = next(one for one in describe_runs(fake.load()) if one["run"] == "flat")
    assert record["state"] == State.FAILED
    assert record["failure"]["sentence"] == "the loss is NaN at step 3"


def test_ls_shows_the_step_at_which_a_stopped_training_was_saved(fake):
    run = fake.run("flat")
    fake.begin_training(run, steps=210)
    fake.workspace.write(f"store/work/{run.id}/checkpoints/step-218/state", "x")
    stop(run)
    record = next(one for one in describe_runs(fake.load()) if one["run"] == "flat")
    assert (record["state"], record["step"]) == (State.STOPPED, 218)


def test_ls_shows_how_far_a_training_is(fake):
    run = fake.run("flat")
    train_now(run, step=30)
    lines = [json.dumps({"step": step, "epoch": 0, "wall_s": step / 2}) for step in (10, 20, 30)]
    fake.workspace.write(f"store/work/{run.id}/metrics.jsonl", "\n".join(lines))
    fake.workspace.write(f"logs/train/{run.id}.log", "progress step=30/90 epoch=1/3 loss=1\n")
    record = next(one for one in describe_runs(fake.load()) if one["run"] == "flat")
    assert record["state"] == State.RUNNING
    assert record["progress"] == {"step": 30, "steps": 90, "steps_per_s": 2.0, "left_s": 30.0}
    old = time.time() - 600
    os.utime(f"store/work/{run.id}/watch/rank-00000.json", (old, old))
    assert outcomes_of(fake.load())[run.id]["state"] == "missing"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConfigError("x"), True), (DataError("x"), True), (CrashLoop("x"), True), (Diverged("x"), True),
        (LaunchError("x"), False), (Stopped("preempted", 3), False), (ValueError("ours"), False),
    ],
)  # fmt: skip
def test_which_errors_a_retry_repeats(error, expected):
    assert is_final(error) is expected


@pytest.mark.parametrize(("cause", "expected"), [(OSError(5, "I/O"), False), (FileNotFoundError(), True)])  # fmt: skip
@pytest.mark.parametrize("hidden", [True, False])
def test_an_error_of_a_disk_or_network_is_retried(cause, expected, hidden):
    def read() -> None:
        try:
            raise cause
        except OSError as error:
            raise DataError("a shard cannot be read") from (None if hidden else error)

    with pytest.raises(DataError) as raised:
        read()
    assert is_final(raised.value) is expected


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AttributeError("nett"), CODE_ERROR),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x2 and 3x3)"), CODE_ERROR),
        (RuntimeError("CUDA error: out of memory"), 1),
        (RuntimeError("NCCL error"), 1),
        (OSError("disk"), 1),
    ],
)
def test_which_errors_of_a_model_are_final(error, code):
    assert exit_code_of(error) == code


def test_a_second_attempt_of_a_final_error_repeats_nothing(fake, capsys):
    log, runs = "logs/seal_dataset/0123456789ab.log", []

    def attempt(error: Exception | None) -> int:
        try:
            with job_frame.job(log, {}):
                runs.append(error)
                if error:
                    raise error
        except SystemExit as end:
            return int(end.code)
        return 0

    invocation.record()
    assert attempt(ConfigError("shards=0, expected 1 or more")) == 2
    assert "shards=0" in capsys.readouterr().err
    Path(log).unlink()  # as Snakemake does
    assert attempt(None) == 2
    assert len(runs) == 1
    assert "shards=0" not in "".join(capsys.readouterr())
    assert "shards=0" in Path(log).read_text()
    write_json(Path(".snakemake/shardline-started.json"), {"started": "another command"})
    assert attempt(DataError("disk")) == 3
    write_json(Path(".snakemake/shardline-started.json"), {"started": "a third"})
    assert attempt(None) == 0
    assert len(runs) == 3
    assert not list(Path("store/failures").rglob("*.json")), "success removes the record"


def test_a_transient_error_is_tried_again(fake):
    invocation.record()
    for _ in range(2):
        with pytest.raises(SystemExit), job_frame.job("logs/train/0123456789ab.log", {}):
            raise LaunchError("no port is free")


def test_the_reports_own_failure_is_no_other(fake, caplog):
    import logging

    project = fake.load()
    job = SimpleNamespace(rule=SimpleNamespace(name="render_report"))
    workflow = SimpleNamespace(dag=SimpleNamespace(jobs=[job]))
    late_report.report_on_failure(project, workflow, logging.getLogger())
    assert "the report could not be written" in caplog.text
