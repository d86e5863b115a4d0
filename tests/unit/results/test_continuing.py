"""Which training a longer run continues, by the records in results and store."""

import json
import shutil
from pathlib import Path

import pytest

from shardline.checkpoints.folder import list_saved, saving
from shardline.checkpoints.manifest import Bound
from shardline.config.layout import ResultsLayout
from shardline.core.canonical import digest
from shardline.core.files import write_json
from shardline.core.seals import seal
from shardline.pipeline.continuing import continue_shorter
from shardline.results import waiting
from shardline.results.continuing import choose
from shardline.results.gc import find_garbage
from shardline.results.outcomes import outcomes_of
from shardline.results.staleness import explain
from shardline.results.verify_runs import verify_run
from shardline.results.waiting import differ_in_length, shorter_runs
from shardline.supervision.attempt_log import (
    begin_attempt,
    own_attempts,
    read_attempts,
    record_resumed_step,
)
from tests.support.fake_project import RUNS

EPOCHS = "trainer.max_epochs"
LONG = {**RUNS[1], "name": "long", EPOCHS: 30}


@pytest.fixture
def short(fake):
    """A project with a run of 20 epochs of 10 steps, and a longer one."""
    fake.rows = [{**RUNS[1], "name": "short", EPOCHS: 20}, dict(LONG)]
    return fake


def work_of(run):
    return Path("store/work") / run.id


def save(run, step=200, *, ranks=1, document=None, is_known=True, milestone=False, **bound):
    """Leave a state as a training leaves it, with what it has recorded."""
    document = document or run.document
    work = work_of(run)
    known = Bound(**{"reasons": [], "is_within": False, "epoch_end": step, "planned": 200, **bound})
    with saving(
        work / "checkpoints", step=step, epoch=step // 10, identity=digest(document),
        world_size=ranks, keep=9, bound=known if is_known else None, milestone=milestone,
    ) as scratch:  # fmt: skip
        (scratch / "state.pt").write_bytes(b"state")
    lines = [{"step": step, "epoch": 0, "wall_s": float(step)} for step in range(10, step + 10, 10)]
    (work / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(ResultsLayout(root=Path()).run(run.id) / "identity.json", document)
    return work


def chosen(fake, name="long", **options):
    project = fake.load()
    return choose(project, project.named_runs()[name], **options)


def test_a_longer_run_continues_the_newest_state_of_the_shorter_one(short):
    run = short.run("short")
    save(run, 100)
    save(run, 200)
    assert str(chosen(short)) == (
        f"continues short ({run.id}) from its step 200: 200 steps, 200 s and 0.0556 device hours are not trained again"
    )
    assert str(chosen(short, own_step=200)) == "", "the run is as far itself"
    project = short.load()
    assert str(explain(project, project.named_runs()["long"]).length).startswith("continues short")


def test_a_shorter_run_takes_a_state_of_a_longer_one_up_to_its_end(short):
    run = short.run("long")
    save(run, 210, planned=300)
    assert chosen(short, "short").saved is None
    save(run, 150, planned=300)
    assert chosen(short, "short").saved.step == 150
    save(run, 200, planned=300)
    assert chosen(short, "short").saved.step == 200, "a milestone at its end seals it"
    for row in short.rows:
        row["trainer.val_check_interval"] = 3
    run = short.run("long")
    save(run, 200, planned=300)
    save(run, 150, planned=300)
    assert chosen(short, "short").saved.step == 150, "only the end of a training validates there"


def test_a_shorter_run_ends_with_a_milestone_of_a_longer_one(short):
    run = short.run("long")
    save(run, 200, planned=300)
    found = chosen(short, "short")
    assert (found.saved.step, found.is_end) == (200, True)
    assert str(found) == (
        f"ends with the state of long ({run.id}) after step 200: 200 steps, 200 s and 0.0556 device hours are not "
        "trained again"
    )
    save(run, 300, planned=300)  # its own end
    assert chosen(short, "short").saved.step == 200


AT_STEP = {EPOCHS: -1, "trainer.max_steps": 200}
BEYOND = {EPOCHS: -1, "trainer.max_steps": 201}
WITHIN = {"is_within": True, "epoch_end": 205}


@pytest.mark.parametrize(
    ("settings", "bound", "step"),
    [
        ({}, {"is_within": True}, None),
        ({}, {"reasons": ["a callback reads it"]}, None),
        ({"trainer.val_check_interval": 5}, {}, None),
        ({"schedule.name": "cosine"}, {}, None),
        ({"schedule.name": "cosine", "schedule.epochs": 30}, {}, 200),
        ({"schedule.name": "wsd", "schedule.decay_steps": 50}, {}, None),
        ({EPOCHS: -1, "trainer.max_steps": 200}, {}, 200),
        ({EPOCHS: -1, "trainer.max_steps": 200, "trainer.validate_every_epochs": 2}, {}, None),
        ({"trainer.val_check_interval": 5}, {"is_validated": True}, 200),
        ({**AT_STEP, "trainer.validate_every_epochs": 2}, {"is_validated": True}, 200),
        (AT_STEP, {**WITHIN, "of_cut": []}, 200),
        (AT_STEP, WITHIN, None),
        (AT_STEP, {**WITHIN, "of_cut": ["it reads the length"]}, None),
        (BEYOND, {**WITHIN, "of_cut": []}, 200),
        (BEYOND, WITHIN, None),
        (BEYOND, {**WITHIN, "of_cut": ["it reads the length"]}, None),
        ({**BEYOND, "trainer.max_steps": 205}, {**WITHIN, "of_cut": ["it reads the length"]}, 200),
    ],
)  # fmt: skip
def test_a_shorter_run_ends_with_a_state_of_its_own_kind_only(short, settings, bound, step):
    lengths = (EPOCHS, "trainer.max_steps")
    short.rows[0] |= settings
    short.rows[1] |= {key: value for key, value in settings.items() if key not in lengths}
    save(short.run("long"), 200, **{"planned": 300, **bound})
    saved = chosen(short, "short").saved
    assert (saved and saved.step) == step


@pytest.mark.parametrize(
    ("settings", "bound", "reason"),
    [
        (
            {"trainer.val_check_interval": 7},
            {},
            "its state of step 200 has no validation, which the end of a training has",
        ),
        (AT_STEP, {**WITHIN, "of_cut": ["Net reads trainer.is_last_batch"]}, "Net reads trainer.is_last_batch"),
        (AT_STEP, WITHIN, "an earlier Shardline saved its state, without what an end within an epoch changes"),
    ],
)  # fmt: skip
def test_why_and_the_log_say_why_a_milestone_does_not_end_a_shorter_run(
    short, caplog, settings, bound, reason
):
    caplog.set_level("INFO")
    short.rows[0] |= settings
    short.rows[1] |= {key: value for key, value in settings.items() if "val_check" in key}
    run = short.run("long")
    sentence = f"does not end with a state of long ({run.id}), since {reason}"
    save(run, 150, planned=300)
    save(run, 200, **{"planned": 300, **bound})
    project = short.load()
    shorter = project.named_runs()["short"]
    begin = f"continues long ({run.id}) from its step 150"
    for found in (str(chosen(short, "short")), explain(project, shorter).length):
        assert found.startswith(begin)
        assert found.endswith(sentence)
    continue_shorter(project.part(runs=[shorter.id]), shorter)
    assert sentence in caplog.text


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        ({"reasons": ["its training was stopped early"]}, "its training was stopped early"),
        ({"ranks": 2}, "2 ranks trained it, not 1"),
        ({"is_known": False}, "an earlier Shardline saved its state"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_a_state_that_a_longer_training_does_not_have_is_not_continued(short, bound, sentence):
    run = short.run("short")
    save(run, **bound)
    found = chosen(short)
    assert found.saved is None
    assert str(found).startswith(f"does not continue short ({run.id}), since {sentence}")
    save(run, 100)
    assert chosen(short).saved.step == 100, "a state before may do"


def test_every_other_difference_is_another_training(short):
    save(short.run("short"))
    for key, value in {"seed": 3, "optim.lr": 0.3, "trainer.min_epochs": 2, "devices": 2}.items():
        short.rows[1] = {**LONG, key: value}
        assert chosen(short) == chosen(short, own_step=10**9), key
        assert str(chosen(short)) == ""
    short.rows[1] = {**LONG, EPOCHS: -1, "trainer.max_steps": 999}
    assert chosen(short).saved.step == 200


def test_a_training_with_other_ranks_for_a_while_is_not_continued(short):
    work = save(short.run("short"))
    number = begin_attempt(work)
    record_resumed_step(work, number, 0, {}, world=4)
    assert str(chosen(short)).endswith("since 4 ranks trained a part of it, not 1")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"run": "b" * 12}, "continued.run"),
        ({"step": 900}, "continued.step is 900, after the last step 300"),
    ],
)
def test_verify_looks_at_the_record_of_what_was_continued(short, changes, problem):
    run = short.run("long")
    short.seal_all()
    path = run.folder / "provenance.json"
    record = json.loads(path.read_text())
    del record["sha256"]
    of = {"run": "a" * 12, "identity": "a" * 64, "step": 200, "seconds": 1.0, "device_hours": 0.1}
    write_json(path, seal({**record, "training": {"steps": 300}, "continued": {**of, **changes}}))
    problems = verify_run(short.load().layout, run.id).problems
    assert len(problems) == bool(problem)
    assert problem in " ".join(problems)


def test_the_reason_names_schedule_divergence_and_what_was_deleted(short):
    run = short.run("short")
    work = save(run)
    (work / "divergence.json").write_text("{}")
    assert str(chosen(short)).endswith("since its training diverged, and steps were changed")
    short.config["defaults"]["schedule"] = {"name": "cosine"}
    save(short.run("short"))
    assert "schedule.name=cosine is another learning rate over another length" in str(chosen(short))
    del short.config["defaults"]["schedule"]
    short.seal_run(short.run("short"))
    for saved in list_saved(work / "checkpoints"):
        (saved.path / "manifest.json").unlink()
    assert str(chosen(short)).endswith("since its training checkpoints are deleted")


@pytest.mark.parametrize(
    ("short_schedule", "schedule", "at", "step"),
    [
        ({"name": "linear", "epochs": 50}, {"name": "linear", "epochs": 50}, 200, 200),
        ({"name": "linear", "steps": 900}, {"name": "linear", "steps": 900}, 200, 200),
        ({"name": "linear", "epochs": 50}, {"name": "linear", "epochs": 60}, 200, None),
        # the branch decays from step 250 on, the shorter run of a kind from step 150 on
        ({"name": "constant"}, {"name": "wsd", "decay_steps": 50}, 200, 200),
        ({"name": "wsd", "decay_steps": 50}, {"name": "wsd", "decay_steps": 50}, 150, 150),
        ({"name": "wsd", "decay_steps": 50}, {"name": "wsd", "decay_steps": 50}, 160, None),
    ],
    ids=str,
)
def test_schedules_that_are_equal_up_to_a_state_are_continued(
    short, short_schedule, schedule, at, step
):
    for row, table in zip(short.rows, (short_schedule, schedule), strict=True):
        row |= {f"schedule.{key}": value for key, value in table.items()}
    save(short.run("short"), at)
    saved = chosen(short).saved
    assert (saved and saved.step) == step


def test_a_model_that_reads_the_length_is_not_continued(short):
    for row in short.rows:
        row |= {"dataset": "rows", "model": "mypkg.models:Net"}
    save(short.run("short"))
    assert chosen(short).saved
    text = (
        "class Net:\n    def training_step(self, batch):\n        return self.trainer.max_epochs\n"
    )
    short.workspace.write("mypkg/models.py", text)
    save(short.run("short"))
    found = str(chosen(short))
    assert found.endswith(
        "since mypkg.models:Net reads self.trainer.max_epochs, which a longer training changes"
    )
    project = short.load()
    assert shorter_runs(project, lambda run: False) == {}, "nothing waits for it"


def test_a_shorter_run_that_failed_before_its_first_state_is_named(short, caplog):
    caplog.set_level("INFO")
    run = short.run("short")
    work = save(run)
    shutil.rmtree(work / "checkpoints")
    assert str(chosen(short)) == "", "it has not begun"
    begin_attempt(work)
    project = short.load()
    longer = project.named_runs()["long"]
    continue_shorter(project.part(runs=[longer.id]), longer)
    sentence = f"long does not continue short ({run.id}), since it has saved no training checkpoint"
    assert sentence in caplog.text
    assert "long trains from step 0" in caplog.text


def test_a_script_is_not_continued_and_why_names_the_reason(short, caplog):
    caplog.set_level("INFO")
    short.workspace.write("train.py", "print(1)\n")
    for row in short.rows:
        row["model"] = "script: train.py"
    run = short.run("short")
    assert str(chosen(short)) == "", "nothing was trained"
    save(run)
    project = short.load()
    longer = project.named_runs()["long"]
    sentence = (
        f"does not continue short ({run.id}), since a training script reads its settings itself, so nothing shows what "
        "else the length changes"
    )
    assert explain(project, longer).length == sentence
    assert str(chosen(short, "short")) == ""
    continue_shorter(project.part(runs=[longer.id]), longer)
    assert f"long {sentence}" in caplog.text
    assert "long trains from step 0" in caplog.text
    assert str(chosen(short, own_step=9)) == ""
    assert shorter_runs(project, lambda run: False) == {}, "nothing waits for it"


def test_in_one_table_each_run_waits_for_the_longest_shorter_one(short):
    short.rows += [{**LONG, "name": "longer", EPOCHS: 40}, {**LONG, "name": "other", "seed": 7}]
    project = short.load()
    names = {run.id: run.name for run in project.runs.values()}

    def waits(is_made=lambda run: False):
        found = shorter_runs(project, is_made)
        return {names[key]: run.name for key, run in found.items()}

    assert waits() == {"long": "short", "longer": "long"}
    assert waits(lambda run: run.name == "long") == {"long": "short", "longer": "short"}, (
        "it failed"
    )
    short.seal_run(project.named_runs()["short"])
    assert waits() == {"longer": "long"}
    short.config["runtime"] = {"checkpoint": {"after_sealing": "none"}}
    assert shorter_runs(short.load(), lambda run: False) == {}, "no state stays to continue"


def test_runs_of_one_length_wait_for_none_and_no_document_is_digested(short, monkeypatch):
    short.rows += [{**one, "name": f"{one['name']}-again", "seed": 7} for one in short.rows]
    monkeypatch.setattr(waiting, "rest_of", lambda document: "")
    assert differ_in_length(short.load())
    for row in short.rows:
        row[EPOCHS] = 10
    project = short.load()
    assert not differ_in_length(project)
    monkeypatch.delattr(waiting, "rest_of")
    assert shorter_runs(project, lambda run: False) == {}
    # a run that only decays may wait for one of its length
    short.rows[-1] |= {"schedule.name": "wsd", "schedule.decay_steps": 20}
    assert differ_in_length(short.load())


def test_a_branch_waits_for_a_trunk_with_a_milestone_on_its_way(short):
    wsd = {"schedule.name": "wsd", "schedule.decay_steps": 20}
    short.rows = [
        {**LONG, "name": "trunk", EPOCHS: 40, "checkpoint.milestones": "[[10, 20, 40]]"},
        *({**LONG, **wsd, "name": f"decay-{epochs}", EPOCHS: epochs} for epochs in (12, 24, 44)),
        {**LONG, **wsd, "name": "decay-8", EPOCHS: 8},
    ]
    project = short.load()
    names = {run.id: run.name for run in project.runs.values()}
    found = {names[key]: run.name for key, run in shorter_runs(project, lambda run: False).items()}
    assert found == {"decay-12": "trunk", "decay-24": "trunk", "decay-44": "trunk"}


def test_of_runs_that_all_decay_the_longest_with_milestones_is_the_trunk(short):
    wsd = {EPOCHS: -1, "schedule.name": "wsd", "schedule.decay_steps": 20}
    kept = {"checkpoint.milestones": "{steps: [40, 90, 150]}"}
    short.rows = [
        {**LONG, **wsd, **kept, "name": f"to-{steps}", "trainer.max_steps": steps}
        for steps in (30, 110, 180, 230)
    ]
    project = short.load()
    names = {run.id: run.name for run in project.runs.values()}
    found = {names[key]: run.name for key, run in shorter_runs(project, lambda run: False).items()}
    assert found == {"to-110": "to-230", "to-180": "to-230"}, (
        "nothing of 30 steps is in a milestone"
    )


def test_the_table_says_that_a_run_waited_for_one_that_failed(short):
    project = short.load()
    run, longer = (project.named_runs()[name] for name in ("short", "long"))
    assert outcomes_of(project)[longer.id]["cause"] == "the training has not started"
    failure = {
        "sentence": "no luck", "rule": "train", "key": run.id, "when": "2026-11-28T00:00:00Z", "code": 1,
        "is_final": False, "log": "logs/train.log",
    }  # fmt: skip
    write_json(project.layout.failures / "train" / f"{run.id}.json", failure)
    found = outcomes_of(project)[longer.id]
    assert found["cause"] == "the training waited for short, to continue it, and short failed"
    assert "continues what short has saved, or begins at step 0" in found["remedy"]


def test_a_job_takes_over_what_the_shorter_training_has_recorded(short, caplog):
    caplog.set_level("INFO")
    run = short.run("short")
    work = save(run)
    begin_attempt(work)
    (work / "ledger").mkdir()
    (work / "ledger/from-00000000-rank-00000-of-00001.jsonl").write_text("")
    project = short.load()
    longer = project.named_runs()["long"]
    own = work_of(longer)
    begin_attempt(own)  # failed before its first state
    for _ in range(2):  # as after a kill
        continue_shorter(project.part(runs=[longer.id]), longer)
        (newest,) = list_saved(own / "checkpoints")
        assert (newest.step, newest.identity) == (200, digest(longer.document))
        assert newest.continued.run == run.id
        attempts = read_attempts(own)
        assert [one.run or None for one in attempts] == [run.id, None]
        assert attempts[0].end == "killed"
        assert len(own_attempts(own)) == 1
    assert (own / "metrics.jsonl").read_text() == (work / "metrics.jsonl").read_text()
    assert [path.name for path in (own / "ledger").iterdir()]
    assert f"long continues short ({run.id}) from its step 200" in caplog.text
    assert list_saved(work / "checkpoints")[0].identity == digest(run.document), "nothing is moved"


def test_milestones_of_the_shorter_run_are_taken_over_by_link(short, caplog):
    caplog.set_level("INFO")
    short.rows[1]["checkpoint.milestones"] = "[[5, 10, 12, 15, 18, 20, 25]]"
    run = short.run("short")
    save(run, 50, milestone=True)
    save(run, 100)  # which the shorter run does not declare
    save(run, 120, is_within=True)
    save(run, 150, milestone=True, reasons=["a callback reads it"])
    save(run, 180, milestone=True)
    work = save(run, 200)
    (work / "checkpoints/step-00000180/state.pt").write_bytes(b"other")
    project = short.load()
    longer = project.named_runs()["long"]
    for _ in range(2):  # as after a kill
        continue_shorter(project.part(runs=[longer.id]), longer)
        found = {one.step: one for one in list_saved(work_of(longer) / "checkpoints")}
        assert {step: one.milestone for step, one in found.items()} == {
            50: True,
            100: True,
            200: False,
        }
        for step, one in found.items():
            assert (one.identity, one.continued.step) == (digest(longer.document), step)
            assert one.continued.seconds == step
            source = work / "checkpoints" / one.path.name / "state.pt"
            assert source.samefile(one.path / "state.pt"), "no copy"
        (work_of(longer) / "checkpoints/step-00000200/manifest.json").unlink()
    assert "long takes over the milestones of steps 50, 100" in caplog.text
    begin = "long does not take over the milestone of epoch {} of short ({}), since {}"
    for epoch, reason in {
        12: "it has no state there",
        15: "its state there is not continued: a callback reads it",
        18: "its state there is damaged: state.pt has",
    }.items():
        assert begin.format(epoch, run.id, reason) in caplog.text
    assert "epoch 20" not in caplog.text, "it is the state itself, which the training marks"
    assert "epoch 25" not in caplog.text


def test_a_milestone_that_was_taken_over_ends_another_shorter_run(short):
    short.rows += [
        {**LONG, "name": "mid", EPOCHS: 10},
        {**LONG, "name": "decay", EPOCHS: 15, "schedule.name": "wsd", "schedule.decay_steps": 40},
    ]
    short.rows[1]["checkpoint.milestones"] = "[[10]]"
    run = short.run("short")
    save(run, 100, milestone=True)
    save(run, 200)
    project = short.load()
    longer = project.named_runs()["long"]
    continue_shorter(project.part(runs=[longer.id]), longer)
    shutil.rmtree(work_of(run))
    found = chosen(short, "mid")
    assert (found.alike.id, found.saved.step, found.is_end) == (longer.id, 100, True)
    found = chosen(short, "decay")
    assert (found.alike.id, found.saved.step) == (longer.id, 100)


def test_a_damaged_state_is_left_for_the_one_before(short, caplog):
    run = short.run("short")
    work = save(run, 100)
    save(run, 200)
    (work / "checkpoints/step-00000200/state.pt").write_bytes(b"other")
    project = short.load()
    longer = project.named_runs()["long"]
    continue_shorter(project.part(runs=[longer.id]), longer)
    assert [one.step for one in list_saved(work_of(longer) / "checkpoints")] == [100]
    assert "state.pt has BLAKE3 digest" in caplog.text


def test_states_that_a_run_of_the_config_may_continue_are_no_garbage(short):
    run = short.run("short")
    save(run)
    short.rows = [dict(LONG)]
    path = short.load().layout.work(run.id)

    def garbage():
        return {item.path for item in find_garbage(short.load(), short.config["datasets"])}

    assert path not in garbage()
    short.seal_run(short.run("long"))
    assert path in garbage()
