"""The GPU suite by its CPU sizes: what it prints, and that it calls nothing passed that was not run."""

import json
import time

import pytest
from benchmarks.gpu import __main__ as suite
from benchmarks.gpu.correct import Bench, find_scale
from benchmarks.gpu.flight import hung_and_done
from benchmarks.gpu.outcome import Clock, Line, NotRun, Wrong
from benchmarks.gpu.speed import save_interval_s
from benchmarks.turns import Ended, TimeOver

from tests.support.rotation import rotating
from tests.support.workspace import REPOSITORY

CHECKS = {
    "bits": ["bits", "resume"],
    "bf16": ["bf16-mixed"],
    "fsdp": ["fsdp"],
    "flight": ["flight"],
    "resnet": ["resnet speed", "resnet data wait", "resnet peak memory", "resnet save stall"],
    "gpt": ["gpt speed", "gpt data wait", "gpt peak memory", "gpt save stall"],
    "compile": ["torch.compile"],
}


@pytest.fixture
def lines_of(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # which the suite would set for good

    def run(*names):
        words = ["--accelerator", "cpu", "--out", str(tmp_path / "out"), "--only", *names]
        code = suite.main(words)
        found = json.loads((tmp_path / "out/figures.json").read_text())["lines"]
        assert code == 0, found
        return {line["name"]: line for line in found}

    return run


def test_a_world_of_one_passes_and_what_was_not_run_is_named_so(lines_of, capsys, tmp_path):
    lines = lines_of("world", "fp16", "locked")
    assert lines.pop("world")["state"] == "passed"
    assert {line["state"] for line in lines.values()} == {"not run"}
    assert "needs a GPU" in lines["fp16"]["text"]
    assert lines["gpt"]["text"] == "not asked for"
    printed = capsys.readouterr().out
    assert "passed   world: 1 rank over gloo" in printed
    assert "1 passed, 0 failed, 0 measured, 9 not run: bits, locked, bf16, fp16" in printed
    assert "| fp16 | not run |" in (tmp_path / "out/table.md").read_text()


@pytest.mark.parametrize("name", rotating(*CHECKS))
def test_each_check_runs_by_its_cpu_sizes(lines_of, name):
    lines = lines_of(name)
    found = {line: lines[line]["state"] for line in CHECKS[name]}
    assert "failed" not in found.values()
    expected = "measured" if name in ("resnet", "gpt", "compile") else "passed"
    assert {state for line, state in found.items() if "memory" not in line} == {expected}


def test_the_checks_have_eight_minutes_together():
    assert sum(check.budget_s for check in suite.checks(suite.GPU)) <= suite.BUDGET_S == 480


def test_a_save_is_compared_with_the_interval_of_the_defaults():
    assert save_interval_s(0.1) == pytest.approx(20)  # 200 steps
    assert save_interval_s(30.0) == 600  # ten minutes


def test_what_hangs_is_read_from_the_flight_recorders_dump():
    def entry(op, *, retired, name="nccl:all_reduce"):
        return {"profiling_name": name, "collective_seq_id": op, "retired": retired, "state": "started",
                "input_sizes": [[4]]}  # fmt: skip

    other = entry(1, retired=True, name="nccl:broadcast")
    document = {"entries": [other, entry(1, retired=True), entry(2, retired=False)]}
    ((hung,), (done,)) = hung_and_done(document)
    assert (hung["op"], hung["name"], hung["state"], done["op"]) == (
        2,
        "nccl:all_reduce",
        "started",
        1,
    )
    assert hung_and_done({}) == ([], [])


def outcome_of(error, end=60.0):
    def run(bench):
        yield Line(name="first", state="passed", text="")
        raise error

    bench = Bench(None, "cpu", 1)
    check = suite.Check("some", 10.0, run)
    lines = suite.outcome(check, bench, Clock(end=time.monotonic() + end), 1.0)
    return [(line.name, line.state) for line in lines], bench.end - time.monotonic()


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (NotRun("no GPU"), "not run"), (Wrong("other bits"), "failed"), (Ended("killed"), "failed"),
        (TimeOver("its time was over"), "failed"), (ValueError("ours"), "failed"),
    ],
)  # fmt: skip
def test_a_check_that_does_not_end_well_is_never_passed(error, state):
    lines, budget = outcome_of(error)
    assert lines == [("first", "passed"), ("some", state)]
    assert 0 < budget <= 10, "a check has its own budget"


def test_a_check_without_time_is_not_begun():
    assert outcome_of(None, end=1.0)[0] == [("some", "not run")]


def test_a_gpu_is_asked_for_where_there_is_none(monkeypatch, capsys):
    monkeypatch.setattr(suite.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        suite.main([])
    assert "torch finds no GPU" in capsys.readouterr().err


def test_the_scale_of_a_gradient_scaler_is_found():
    state = {"scale": 32768.0, "growth_factor": 2.0, "_growth_tracker": 3}
    assert find_scale({"epoch": 1, "MixedPrecision": state}) == 32768.0
    assert find_scale({"epoch": 1, "model": {"scale": 1.0}}) is None
