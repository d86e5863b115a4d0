"""What gc may delete, and what verify finds: on folders that are really damaged."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from shardline.errors import DataError, ShardlineError
from shardline.files import read_json, write_json
from shardline.upkeep import (
    Verdict,
    check_unlocked,
    delete,
    find_garbage,
    last_results,
    sealed_bytes,
    verify_dataset,
    verify_run,
)
from tests.conftest import Workspace
from tests.unit.test_why import FakeProject

DIGEST = "0123456789ab"


@pytest.fixture
def fake(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> FakeProject:
    monkeypatch.chdir(workspace.path)
    monkeypatch.delenv("SHARDLINE_STORE", raising=False)
    return FakeProject(workspace)


def listed(fake: FakeProject) -> dict[str, str]:
    return {str(item.path): item.reason for item in find_garbage(fake.load())}


def everything() -> set[str]:
    return {str(path) for root in ("results", "store") for path in Path(root).rglob("*")}


# --- gc ---------------------------------------------------------------------------------------


def test_what_the_config_names_is_kept(fake):
    fake.seal_all()
    fake.begin_training(fake.run("net"), steps=1)
    assert listed(fake) == {}


def test_an_edit_makes_garbage_of_exactly_what_it_concerns(fake):
    fake.seal_all()
    old = fake.run("flat")
    fake.begin_training(old, steps=1)
    fake.config["datasets"]["table"]["shards"] = 8
    assert listed(fake) == {
        f"results/runs/{old.id}": "earlier flat",
        f"results/datasets/{old.dataset.id}": "earlier table",
        f"store/datasets/{old.dataset.id}": "earlier table",
        f"store/work/{old.id}": "earlier flat",
    }


def test_a_row_that_is_gone_leaves_its_run_and_dataset(fake):
    fake.seal_all()
    old = fake.run("net")
    del fake.rows[0]
    assert listed(fake) == {
        f"results/runs/{old.id}": "no longer in the config",
        f"results/datasets/{old.dataset.id}": "no longer in the config",
        f"store/datasets/{old.dataset.id}": "no longer in the config",
    }


def test_earlier_evaluations_and_reports_go_and_the_present_ones_stay(fake):
    project = fake.seal_all()
    old = fake.run("flat").evaluation
    fake.config["defaults"]["evaluation"] = {"batch": 7}
    fake.seal_evaluation(fake.run("flat"))
    for report in (project.report, fake.load().report):
        report.parent.mkdir(parents=True)
        report.write_text("page")
    found = listed(fake)
    assert found[str(old)] == "earlier evaluation"
    assert found[str(project.report.parent)] == "earlier report"
    assert str(fake.run("flat").evaluation) not in found
    assert str(fake.load().report.parent) not in found


def test_names_that_bear_no_identity_are_never_listed(fake):
    fake.seal_all()
    for name in (
        "notes",
        "mine-0123",
        f"{DIGEST}-x",
        f"x-{DIGEST}9",
        "x-0123456789AB",
        f"-{DIGEST}",
    ):
        for folder in ("results/runs", "results/datasets", "store/work", "results/reports"):
            (Path(folder) / name).mkdir(parents=True)
    fake.workspace.write("results/notes.txt", "mine")
    fake.workspace.write(f"results/other/x-{DIGEST}/f", "mine")
    assert listed(fake) == {}


def test_the_store_is_where_the_variable_says(fake, monkeypatch, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setenv("SHARDLINE_STORE", str(scratch))
    (scratch / "work" / f"old-{DIGEST}").mkdir(parents=True)
    fake.workspace.write(f"store/work/old-{DIGEST}/f", "another store")
    assert list(listed(fake)) == [f"{scratch}/work/old-{DIGEST}"]


def test_sizes_are_those_of_the_files(fake):
    fake.workspace.write(f"store/work/old-{DIGEST}/a", "x" * 1000)
    fake.workspace.write(f"store/work/old-{DIGEST}/deep/b", "x" * 500)
    assert [item.bytes for item in find_garbage(fake.load())] == [1500]


def test_links_to_nothing_and_to_garbage_are_listed_and_others_are_not(fake):
    fake.seal_all()
    gone, kept = fake.run("flat"), fake.run("net")
    links = Path("results/latest")
    links.mkdir()
    (links / "flat").symlink_to(f"../runs/{gone.id}")
    (links / "net").symlink_to(f"../runs/{kept.id}")
    (links / "lost").symlink_to("../runs/lost")
    (links / "loop").symlink_to("loop")
    Path("results/report").symlink_to("reports/gone")
    (kept.folder / "evaluation.json").symlink_to("evaluations/gone.json")
    fake.rows[1]["seed"] = 2
    found = listed(fake)
    assert found.pop(f"results/runs/{gone.id}") == "earlier flat"
    assert found == {
        "results/report": "link to nothing",
        "results/latest/flat": "link to a listed item",
        "results/latest/loop": "link to nothing",
        "results/latest/lost": "link to nothing",
        f"{kept.folder}/evaluation.json": "link to nothing",
    }


def test_delete_removes_what_is_listed_and_nothing_else(fake):
    fake.seal_all()
    fake.begin_training(fake.run("flat"), steps=1)
    fake.workspace.write("results/runs/notes/mine.txt", "mine")
    before = everything()
    fake.rows[1]["seed"] = 2
    garbage = find_garbage(fake.load())
    doomed = {
        path for path in before for item in garbage if (path + "/").startswith(f"{item.path}/")
    }
    assert len(doomed) > 5
    assert list(delete(garbage)) == garbage
    assert everything() == before - doomed
    assert listed(fake) == {}


def test_links_are_unlinked_and_what_they_point_at_stays(fake, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "precious").write_text("mine")
    (outside / f"precious-{DIGEST}").mkdir()
    fake.load()
    runs = Path("results/runs")
    (runs / f"real-{DIGEST}").mkdir(parents=True)
    (runs / f"real-{DIGEST}" / "link").symlink_to(outside)
    (runs / f"linked-{DIGEST}").symlink_to(outside)
    Path("results/datasets").symlink_to(outside)  # a whole folder elsewhere is not ours to clean
    garbage = find_garbage(fake.load())
    assert sorted(item.path.name for item in garbage) == [f"linked-{DIGEST}", f"real-{DIGEST}"]
    assert sum(item.bytes for item in garbage if "linked" in item.path.name) == 0
    list(delete(garbage))
    assert list(runs.iterdir()) == []
    assert sorted(path.name for path in outside.iterdir()) == ["precious", f"precious-{DIGEST}"]


def test_an_interrupted_deletion_leaves_nothing_that_passes_for_a_result(fake, monkeypatch):
    fake.workspace.write(f"results/runs/net-{DIGEST}/model.safetensors", "x")

    def interrupted(path, ignore_errors=False):
        if not ignore_errors:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(delete(find_garbage(fake.load())))
    assert not Path(f"results/runs/net-{DIGEST}").exists()
    fake.workspace.write(f"results/runs/net-{DIGEST}/model.safetensors", "made again")
    assert len(listed(fake)) == 2
    list(delete(find_garbage(fake.load())))
    assert list(Path("results/runs").iterdir()) == []


def test_what_cannot_be_deleted_is_named(fake, monkeypatch):
    fake.workspace.write(f"store/work/old-{DIGEST}/f", "x")

    def refuse(path, ignore_errors=False):
        if not ignore_errors:
            raise PermissionError(13, "Permission denied", str(path / "f"))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(
        DataError,
        match=rf"work/old-{DIGEST}.deleted/f cannot be deleted \(Permission denied\); mend",
    ):
        list(delete(find_garbage(fake.load())))


def test_the_only_trained_model_of_a_run_is_pointed_out(fake):
    fake.seal_all()
    fake.rows[0]["seed"] = fake.rows[1]["seed"] = 2
    fake.seal_run(fake.run("net"))
    project = fake.load()
    assert last_results(project, find_garbage(project)) == ["flat"]


def test_a_lock_of_snakemake_is_named(fake):
    check_unlocked(fake.workspace.path)
    fake.workspace.write(".snakemake/locks/0.output.lock", "results/x\n")
    with pytest.raises(
        ShardlineError, match=r"^\.snakemake/locks/0\.output\.lock exists, .* `snakemake --unlock`"
    ):
        check_unlocked(fake.workspace.path)


# --- verify -----------------------------------------------------------------------------------


def dataset_verdict(fake: FakeProject) -> Verdict:
    project = fake.load()
    return verify_dataset(project, fake.run("flat").dataset.id)


def shard(fake: FakeProject, number: int = 1) -> Path:
    return Path("store/datasets") / fake.run("flat").dataset.id / f"shard-{number:05d}.safetensors"


def test_an_undamaged_dataset_has_no_problem_and_all_its_bytes_are_read(fake):
    project = fake.seal_all()
    dataset, seen = fake.run("flat").dataset.id, []
    verdict = verify_dataset(project, dataset, seen.append)
    assert verdict.problems == []
    assert verdict.summary == "4 shards, 0.0 MB"
    assert (len(seen), sum(seen)) == (4, sealed_bytes(dataset))


def test_a_flipped_byte_is_found(fake):
    fake.seal_all()
    content = bytearray(shard(fake).read_bytes())
    content[-1] ^= 1
    shard(fake).write_bytes(content)
    (problem,) = dataset_verdict(fake).problems
    assert problem.startswith(f"{shard(fake)} has SHA-256 ")
    assert ", expected " in problem
    assert "; delete results/datasets/table-" in problem


def test_a_truncated_shard_is_found_by_its_size(fake):
    fake.seal_all()
    size = shard(fake).stat().st_size
    shard(fake).write_bytes(shard(fake).read_bytes()[:-10])
    (problem,) = dataset_verdict(fake).problems
    assert problem.startswith(f"{shard(fake)} has {size - 10} bytes, expected {size}; delete")


def test_each_missing_shard_is_found(fake):
    fake.seal_all()
    for number in (0, 3):
        shard(fake, number).unlink()
    problems = dataset_verdict(fake).problems
    assert [problem.partition(",")[0] for problem in problems] == [
        f"{shard(fake, number)} cannot be read (No such file or directory)" for number in (0, 3)
    ]


def test_an_edited_identity_in_the_manifest_is_found(fake):
    fake.seal_all()
    manifest = fake.run("flat").dataset.manifest
    document = read_json(manifest, remedy="")
    document["identity"]["settings"]["shards"] = 5
    write_json(manifest, document)
    (problem,) = dataset_verdict(fake).problems
    assert problem.startswith(f"{manifest}: the digest of its identity is ")
    assert f"expected {fake.run('flat').dataset.digest};" in problem


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"identity": 1, "shards": [{}]}', '{"identity": NaN}']
)
def test_a_manifest_of_another_form_is_a_problem_and_no_crash(fake, content):
    fake.seal_all()
    dataset = fake.run("flat").dataset
    dataset.manifest.write_text(content)
    assert dataset_verdict(fake).problems
    assert sealed_bytes(dataset.id) is None


def run_verdict(fake: FakeProject) -> Verdict:
    return verify_run(fake.run("flat").id)


def edit(path: Path, **changes: object) -> None:
    write_json(path, {**read_json(path, remedy=""), **changes})


def test_an_undamaged_run_has_no_problem(fake):
    fake.seal_all()
    verdict = run_verdict(fake)
    assert (verdict.problems, verdict.summary) == ([], "model, metrics, provenance, 1 evaluation")


def test_a_run_that_is_not_trained_yet_is_no_problem(fake):
    fake.seal_all()
    (fake.run("flat").folder / "model.safetensors").unlink()
    verdict = run_verdict(fake)
    assert (verdict.problems, verdict.summary) == ([], "not trained yet")


def test_an_edited_identity_is_found(fake):
    fake.seal_all()
    folder = fake.run("flat").folder
    edit(folder / "identity.json", model="shardline.models.mlp:MLP")
    problems = run_verdict(fake).problems
    assert problems[0].startswith(f"{folder}/identity.json: its digest is ")
    assert (
        f", expected {fake.run('flat').digest}; delete {folder} and run the pipeline again"
        in problems[0]
    )


def test_edited_settings_are_found(fake):
    fake.seal_all()
    run = fake.run("flat")
    edit(run.folder / "run.json", settings={**run.settings, "seed": 99})
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{run.folder}/run.json: settings are not those of identity.json;")


def test_a_model_of_another_run_is_found_by_its_metadata(fake):
    fake.seal_all()
    model = fake.run("flat").folder / "model.safetensors"
    save_file({"w": np.zeros(3, np.float32)}, model, metadata={"identity": "f" * 64})
    problems = run_verdict(fake).problems
    assert problems[0].startswith(
        f"{model}: identity in its metadata is {'f' * 64}, expected {fake.run('flat').digest}"
    )
    assert problems[1].startswith(f"{model}: its SHA-256 is ")


def test_a_truncated_model_is_found(fake):
    fake.seal_all()
    model = fake.run("flat").folder / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-4])
    assert run_verdict(fake).problems[0].startswith(f"{model} is not a whole safetensors file (")


def test_a_flipped_weight_is_found_by_the_provenance(fake):
    fake.seal_all()
    model = fake.run("flat").folder / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{model}: its SHA-256 is ")


def test_metrics_that_do_not_parse_are_found(fake):
    fake.seal_all()
    metrics = fake.run("flat").folder / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n{"st\n')
    assert (
        run_verdict(fake)
        .problems[0]
        .startswith(f"{metrics}, line 2 is not a JSON object with a step;")
    )


def test_another_manifest_than_the_training_read_is_found(fake):
    fake.seal_all()
    manifest = fake.run("flat").dataset.manifest
    manifest.write_text(json.dumps(read_json(manifest, remedy="")))
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{manifest}: its SHA-256 is ")
    assert "; bring back the manifest of the training, or delete results/runs/flat-" in problem
    manifest.unlink()
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{manifest} cannot be read (No such file or directory), expected ")


def test_provenance_without_file_digests_is_accepted(fake):
    fake.seal_all()
    path = fake.run("flat").folder / "provenance.json"
    document = read_json(path, remedy="")
    del document["files"]
    write_json(path, document)
    assert run_verdict(fake).problems == []


def test_an_edited_evaluation_is_found(fake):
    fake.seal_all()
    run = fake.run("flat")
    edit(run.evaluation, identity={**run.evaluation_document, "settings": {"split": "train"}})
    (problem,) = run_verdict(fake).problems
    assert problem.startswith(f"{run.evaluation}: the digest of its identity is ")
    assert problem.endswith(
        f"expected {run.evaluation_id}; delete {run.evaluation} and run the pipeline again"
    )


@pytest.mark.parametrize("name", ["run.json", "identity.json", "provenance.json"])
@pytest.mark.parametrize("content", ["", "[]", '{"dataset": 3, "files": 3}'])
def test_a_file_of_another_form_is_a_problem_and_no_crash(fake, name, content):
    fake.seal_all()
    (fake.run("flat").folder / name).write_text(content)
    assert run_verdict(fake).problems
