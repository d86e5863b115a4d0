"""Who starts a training again, and when nobody does: the rules, the ledger and the shipped profiles."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from shardline.errors import ConfigError, CrashLoop, DataError, LaunchError, Stopped
from shardline.launch.slurm.allocation import parse_job
from shardline.launch.slurm.deadline import watch_deadline
from shardline.pipeline.hooks import check_one_owner
from shardline.records.attempts import Attempt
from shardline.supervision.attempt_log import (
    attempted,
    begin_attempt,
    read_attempts,
    record_resumed_step,
    record_threads,
    sealed_log,
    threads_of_state,
)
from shardline.supervision.failure_records import report_failure
from shardline.supervision.retry_policy import check_retry, crash_loop
from shardline.supervision.supervisor import RankError
from tests.support.workspace import REPOSITORY

LOGS = Path("logs")
PROFILES = sorted((REPOSITORY / "profiles").glob("*/profile.yaml"))


def attempt(number, end="failed", **changes):
    known = {
        "exit_code": 1,
        "reason": "rank 1: out of luck at 0x7f12",
        "resumed_step": 100,
        "last_step": 130,
    }
    begun = {"host": "n1", "started": "2026-01-01T00:00:00Z", "retry": number, "end": end}
    return Attempt(**begun | known | changes)


@pytest.mark.parametrize(
    ("last", "saved_step", "told"),
    [
        ({}, 100, "before they had saved more than step 100"),
        ({"reason": "rank 1: out of luck at 0x7f99"}, 120, "at step 130 with the same error"),
        ({"last_step": 140}, 120, ""),  # got further, and saved
        ({"last_step": 140}, 100, "before they had saved"),  # further, but nothing of it is kept
        ({"reason": "rank 0: something else"}, 120, ""),
        ({"end": "hung"}, 100, ""),
        ({"end": "killed"}, 100, ""),  # without a word: it may have been any machine's
        ({"retry": 0}, 100, ""),  # the user has looked at it meanwhile
    ],
)  # fmt: skip
def test_two_alike_in_a_row_are_a_crash_loop(last, saved_step, told):
    found = crash_loop([attempt(0), attempt(1, **last)], saved_step=saved_step)
    assert found.startswith("two attempts in a row ended " if told else "")
    assert told in found
    assert bool(found) == bool(told)


def test_before_the_first_step_the_same_error_counts():
    new = {"resumed_step": None, "last_step": None}
    twice = [attempt(0, **new), attempt(1, **new)]
    assert "with the same error" in crash_loop(twice, saved_step=0)
    other = attempt(1, reason="no rank came", **new)
    assert not crash_loop([attempt(0, **new), other], saved_step=0)


def test_a_limit_too_short_for_one_save_is_a_loop_and_a_preemption_is_none():
    for reason, is_loop in (("deadline", True), ("preempted", False)):
        stops = [attempt(n, "stopped", exit_code=75, stop=reason) for n in (0, 1)]
        assert bool(crash_loop(stops, saved_step=100)) == is_loop


def test_one_that_nothing_helps_and_one_in_a_circle_are_refused_but_never_to_a_user():
    final = [attempt(0, exit_code=DataError.exit_code, is_final=True, reason="shard 3 is damaged")]
    with pytest.raises(
        CrashLoop, match="would fail in the same way: shard 3 is damaged; fix the error"
    ):
        check_retry(final, retry=1, saved_step=0, logs=LOGS)
    circle = [attempt(0), attempt(1)]
    with pytest.raises(CrashLoop, match="two attempts in a row .* step 100: rank 1: out of luck"):
        check_retry(circle, retry=2, saved_step=100, logs=LOGS)
    check_retry(final, retry=0, saved_step=0, logs=LOGS)
    check_retry(circle, retry=0, saved_step=100, logs=LOGS)
    check_retry([attempt(0)], retry=1, saved_step=100, logs=LOGS)
    check_retry([], retry=1, saved_step=0, logs=LOGS)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (Stopped("deadline", 20), ("stopped", "deadline", 75)),
        (Stopped("preempted", None, in_time=False), ("killed", "preempted", 75)),
        (RankError("rank 1 hangs", kind="hung", code=1), ("hung", None, 1)),
        (RankError("no such column", code=2), ("failed", None, 2)),
        (LaunchError("no port"), ("failed", None, 4)),
        (KeyboardInterrupt(), ("killed", None, 130)),
    ],
)
def test_the_ledger_says_why_an_attempt_ended(tmp_path, error, line):
    with pytest.raises(type(error)), attempted(tmp_path, retry=3):
        raise error
    (told,) = read_attempts(tmp_path)
    assert (told.end, told.stop, told.exit_code) == line
    assert told.reason.startswith(str(error) or "the job had to exit at once")
    assert told.retry == 3


def test_the_ledger_counts_steps_done_and_those_that_were_done_again(tmp_path):
    for number, (resumed, last) in enumerate([(0, 25), (20, 28), (10, 40)], 1):
        begin_attempt(tmp_path, retry=number - 1)
        record_resumed_step(tmp_path, number, resumed, {}, world=2)
        (tmp_path / "metrics.jsonl").write_text(f'{{"step": {last}}}\n')
    log = sealed_log(tmp_path)
    assert [one.steps_done for one in log] == [25, 8, 30]
    # the third went back to step 10, beyond what the second had gone on from
    assert [one.steps_lost for one in log] == [15, 8, 0]
    assert "exited without a report after step 25: the job was killed, " in log[0].reason
    assert log[2].reason == "trained to its end"


def test_a_job_that_was_killed_is_told_of_by_what_its_ranks_left(tmp_path):
    """Slurm ends the job's own shell at once, while the ranks of its step have time to save."""
    begin_attempt(tmp_path)
    stop = Stopped("preempted", 40)
    report_failure(
        tmp_path, str(stop), rank=0, log=None, kind=stop.kind, code=75, step=40, stop="preempted"
    )
    begin_attempt(tmp_path, retry=1)
    told = read_attempts(tmp_path)[0]
    assert (told.end, told.stop, told.exit_code) == ("stopped", "preempted", 75)
    assert told.reason.startswith("asked to end (SIGTERM): saved at step 40")


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.parent.name)
def test_each_shipped_profile_has_one_owner_of_retries_and_says_who(profile):
    text = profile.read_text()
    settings = yaml.safe_load(text)
    if "executor" not in settings:  # the base of all, which leaves it to each
        assert "retries" not in settings
        return
    owner = {"local": "Snakemake", "slurm": "Slurm", "azureml": "Azure ML"}[profile.parent.name]
    assert f"# Who retries: {owner}" in text
    assert (settings["retries"] > 0) == (owner == "Snakemake")
    assert bool(settings.get("slurm-requeue")) == (owner == "Slurm")
    check_one_owner(SimpleNamespace(requeue=settings.get("slurm-requeue")), settings["retries"])


def test_two_owners_are_refused_by_name():
    with pytest.raises(ConfigError, match="slurm-requeue: true and retries: 2: both Slurm and"):
        check_one_owner(SimpleNamespace(requeue=True), 2)
    check_one_owner(SimpleNamespace(requeue=True), 0)
    check_one_owner(None, 2)  # the executor of this machine has no settings


def test_no_rule_retries_by_itself():
    for rules in (REPOSITORY / "rules").glob("*.smk"):
        assert "retries:" not in rules.read_text()


def test_the_stop_is_asked_for_before_the_end_that_holds_at_last(monkeypatch):
    now = 1e9
    monkeypatch.setattr("shardline.launch.slurm.deadline.time", SimpleNamespace(time=lambda: now))
    ends = iter([None, (now - 60, now + 15.2), (now - 60, now + 18)])  # unknown, known, put off

    asked, waits = [], []
    ended = threading.Event()
    ended.wait = waits.append
    watch_deadline(
        lambda *told: asked.append(told), ended, end_of_job=lambda: next(ends, (now - 60, now + 8)), margin_s=15
    )  # fmt: skip
    assert asked == [("deadline", pytest.approx(6))]
    assert waits == pytest.approx([60, 0.2, 3], abs=1e-3)


def test_the_margin_of_a_short_job_is_a_quarter_of_it():
    now, asked, ended = time.time(), [], threading.Event()
    ended.wait = lambda seconds: ended.set() if seconds > 9 else None
    watch_deadline(
        lambda *told: asked.append(told), ended, end_of_job=lambda: (now, now + 40), margin_s=120
    )
    assert asked == [], "30 of its 40 s are left"


def test_what_slurm_says_of_a_jobs_end_and_return():
    name = "JobName=1f0c6c3e-0d3c-4c39-9b53-5f4a2f9f2a11"
    told = (
        "JobState=RUNNING Requeue=1 Restarts=2 NumCPUs=2 NodeList=n1 StartTime=2026-01-01T10:00:00"
    )
    job = parse_job("7", f"{name} {told} EndTime=2026-01-01T11:00:00 PreemptTime=None")
    assert job.ends - job.began == 3600
    assert (job.is_own, job.may_requeue, job.is_running, job.is_preempted) == (
        True,
        True,
        True,
        False,
    )
    preempted = parse_job("7", f"{name} {told} EndTime=Unknown PreemptTime=2026-01-01T10:30:00")
    assert (preempted.ends, preempted.is_preempted) == (None, True)
    assert not parse_job("7", f"JobName=bash {told}").is_own


def test_an_attempt_records_its_threads_and_the_next_keeps_those_of_the_saved_state(tmp_path):
    begin_attempt(tmp_path)
    record_threads(tmp_path, 3)
    begin_attempt(tmp_path)
    assert [one.threads for one in read_attempts(tmp_path)] == [3, None]
    assert threads_of_state(tmp_path, 40) == 3
    assert threads_of_state(tmp_path, 0) is None, "nothing was saved, so nothing is resumed"
