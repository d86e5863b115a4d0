"""Why ranks were started cold is said once, at the end of the command."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardline.pipeline import started_ranks
from shardline.pipeline.cold_ranks import forget_cold, note_cold, tell_cold
from shardline.supervision.warm.client import VARIABLE, Cold


@pytest.fixture
def tell(tmp_path, monkeypatch, caplog):
    """Return a function that returns what the end of a command prints."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)

    def end() -> list[str]:
        caplog.clear()
        tell_cold(logging.getLogger("end"))
        return [one.getMessage() for one in caplog.records]

    return end


def test_each_reason_is_said_once_with_the_number_of_jobs(tell):
    assert tell() == []
    for run, reason in [("a", "one"), ("b", "two"), ("c", "two"), ("d", "tröis\nlines")]:
        note_cold(Path(f"elsewhere/logs/train/{run}.log"), reason)
    note_cold(Path("logs/evaluate/a.log"), "two")
    first, *others = tell()
    assert first == (
        "The ranks of 3 jobs have imported torch themselves, although runtime.warm_ranks is on: two"
    )
    assert sorted(one.rpartition(": ")[2] for one in others) == ["one", "tröis\nlines"]
    assert all("of 1 job have" in one for one in others)
    assert tell() == [], "the next command begins without them"


def test_many_reasons_are_not_all_printed_and_those_of_a_killed_command_are_forgotten(tell):
    for number in range(5):
        note_cold(Path(f"logs/train/{number}.log"), f"reason {number}")
    assert len(tell()) == 4
    note_cold(Path("logs/train/1.log"), "of a killed command")
    forget_cold()
    assert tell() == []


@pytest.mark.parametrize(
    ("launcher", "ends"), [("torchrun", ["no server"]), ("srun", [])], ids=["server", "launcher"]
)
def test_a_job_notes_the_servers_reason_and_not_the_configs(launcher, ends, tell, monkeypatch):
    def refuse(*_, **__):
        raise Cold("no server")

    monkeypatch.setenv(VARIABLE, "1:2:3")
    monkeypatch.setattr(started_ranks, "start_warm", refuse)
    plan = SimpleNamespace(
        nodes=1, hosts=(), job_id="", ranks=1, run_id="a", python=(started_ranks.sys.executable,)
    )
    start = SimpleNamespace(plan=plan, env={})
    share = SimpleNamespace(descriptors=(), cores=())
    run = SimpleNamespace(lightning={})
    runtime = SimpleNamespace(
        warm_ranks=True, launcher=launcher, launcher_args="", environment="job", stop_grace_s=1.0
    )
    arguments = (start, share, run, Path("rank.json"), runtime, Path("logs/train/a.log"))
    assert started_ranks._warm(*arguments) is None
    assert [one.rpartition(": ")[2] for one in tell()] == ends
