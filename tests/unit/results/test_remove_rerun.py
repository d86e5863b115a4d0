"""`shardline rm` removes one run and nothing of others; `rerun` compares a training that was done again."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from safetensors.numpy import save_file

from shardline.core.files import write_json
from shardline.pipeline.links import publish
from shardline.pipeline.terminal_rows import final_rows
from shardline.results.accept.candidates import find_candidate
from shardline.results.accept.take import accept_run
from shardline.results.rerun import compare
from shardline.results.verify_names import verify_names
from shardline.results.verify_runs import verify_run
from shardline.supervision.attempt_log import begin_attempt
from shardline.supervision.watchdog.heartbeats import heartbeat_file
from tests.support.command_line import shardline
from tests.support.fake_project import WEIGHTS, FakeProject


@pytest.fixture
def sealed(fake: FakeProject) -> FakeProject:
    """A project of two runs, the first of which has all that a run may have."""
    fake.rows = [fake.rows[1], {**fake.rows[1], "name": "other", "seed": 3}]
    project = fake.seal_all()
    run = fake.run("flat")
    publish(project)
    fake.begin_training(run, 3)
    for path in (
        f"store/work/{run.id}-rerun-1/x", f"store/tensorboard/{run.id}/x", f"results/preflight/{run.id}.json",
        f"results/reruns/{run.id}/1/model.safetensors", f"store/failures/train/{run.id}.json",
    ):  # fmt: skip
        fake.workspace.write(path, "x" * 100)
    return fake


def files() -> set[str]:
    """All files and links of results and store."""
    return {
        str(path) for top in ("results", "store") for path in Path(top).rglob("*")
        if path.is_symlink() or path.is_file()
    }  # fmt: skip


def test_rm_lists_and_with_delete_removes_one_run_alone(sealed: FakeProject) -> None:
    run, before = sealed.run("flat"), files()
    listed = shardline("rm", "flat")
    assert listed.exit_code == 0
    assert "`shardline rm --delete` deletes them" in listed.stdout
    assert files() == before
    asked = shardline("rm", "flat", "--delete")
    assert (asked.exit_code, files()) == (1, before)
    assert (
        "rm --delete asks before it deletes, but standard input is not a terminal" in asked.stderr
    )
    done = shardline("rm", run.id, "--delete", "--yes")
    assert done.exit_code == 0, done.stderr
    assert "freed" in done.stdout
    gone = before - files()
    assert gone == {path for path in before if run.id in path or path.endswith("latest/flat")}
    project = sealed.load()
    assert not project.named_runs()["flat"].has_model
    assert project.named_runs()["other"].is_sealed
    assert verify_names(project.layout, deep=True).problems == []
    again = shardline("rm", "flat")
    assert (again.exit_code, "flat has no files" in again.stderr) == (2, True)


def test_rm_takes_several_and_earlier_ids_and_names_what_it_does_not_know(
    sealed: FakeProject,
) -> None:
    old = sealed.run("flat")
    sealed.rows[0]["optim.lr"] = 0.3
    sealed.load()
    result = shardline("rm", old.id, "other", "--delete", "--yes", "--json")
    found = json.loads(result.stdout)
    assert found["deleted"]
    assert found["bytes"] > 0
    assert not list(Path("results/runs").iterdir())
    unknown = shardline("rm", "flta")
    assert (unknown.exit_code, 'did you mean "flat"' in unknown.stderr) == (2, True)


def test_rm_keeps_what_another_result_has_accepted(sealed: FakeProject) -> None:
    old = sealed.run("flat")
    sealed.rows[0]["optim.lr"] = 0.3
    project = sealed.load()
    new = project.named_runs()["flat"]
    accept_run(project, find_candidate(new), reason="harmless", with_evaluation=False)
    shown = shardline("rm", old.id, "--delete", "--yes")
    assert (
        f"flat ({new.id}) has accepted one of these runs; the accepted files stay" in shown.stdout
    )
    assert not old.folder.exists()
    assert verify_run(project.layout, new.id).problems == []


def test_rm_refuses_a_run_that_trains_and_a_running_snakemake(sealed: FakeProject) -> None:
    run, before = sealed.run("flat"), files()
    work = run.layout.work(run.id)
    with FileLock(work / "lock"):
        result = shardline("rm", "flat", "--delete", "--yes")
    assert "is being trained; wait for its end, or stop it, before it is removed" in result.stderr
    (work / "lock").unlink(missing_ok=True)
    begin_attempt(work)
    write_json(heartbeat_file(work, 0), {"step": 3, "state": "R"})
    result = shardline("rm", "flat")
    assert (result.exit_code, "is being trained" in result.stderr) == (1, True)
    shutil.rmtree(heartbeat_file(work, 0).parent)
    write_json(Path(".snakemake/locks/0.input.lock"), {})
    result = shardline("rm", "flat", "--delete", "--yes")
    assert (result.exit_code, "Snakemake may be running" in result.stderr) == (1, True)
    assert before <= files()


def test_rm_does_not_follow_a_link_out_of_the_results(sealed: FakeProject) -> None:
    run = sealed.run("flat")
    sealed.workspace.write("mine/kept.txt", "x")
    shutil.rmtree(run.folder)
    run.folder.symlink_to(Path("mine").absolute())
    assert shardline("rm", "flat", "--delete", "--yes").exit_code == 0
    assert not os.path.lexists(run.folder)
    assert Path("mine/kept.txt").exists()


def test_a_rerun_is_compared_bit_by_bit(sealed: FakeProject) -> None:
    run = sealed.run("flat")
    folder = Path("again")
    shutil.copytree(run.folder, folder)
    same = compare(run, "flat", folder)
    assert (same.is_equal, same.tensors, same.values, same.other_values) == (True, 2, 1, ())
    other = {**WEIGHTS, "layer.bias": WEIGHTS["layer.bias"] + np.float32([0, 0.5, 0])}
    save_file(other, folder / "model.safetensors")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "val_loss": 0.25}\n')
    differing = compare(run, "flat", folder)
    assert (differing.is_equal, differing.other_tensors) == (False, ("layer.bias",))
    assert differing.largest == 0.5
    assert differing.other_values == ("val_loss at step 2 0.5 -> 0.25",)
    half = {"layer.weight": WEIGHTS["layer.weight"].astype(np.float16)}
    save_file(half, folder / "model.safetensors")
    lacking = compare(run, "flat", folder)
    assert (lacking.other_tensors, lacking.largest) == (("layer.bias", "layer.weight"), None)
    negative = {name: -tensor for name, tensor in WEIGHTS.items()}  # -0.0 has other bits
    save_file(negative, folder / "model.safetensors")
    assert not compare(run, "flat", folder).is_equal


def test_a_rerun_needs_a_trained_run(fake: FakeProject) -> None:
    fake.load()
    result = shardline("rerun", "flat")
    assert (result.exit_code, "is not trained yet" in result.stderr) == (2, True)


def test_the_table_says_that_nothing_was_trained(sealed: FakeProject) -> None:
    project = sealed.load()
    run = project.named_runs()["flat"]
    path = run.folder / "provenance.json"
    for steps, is_noted in ((10, True), (20, False)):
        training = {"resumed_step": 10, "steps": steps}
        write_json(path, {**json.loads(path.read_text()), "training": training})
        (row,) = (one for one in final_rows(project, []) if one["title"] == "flat")
        assert ("nothing was trained" in row["note"]) == is_noted
        if is_noted:
            assert f"`shardline rerun {run.id}` trains the run again" in row["note"]
