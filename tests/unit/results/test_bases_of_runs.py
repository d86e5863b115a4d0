"""What the commands say of runs that begin from runs: causes through a base, its failures, and deletions."""

import json
import shutil
from pathlib import Path
from typing import Any

from shardline.config.project import Project
from shardline.core.files import write_json
from shardline.core.seals import seal
from shardline.pipeline.terminal_rows import final_rows
from shardline.records.failures import Failure
from shardline.results.accept.candidates import find_by_cause
from shardline.results.accept.take import accept_unasked
from shardline.results.gc import find_garbage
from shardline.results.outcomes import outcomes_of
from shardline.results.staleness import explain
from shardline.results.states import describe_runs
from shardline.results.verify_runs import verify_run
from shardline.supervision.job_failures import FailureFile
from tests.support.command_line import shardline
from tests.support.fake_project import FakeProject


def chain(fake: FakeProject) -> dict[str, dict[str, Any]]:
    """Let `tuned` begin from `flat`, and `again` from `tuned`; return the rows by name."""
    for number, (name, base) in enumerate({"tuned": "flat", "again": "tuned@last"}.items(), 2):
        added = {"name": name, "dataset": "table", "model": "linear", "seed": number}
        fake.rows.append({**added, "init_from": f"run:{base}"})
    return {row["name"]: row for row in fake.rows}


def causes(project: Project, name: str) -> list[tuple[str, str]]:
    found = explain(project, project.named_runs()[name])
    return [(cause.kind, cause.text) for cause in found.causes]


def test_why_names_the_run_that_a_run_is_stale_through(fake: FakeProject) -> None:
    rows = chain(fake)
    fake.seal_all()
    assert all(record["state"] == "done" for record in describe_runs(fake.load()))
    rows["flat"]["optim.lr"] = 0.2
    rows["again"]["seed"] = 7
    fake.config["datasets"]["table"]["source"]["features"] = 3
    project = fake.load()
    inside = [
        ("base", "through run flat: optim.lr 0.1 -> 0.2"),
        ("base", "through run flat: dataset table: source.features 2 -> 3"),
    ]
    own = ("dataset", "dataset table: source.features 2 -> 3")
    assert causes(project, "tuned") == [*inside, own]
    through = [
        (kind, text.replace("through", "through run tuned: through")) for kind, text in inside
    ]
    other = ("base", f"through run tuned: {own[1]}")
    assert causes(project, "again") == [("settings", "seed 3 -> 7"), *through, other, own]
    # also where both are recorded, as `diff` compares them
    fake.seal_all()
    fake.config["datasets"]["table"]["source"]["features"] = 2
    assert ("base", "through run flat: optim.lr 0.2 -> 0.1") not in causes(fake.load(), "tuned")


def test_why_names_another_base(fake: FakeProject) -> None:
    rows = chain(fake)
    old = fake.seal_all().named_runs()
    rows["tuned"]["init_from"] = "run:net"
    net = fake.load().named_runs()["net"]
    (found,) = causes(fake.load(), "tuned")
    assert found == ("base", f"begins from run {old['flat'].id} -> run {net.id}")
    rows["tuned"]["init_from"] = "run:flat@last"
    (found,) = causes(fake.load(), "tuned")
    assert found == ("base", f"begins from run {old['flat'].id} -> run {old['flat'].id}@last")
    rows["tuned"]["init_from"] = ""
    (found,) = causes(fake.load(), "tuned")
    assert found == ("base", f"begins from run {old['flat'].id} -> initial weights")
    rows["tuned"]["init_from"] = "file:w.pt"
    fake.workspace.write("w.pt", "weights")
    (found,) = causes(fake.load(), "tuned")
    assert found[1].startswith(f"begins from run {old['flat'].id} -> a file with content ")
    # whatever is no longer recorded
    rows["tuned"]["init_from"] = "run:flat"
    rows["flat"]["optim.lr"] = 0.2
    shutil.rmtree(old["flat"].folder)
    now = fake.load().named_runs()["flat"].id
    assert causes(fake.load(), "tuned") == [
        (
            "base",
            f"through run flat: {old['flat'].id} -> {now}; nothing is recorded of {old['flat'].id}",
        )
    ]


def fail(run_id: str, kind: str) -> None:
    log = Path(f"logs/train/{run_id}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    file = FailureFile(Path("store/failures"), log)
    known = {"rule": "train", "key": run_id, "log": str(log)}
    sentence = "the loss is NaN at step 3"
    file.write(Failure(sentence=sentence, when="2026-01-31T10:00:00Z", kind=kind, **known))


def test_each_dependent_says_once_what_became_of_its_base(fake: FakeProject) -> None:
    chain(fake)
    project = fake.load()
    runs = project.named_runs()
    flat, tuned = runs["flat"], runs["tuned"]

    def notes() -> dict[str, str]:
        return {str(row["title"]): str(row["note"]) for row in final_rows(project, ())}

    untrained = f"it begins from flat ({flat.id}), which is not trained"
    assert notes() == {
        "net": "",
        "flat": "",
        "tuned": untrained,
        "again": f"it begins from tuned ({tuned.id}), which is not trained",
    }
    assert outcomes_of(project)[tuned.id]["cause"].endswith(untrained)
    fail(flat.id, "diverged")
    way = f"it begins from tuned ({tuned.id}), which begins from flat ({flat.id}), which diverged"
    assert notes() == {
        "net": "",
        "flat": "",
        "tuned": f"it begins from flat ({flat.id}), which diverged",
        "again": way,
    }
    records = {record["run"]: record for record in describe_runs(project)}
    assert records["net"]["state"] == "new"
    assert {records[name]["state"] for name in ("flat", "tuned", "again")} == {"failed"}
    assert records["flat"]["failure"]["sentence"] == "the loss is NaN at step 3"
    assert records["again"]["failure"]["sentence"] == f"{way}: the loss is NaN at step 3"
    assert records["tuned"]["bases"][0]["run"] == flat.id
    assert outcomes_of(project)[tuned.id]["state"] == "failed"
    # a dependent that is sealed already asks for nothing
    fake.seal_run(tuned)
    fake.seal_evaluation(tuned)
    records = {record["run"]: record for record in describe_runs(project)}
    assert [records[name]["state"] for name in ("flat", "tuned", "again")] == [
        "failed",
        "done",
        "new",
    ]
    assert notes()["tuned"] == notes()["again"] == ""


def test_rm_and_gc_say_what_depends_on_what_they_would_delete(fake: FakeProject) -> None:
    rows = chain(fake)
    project = fake.load()
    runs = project.named_runs()
    flat, tuned, again = (f"{name} ({runs[name].id})" for name in ("flat", "tuned", "again"))
    for name in ("flat", "tuned"):
        fake.seal_run(runs[name])
    listed = shardline("rm", "flat").stdout
    assert f"{tuned} began from {flat}; its own result stays" in listed
    listed = shardline("rm", "tuned", "net", "--json").stdout
    remade = f"{again} begins from {tuned}, which the next `snakemake` trains again first"
    assert json.loads(listed)["dependents"] == [remade]
    assert (
        json.loads(shardline("rm", "flat", "tuned", "again", "--json").stdout)["dependents"] == []
    )
    # a base outside of the config is used, whatever names it, and so is its last state
    fake.begin_training(runs["tuned"], 3)
    del rows["tuned"]
    rows["again"]["init_from"] = f"run:{runs['tuned'].id}@last"
    fake.rows = [*rows.values()]
    assert fake.load().outside_bases.keys() == {runs["tuned"].id}
    assert runs["tuned"].id not in shardline("gc").stdout
    lost = f"{again} begins from {tuned}, and cannot be trained without it"
    assert lost in shardline("rm", runs["tuned"].id).stdout
    # without that row the run is garbage, and what began from it stays
    fake.rows = [rows["net"]]
    fake.load()
    fake.seal_run(runs["again"])
    document = json.loads(shardline("gc", "--json").stdout)
    listed_runs = {Path(item["path"]).name for item in document["items"]}
    assert listed_runs >= {runs[name].id for name in ("flat", "tuned", "again")}
    assert document["dependents"] == []
    fake.rows = [rows["net"], {**rows["flat"], "init_from": f"run:{runs['again'].id}"}]
    fake.load()
    document = json.loads(shardline("gc", "--json").stdout)
    assert document["dependents"] == [f"{again} began from {tuned}; its own result stays"]


def test_the_last_state_stays_where_another_run_begins_from_it(fake: FakeProject) -> None:
    chain(fake)
    fake.config["runtime"] = {"checkpoint": {"after_sealing": "none"}}
    runs = fake.seal_all().named_runs()
    for run in runs.values():
        fake.begin_training(run, 3)
    listed = {Path(item.path).parent.name for item in find_garbage(fake.load(), ())}
    assert {runs[name].id in listed for name in ("net", "flat", "again")} == {True}
    assert runs["tuned"].id not in listed


def test_a_run_is_accepted_by_cause_only_after_its_bases(fake: FakeProject) -> None:
    rows = chain(fake)
    fake.rows.reverse()  # each before its base
    fake.seal_all()
    lock = fake.workspace.path / "my.lock"
    lock.write_text(lock.read_text().replace("numpy==2.4.6", "numpy==2.4.7"))

    def accepted() -> list[str]:
        found = find_by_cause(fake.load(), {"environment"})
        return [one.asked.name for one in found if one.asked.name not in ("table", "rows", "net")]

    assert accepted() == ["flat", "tuned", "again"]
    rows["tuned"]["seed"] = 9
    assert accepted() == ["flat"]
    rows["tuned"]["seed"] = 2
    rows["flat"]["optim.lr"] = 0.2
    assert accepted() == []
    rows["flat"]["optim.lr"] = 0.1
    rows["again"]["init_from"] = "run:tuned"  # other weights of the same run
    assert accepted() == ["flat", "tuned"]
    rows["tuned"]["init_from"] = ""
    assert accepted() == ["flat"]


def test_environments_that_are_near_are_accepted_along_the_chain(fake: FakeProject) -> None:
    chain(fake)
    fake.config["identity"] = {"environment": "minor"}
    old = fake.seal_all().named_runs()
    lock = fake.workspace.path / "my.lock"
    lock.write_text(lock.read_text().replace("numpy==2.4.6", "numpy==2.4.7"))
    project = fake.load()
    accept_unasked(project)
    runs = project.named_runs()
    assert describe_states(project) == dict.fromkeys(runs, "done")
    assert runs["again"].id != old["again"].id
    assert [verify_run(project.layout, run.id).problems for run in runs.values()] == [[]] * 4


def describe_states(project: Project) -> dict[str, str]:
    return {record["run"]: record["state"] for record in describe_runs(project)}


def test_verify_holds_the_weights_against_those_of_the_base(fake: FakeProject) -> None:
    chain(fake)
    project = fake.seal_all()
    runs = project.named_runs()
    assert [verify_run(project.layout, run.id).problems for run in runs.values()] == [[]] * 4
    path = runs["tuned"].folder / "provenance.json"
    document = json.loads(path.read_bytes())
    document["bases"][0]["sha256"] = "0" * 64
    write_json(path, seal(document))
    (problem,) = verify_run(project.layout, runs["tuned"].id).problems
    assert f"SHA-256 of the weights of run {runs['flat'].id}" in problem
    document["bases"][0] |= {"identity": "1" * 64}
    del document["bases"][0]["sha256"]
    write_json(path, seal(document))
    assert any("bases" in one for one in verify_run(project.layout, runs["tuned"].id).problems)
    shutil.rmtree(runs["tuned"].folder)
    fake.seal_run(runs["tuned"])
    shutil.rmtree(runs["flat"].folder)  # a deleted base is no damage
    assert verify_run(project.layout, runs["tuned"].id).problems == []
