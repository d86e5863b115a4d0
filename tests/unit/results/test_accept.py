"""Earlier results are taken over on the record: whole or not at all, and never another model."""

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from shardline.config.layout import ResultsLayout
from shardline.core.files import read_json, write_json
from shardline.errors import ConfigError, DataError
from shardline.records.acceptances import Difference, accepted_of
from shardline.results.accept.candidates import find_candidate
from shardline.results.accept.first_steps import compare_first_steps, differences, values_of
from shardline.results.accept.take import accept_dataset, accept_run, accept_unasked
from shardline.results.diff import compare_runs
from shardline.results.lineage.tracer import trace
from shardline.results.sealed_run import find_sealed_run
from shardline.results.states import State, sealed_names, state_of
from shardline.results.verify import verify_dataset
from shardline.results.verify_runs import verify_run
from tests.support.command_line import shardline
from tests.support.fake_project import LOCK, MODEL, WEIGHTS, FakeProject

HERE = ResultsLayout(root=Path())  # the present folder

REASON = "a patch level; the curves are equal"


@pytest.fixture
def stale(fake: FakeProject) -> FakeProject:
    """A project whose `flat` is sealed under an earlier learning rate."""
    fake.rows = fake.rows[1:]
    fake.seal_all()
    fake.rows[0]["optim.lr"] = 0.2
    fake.load()
    return fake


def accept(fake: FakeProject, name: str = "flat", **options: Any) -> Path:
    project = fake.load()
    run = project.named_runs()[name]
    return accept_run(
        project, find_candidate(run), **{"reason": REASON, "with_evaluation": False, **options}
    )


def earlier(fake: FakeProject) -> Path:
    """The folder of the result that could be accepted."""
    return Path("results/runs") / find_candidate(fake.run("flat")).earlier


def test_an_accepted_run_is_trained_and_says_who_when_why_and_what(stale):
    before = earlier(stale).name
    folder = accept(stale)
    run = stale.run("flat")
    assert folder == run.folder != before
    assert state_of(run, sealed_names(HERE)) is State.TRAINED
    assert run.model.samefile(Path("results/runs") / before / "model.safetensors"), "no copy"
    accepted = accepted_of(folder)
    assert accepted is not None
    assert accepted.from_.id == before
    assert accepted.reason == REASON
    assert accepted.differs == [Difference(kind="settings", text="optim.lr 0.1 -> 0.2")]
    assert (accepted.action.id, accepted.action.rule) == (f"accept/{run.id}", "accept")
    assert read_json(folder / "run.json", remedy="")["settings"]["optim"]["lr"] == 0.2
    verdict = verify_run(HERE, run.id)
    assert verdict.problems == []
    assert verdict.summary.endswith(f", accepted from {before}")


def test_the_earlier_result_may_go_and_the_accepted_one_stays(stale):
    folder = accept(stale)
    listed = json.loads(shardline("gc", "--delete", "--yes", "--json").stdout)["items"]
    assert [item["reason"] for item in listed if "runs" in item["path"]] == ["earlier flat"]
    assert (folder / "model.safetensors").exists()
    assert verify_run(HERE, folder.name).problems == []
    lineage = trace(folder / "model.safetensors", HERE)
    assert any("deleted since: accepted from" in name for name in lineage.files)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("accepted.json", {"reason": "none"}),
        ("provenance.json", {"identity": "0" * 64}),
        ("run.json", {"identity": "0" * 64}),
    ],
)
def test_an_altered_byte_of_an_accepted_run_is_found(stale, file, change):
    folder = accept(stale)
    document = read_json(folder / file, remedy="")
    (folder / file).unlink()  # it has a second name
    write_json(folder / file, {**document, **change})
    assert verify_run(HERE, folder.name).problems


def test_an_evaluation_can_be_taken_over_too(stale):
    accept(stale, with_evaluation=True)
    run = stale.run("flat")
    assert run.is_sealed
    assert verify_run(HERE, run.id).problems == []
    evaluation = read_json(run.evaluation, remedy="")
    assert evaluation["run"] == run.id
    assert evaluation["accepted"]["from"]["run"] != run.id


def test_an_evaluation_of_other_settings_is_not_taken_over(stale):
    stale.config["defaults"]["evaluation"] = {"split": "validation"}
    with pytest.raises(
        ConfigError, match="no evaluation with the present settings; .* --evaluations again"
    ):
        accept(stale, with_evaluation=True)
    assert not stale.run("flat").folder.exists()


def test_an_acceptance_can_rest_on_another(stale):
    first = earlier(stale).name
    accept(stale)
    stale.rows[0]["optim.lr"] = 0.3
    folder = accept(stale)
    accepted = accepted_of(folder)
    assert accepted is not None
    assert accepted.origin.id == first
    assert verify_run(HERE, folder.name).problems == []


# --- what is refused ----------------------------------------------------------------------------


def test_nothing_is_accepted_for_a_run_that_is_trained(stale):
    accept(stale)
    with pytest.raises(ConfigError, match="is trained already"):
        accept(stale)


def test_without_an_earlier_result_there_is_nothing_to_accept(fake):
    run = fake.run("flat")
    with pytest.raises(
        ConfigError, match="no earlier result of this name is sealed; name one: --from ID"
    ):
        find_candidate(run)
    with pytest.raises(
        ConfigError, match="--from 0123456789ab: no sealed result in .*results/runs/0123456789ab"
    ):
        find_candidate(run, "0123456789ab")


@pytest.mark.parametrize(
    "weights",
    [
        {**WEIGHTS, "more": np.zeros(1, np.float32)},
        {**WEIGHTS, "layer.bias": np.zeros(4, np.float32)},
        {"layer.bias": np.zeros(3, np.float32)},
    ],
)
def test_a_model_of_other_tensors_is_refused(stale, monkeypatch, weights):
    old = earlier(stale)
    provenance = read_json(old / "provenance.json", remedy="")
    identity = {"format": "pt", "identity": provenance["identity"]}
    save_file(weights, old / "model.safetensors", metadata=identity)
    monkeypatch.setattr("shardline.results.accept.take.refuse_damage", lambda verdict: None)
    with pytest.raises(
        ConfigError, match="the model has other tensors than that of .*; train the run again"
    ):
        accept(stale)
    assert not stale.run("flat").folder.exists()


def test_a_dataset_of_another_schema_is_refused(stale):
    stale.config["datasets"]["table"]["shards"] = 5
    project = stale.load()
    with pytest.raises(ConfigError, match="is not sealed, .* accept dataset:table first"):
        accept(stale)
    dataset = stale.run("flat").dataset
    stale.seal_dataset(project, dataset)
    manifest = read_json(dataset.manifest, remedy="")
    write_json(dataset.manifest, {**manifest, "schema": {**manifest["schema"], "classes": ["a"]}})
    with pytest.raises(ConfigError, match="schema of table has another classes than that of"):
        accept(stale)


def test_a_damaged_earlier_result_is_refused(stale):
    old = earlier(stale)
    (old / "metrics.jsonl").write_text("{")
    with pytest.raises(DataError, match="metrics.jsonl"):
        accept(stale)
    assert not stale.run("flat").folder.exists()


def test_a_run_that_is_being_trained_is_left_alone(stale):
    from filelock import FileLock

    from shardline.errors import ShardlineError

    work = Path("store/work") / stale.run("flat").id
    work.mkdir(parents=True)
    with FileLock(work / "lock"), pytest.raises(ShardlineError, match="is being trained; wait"):
        accept(stale)


# --- datasets -----------------------------------------------------------------------------------


def test_a_dataset_is_taken_over_with_its_shards_and_then_its_run(stale):
    stale.workspace.write("my.lock", LOCK.format(torch="2.12.0").replace("2.4.6", "2.4.7"))
    project = stale.load()
    dataset = stale.run("flat").dataset
    accept_dataset(project, find_candidate(dataset), reason=REASON)
    assert verify_dataset(project, dataset.id).problems == []
    accept(stale)
    run = stale.run("flat")
    assert verify_run(HERE, run.id).problems == []
    shard = Path("store/datasets") / dataset.id / "shard-00000.safetensors"
    assert shard.stat().st_nlink == 2, "no copy"
    write_json(dataset.manifest.with_name("accepted.json"), {"from": {"id": "x", "identity": "y"}})
    assert verify_run(HERE, run.id).problems, "another manifest than that of the training"


# --- killed anywhere ----------------------------------------------------------------------------


class Killed(BaseException):
    """What stands for SIGKILL: nothing is done after it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Have the n-th change of a folder, and all after it, not happen; returns the changes that were made."""
    made: list[str] = []

    def guard(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            if len(made) >= number:
                raise Killed
            made.append(name)
            return function(*arguments, **options)

        return guarded

    for owner, name in (
        (os, "link"), (Path, "rename"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir"),
        (shutil, "rmtree"), (shutil, "copyfile"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, guard(name, getattr(owner, name)))
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("begun", [False, True])
def test_a_kill_anywhere_leaves_all_or_nothing_and_accepting_again_succeeds(
    stale, monkeypatch, begun
):
    run, old = stale.run("flat"), earlier(stale)
    before = contents(old)
    if begun:  # resolved and evaluated before its model was lost
        stale.seal_run(run)
        run.model.unlink()
        stale.seal_evaluation(run)
    was, number, ended = contents(run.folder) if begun else {}, 0, False
    while not ended:
        with monkeypatch.context() as patch:
            kill_at(patch, number)
            try:
                accept(stale)
                ended = True
            except Killed:
                number += 1
        assert contents(old) == before, "the earlier result is untouched"
        if run.model.exists():
            assert verify_run(HERE, run.id).problems == []
            if not ended:
                shutil.rmtree(run.folder)
                for name, content in was.items():
                    stale.workspace.write(str(run.folder / name), content.decode())
        else:
            assert contents(run.folder) in ({}, was)
            assert state_of(run, sealed_names(HERE)) is State.STALE
            if not run.folder.exists() and was:
                for name, content in was.items():
                    stale.workspace.write(str(run.folder / name), content.decode())
    assert number > 10
    assert verify_run(HERE, run.id).problems == []
    assert run.evaluation.exists() == begun
    assert not list(Path("results/runs").glob(".*")), "nothing is left of the earlier tries"


# --- the command --------------------------------------------------------------------------------


def test_the_command_shows_what_differs_and_needs_a_yes(stale):
    result = shardline("accept", "flat", "--reason", REASON)
    assert result.exit_code == 1
    assert "optim.lr 0.1 -> 0.2" in result.stdout
    assert "standard input is not a terminal; add --yes" in result.stderr
    assert not stale.run("flat").has_model
    result = shardline("accept", "flat", "--reason", REASON, "--yes")
    assert result.exit_code == 0, result.stderr
    assert f"as flat ({stale.run('flat').id})" in " ".join(result.stdout.split())
    assert stale.run("flat").has_model


@pytest.mark.parametrize(
    "arguments",
    [(), ("flat", "--all"), ("--all",), ("flat", "--cause", "environment"),
     ("--all", "--cause", "environment", "--from", "0123456789ab")],
)  # fmt: skip
def test_a_command_that_names_nothing_or_too_much_is_refused(stale, arguments):
    result = shardline("accept", *arguments, "--reason", "x", "--yes")
    assert (result.exit_code, "use one of these" in result.stderr) == (2, True)
    assert shardline("accept", "flat", "--reason", " ", "--yes").exit_code == 2


def test_all_that_another_environment_made_stale_is_accepted_at_once(fake):
    fake.rows = [fake.rows[1], {**fake.rows[1], "name": "other", "seed": 3}]
    fake.seal_all()
    fake.workspace.write("my.lock", LOCK.format(torch="2.12.1"))
    fake.rows[1]["optim.lr"] = 0.5  # more than the environment
    fake.load()
    result = shardline("accept", "--all", "--cause", "environment", "--reason", REASON, "--yes")
    assert result.exit_code == 0, result.stderr
    assert fake.run("flat").has_model
    assert not fake.run("other").has_model
    again = shardline("accept", "--all", "--cause", "environment", "--reason", REASON, "--yes")
    assert again.stdout.startswith("Nothing to accept")


def test_all_that_a_vouched_change_of_code_made_stale_is_accepted_with_its_definitions(fake):
    fake.rows = [*fake.rows, {**fake.rows[0], "name": "wide", "seed": 3}]
    fake.seal_all()
    fake.workspace.write("mypkg/models.py", MODEL.replace("return x", "return x.clone()"))
    fake.rows[2]["optim.lr"] = 0.5  # more than the code
    fake.load()
    arguments = ("accept", "--all", "--cause", "code", "--reason", REASON)
    shown = shardline(*arguments)
    assert (shown.exit_code, fake.run("net").has_model) == (1, False)
    assert "mypkg.models: Net.forward changed" in " ".join(shown.stdout.split())
    assert "wide" not in shown.stdout
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "shardline.results.accept.take.check_model", lambda *_: None
        )  # no torch model
        result = shardline(*arguments, "--yes")
    assert result.exit_code == 0, result.stderr
    assert not fake.run("wide").has_model
    accepted = accepted_of(fake.run("net").folder)
    assert accepted is not None
    assert [cause.kind for cause in accepted.differs] == ["code"]
    assert set(accepted.definitions) == {"mypkg.models:Net.forward"}
    before, after = accepted.definitions["mypkg.models:Net.forward"]
    assert before != after
    assert verify_run(HERE, fake.run("net").id).problems == []
    assert shardline(*arguments, "--yes").stdout.startswith("Nothing to accept")


def test_diff_and_report_tell_of_an_acceptance(stale):
    accept(stale, with_evaluation=True)
    project = stale.load()
    old, new = sorted(Path("results/runs").iterdir())
    found = compare_runs(find_sealed_run(project, old.name), find_sealed_run(project, new.name))
    assert [cause.kind for cause in found.circumstances] == ["accepted"]
    assert REASON in found.circumstances[0].text
    assert found.causes


# --- identity.environment -----------------------------------------------------------------------


LEVELS = [
    ("exact", "torch==2.12.0", "torch==2.12.1", False),
    ("minor", "torch==2.12.0", "torch==2.12.1", True),
    ("minor", "torch==2.12.0", "torch==2.13.0", False),
    ("minor", "torch==2.12.0", "torch==3.12.0", False),
    ("minor", "torch==2.12", "torch==2.12.0.post1", False),
    ("off", "torch==2.12.0", "torch==3.0.0", True),
]


@pytest.mark.parametrize(("level", "old", "new", "taken"), LEVELS)
def test_a_looser_level_takes_over_by_itself_what_differs_so_little(fake, level, old, new, taken):
    fake.rows = fake.rows[1:]
    fake.config["identity"] = {"environment": level}
    fake.workspace.write("my.lock", LOCK.replace("torch=={torch}", old))
    fake.seal_all()
    before = fake.run("flat")
    fake.workspace.write("my.lock", LOCK.replace("torch=={torch}", new))
    accept_unasked(fake.load())
    run = fake.run("flat")
    assert run.id != before.id, "a level changes no digest"
    assert (run.has_model, run.is_sealed) == (taken, taken)
    if taken:
        assert verify_run(HERE, run.id).problems == []
        accepted = accepted_of(run.folder)
        assert accepted is not None
        assert accepted.reason == f"identity.environment: {level}"
    fake.rows[0]["seed"] = 9
    accept_unasked(fake.load())
    assert not fake.run("flat").has_model, "more than the environment differs"


def test_a_looser_level_accepts_datasets_with_their_runs(fake, caplog):
    fake.rows = fake.rows[1:]
    fake.config["identity"] = {"environment": "minor"}
    fake.seal_all()
    before = fake.run("flat")
    fake.workspace.write("my.lock", LOCK.format(torch="2.12.0").replace("2.4.6", "2.4.9"))
    accept_unasked(fake.load())
    run = fake.run("flat")
    assert run.dataset.id != before.dataset.id
    assert [" is accepted as " in message for message in caplog.messages] == [True, True]
    assert run.is_sealed
    assert run.dataset.manifest.exists()
    assert verify_run(HERE, run.id).problems == []


# --- the first steps, trained again -------------------------------------------------------------

VALUES = st.one_of(st.none(), st.floats(allow_nan=False), st.sampled_from([0.1, 0.1 + 2**-55]))
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "step": st.integers(1, 6),
            "epoch": st.integers(0, 1),
            "wall_s": st.floats(0, 9),
            "train_loss": VALUES,
        },
        optional={"val_loss": VALUES},
    ),
    max_size=8,
)


@given(records=RECORDS, more=RECORDS, steps=st.integers(1, 6), data=st.data())
def test_first_steps_are_equal_but_for_what_another_bit_changed(records, more, steps, data):
    recorded = values_of(records, steps)
    again = [*more, *({**record, "wall_s": 0.0} for record in records)]  # more may be logged now
    assert differences(recorded, values_of(again, steps)) == []
    assert all(step <= steps for step, _, _ in recorded)
    if not recorded:
        return
    key = data.draw(st.sampled_from(sorted(recorded)))
    changed = values_of(again, steps)
    value = recorded[key]
    if data.draw(st.booleans()):
        changed[key] = 1.0 if value in (None, -math.inf) else math.nextafter(value, -math.inf)
    else:
        del changed[key]
    (told,) = differences(recorded, changed)
    assert told.startswith(f"{key[2]} at step {key[0]} {value} -> ")


def test_first_steps_are_refused_where_nothing_can_be_compared(stale):
    candidate = find_candidate(stale.run("flat"))
    options: dict[str, Any] = {"config": Path("config/config.yaml"), "profile": "none"}
    (earlier(stale) / "metrics.jsonl").write_text('{"step": 9, "epoch": 0, "wall_s": 1, "a": 1}\n')
    with pytest.raises(ConfigError, match=r"--after-steps 8: .* use at least 9 steps"):
        compare_first_steps(candidate, 8, **options)
    path = earlier(stale) / "provenance.json"
    document = read_json(path, remedy="")
    document["training"] = {
        "interventions": [
            {
                "first": 5,
                "step": 6,
                "epoch": 0,
                "rank": 0,
                "cause": "NaN",
                "lr": 0.1,
                "action": "skip",
                "factor": 1.0,
            }
        ]
    }
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="its training was changed from step 5 on"):
        compare_first_steps(candidate, 8, **options)


def test_an_acceptance_after_first_steps_says_so(stale):
    folder = accept(stale, first_steps={"steps": 8, "values": 3})
    assert verify_run(HERE, folder.name).problems == []
    accepted = accepted_of(folder)
    assert accepted is not None
    assert "the first 8 steps, trained again, gave the 3 recorded" in str(accepted)


def test_images_of_the_first_steps_are_compared_by_their_digests():
    line = {"step": 1, "epoch": 0, "wall_s": 1.0}
    first, second = ({**line, "logged": [{"name": "a", "png": f"{n}" * 99}]} for n in "AB")
    recorded = values_of([first, second, {**line, "loss": 0.5}], 2)
    assert (
        differences(recorded, values_of([first, second, {**line, "wall_s": 2.0, "loss": 0.5}], 2))
        == []
    )
    (told,) = differences(recorded, values_of([first, first, {**line, "loss": 0.5}], 2))
    assert told.startswith("logged a 1 at step 1 ")
    assert len(told) < 60
