"""What commands print with `--json` fits the schemas of the reference, in every state of a run."""

import json
import math
from pathlib import Path

import pytest
import typer.main

from shardline.cli import app
from shardline.cli.display.terminal import say_json
from shardline.cli.json_types import OUTPUTS
from shardline.drills.profile_command import Commands
from tests.support.command_line import shardline
from tests.support.fake_project import DIGEST
from tests.support.json_output import checked
from tests.support.simulated_drill import simulated_commands
from tests.support.simulated_study import Controller
from tests.support.studies import load, some_fail, write_config
from tests.support.workspace import REPOSITORY
from tests.unit.results.test_outcomes import fail, train_now


def printed(name, *arguments):
    result = shardline(*arguments, "--json")
    assert result.stdout, result.stderr
    return checked(name, result.stdout)


def commands(group, before=""):
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, f"{before}{name} ")
        elif any("--json" in parameter.opts for parameter in one.params):
            yield f"{before}{name}"


def test_every_command_with_json_has_a_schema():
    found = {*commands(typer.main.get_command(app))}
    listed = {name.partition(" --")[0] for name in OUTPUTS}
    assert {"find" if name.startswith("find ") else name for name in listed} == found


def test_runs_in_every_state_fit_and_so_do_their_reasons(fake):
    first = fake.rows[1]
    rows = [{**first, "name": name, "seed": seed} for seed, name in enumerate("abcde", start=1)]
    fake.rows = [*rows, {**first, "name": "net2", "optim.lr": 0.5}]
    project = fake.load()
    runs = project.named_runs()
    for name in "ab":
        fake.seal_run(runs[name])
        fake.seal_evaluation(runs[name], accuracy=0.9 if name == "a" else 0.8)
    fake.begin_training(runs["c"], steps=3)
    fail(f"logs/train/{runs['d'].id}.log", "no")
    train_now(runs["e"])
    fake.rows[1]["optim.momentum"] = 0.5
    fake.load()
    found = {one["run"]: one for one in printed("ls", "ls")}
    states = {name: one["state"] for name, one in found.items()}
    expected = {
        "a": "done",
        "b": "stale",
        "c": "stopped",
        "d": "failed",
        "e": "running",
        "net2": "new",
    }
    assert states == expected
    assert found["e"]["progress"]["step"] == 3
    assert found["d"]["failure"]["sentence"] == "no"
    reasons = {name: printed("why", "why", name) for name in states}
    assert reasons["b"]["causes"]
    assert reasons["d"]["failure"]["sentence"] == "no"


def test_a_mean_over_seeds_fits(fake):
    fake.rows = [{**fake.rows[1], "name": "net", "seed": [1, 2]}]
    fake.seal_all()
    assert all(one["mean"]["interval"] for one in printed("ls", "ls"))
    rows = printed("table", "table")
    assert [one["name"] for one in rows] == ["net"]


def test_listings_of_files_and_data_fit(fake):
    project = fake.seal_all()
    next(iter(project.runs.values())).model.write_bytes(b"damaged")
    fake.remember("run", "old")
    fake.workspace.write(f"store/work/{DIGEST}/f", "x")
    fake.workspace.write("tables/a.csv", "x,y\n" + "1.5,a\n2,b\n" * 20)
    assert len(printed("gc", "gc")["items"]) == 1
    assert printed("rm", "rm", "flat")["deleted"] is False
    assert any(one["problems"] for one in printed("verify", "verify"))
    assert {one["is_built"] for one in printed("data show", "data", "show")} == {True}
    new = printed("data init", "data", "init", "tables/a.csv", "--name", "comments")
    assert new["settings"]["source"]["type"] == "csv"
    assert printed("check", "check", "flat")
    assert printed("crate", "crate")["exists"] is False


def test_trials_of_a_study_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = {"trials": 5, "parallel": 2, "sampler": "sobol"}
    Controller(project=load(**sweep), fails=some_fail).run()
    write_config(**{**sweep, "trials": 6})
    states = [one["state"] for one in printed("ls --study", "ls", "--study", "s")]
    assert (states[5], set(states[:5])) == ("new", {"done", "failed"})
    assert printed("best", "best", "s")["ended"] == 5


def test_trials_at_rungs_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stop = {"halving": {"rungs": [1, 3], "keep": 2}}
    sweep = {"trials": 4, "parallel": 2, "sampler": "sobol", "stop": stop}
    Controller(project=load(**sweep)).run()
    write_config(**sweep)
    trials = printed("ls --study", "ls", "--study", "s")
    assert sorted((one["state"], one["epochs"]) for one in trials) == [
        ("done", 3), ("done", 3), ("stopped", 1), ("stopped", 1),
    ]  # fmt: skip
    assert printed("best", "best", "s")["rung"] == 1


def test_an_accepted_result_fits(fake):
    fake.rows = fake.rows[1:]
    fake.seal_all()
    fake.rows[0]["optim.lr"] = 0.2
    fake.load()
    found = printed("accept", "accept", "flat", "--reason", "no effect", "--yes")
    assert found["accepted"] == [f"results/runs/{fake.run('flat').id}"]


@pytest.mark.parametrize(
    ("name", "survives", "verdicts"),
    [("resume", True, ["survived"]), ("kill-rank", False, ["not survived"])],
)
def test_outcomes_of_injected_faults_fit(name, survives, verdicts, fake, monkeypatch):
    fake.load()
    monkeypatch.setattr(Commands, "started", simulated_commands(survives=survives))
    profile = str(REPOSITORY / "profiles/local")
    options = ("--interruptions", "1", "--devices", "1", "--profile", profile)
    found = printed("drill", "drill", name, *options)
    assert [one["verdict"] for one in found["outcomes"]] == verdicts
    assert [one["steps_done"] for one in found["outcomes"]] == [40 * survives] * len(verdicts)
    assert all(one["interruptions"] for one in found["outcomes"])
    assert all((one["folder"] is None) == survives for one in found["outcomes"])
    assert (found["certificate"] is None) != survives


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_null(value, capsys):
    say_json({"a": [value], "b": (1.5, True, Path("x"))})
    assert json.loads(capsys.readouterr().out) == {"a": [None], "b": [1.5, True, "x"]}
