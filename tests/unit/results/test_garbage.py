"""What gc may delete: on folders that are really there."""

import shutil
from pathlib import Path

import pytest

from shardline.checkpoints.folder import saving
from shardline.core.package import check_unlocked
from shardline.core.visible import from_here
from shardline.errors import DataError, ShardlineError
from shardline.results.gc import Garbage, delete, find_garbage, last_results
from tests.support.fake_project import DIGEST, FakeProject


def find(fake: FakeProject) -> list[Garbage]:
    return find_garbage(fake.load(), fake.config["datasets"])


def listed(fake: FakeProject) -> dict[str, str]:
    layout = fake.load().layout
    return {layout.name_of(item.path): item.reason for item in find(fake)}


def everything() -> set[str]:
    return {str(path) for root in ("results", "store") for path in Path(root).absolute().rglob("*")}


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


def test_what_tensorboard_would_show_of_an_earlier_run_may_go(fake):
    fake.seal_all()
    fake.remember("run", "net")
    for folder in (fake.run("net").id, DIGEST, "mine"):
        Path("store/tensorboard", folder).mkdir(parents=True)
    assert listed(fake) == {f"store/tensorboard/{DIGEST}": "earlier net"}


def test_a_row_that_is_gone_leaves_its_run_and_no_dataset_that_the_config_still_has(fake):
    fake.seal_all()
    old = fake.run("net")
    del fake.rows[0]
    assert listed(fake) == {f"results/runs/{old.id}": "net, no longer in the config"}
    del fake.config["datasets"]["rows"]
    assert listed(fake) == {
        f"results/runs/{old.id}": "net, no longer in the config",
        f"results/datasets/{old.dataset.id}": "rows, no longer in the config",
        f"store/datasets/{old.dataset.id}": "rows, no longer in the config",
    }


@pytest.mark.parametrize("keep", ["none", "last", "all"])
def test_what_a_sealed_run_keeps_beyond_the_setting_may_go(fake, keep):
    fake.config["runtime"] = {
        **fake.config.get("runtime", {}),
        "checkpoint": {"after_sealing": keep},
    }
    fake.seal_all()
    runs = {
        name: Path("store/work") / fake.run(name).id / "checkpoints" for name in ("net", "flat")
    }
    for folder in runs.values():
        for step in (10, 20):
            known = {"best-1.safetensors": {"bytes": 1, "blake3": ""}} if step == 20 else {}
            with saving(
                folder, step=step, epoch=0, identity="a" * 64, world_size=1, keep=2, best=known
            ) as scratch:
                (scratch / "state.pt").write_bytes(b"state")
            (folder / "best-1.safetensors").write_bytes(b"w")
        (folder / "best-0.safetensors").write_bytes(b"w")
    (fake.run("flat").folder / "provenance.json").unlink()  # not sealed as a whole
    gone = {"all": [], "last": ["best-0.safetensors", "step-00000010"], "none": [""]}[keep]
    reason = "training checkpoint of net, which is sealed"
    assert listed(fake) == {str(runs["net"] / name): reason for name in gone}
    list(delete(find(fake)))
    assert listed(fake) == {}
    assert runs["flat"].exists()
    assert runs["net"].exists() == (keep != "none")


def test_a_download_that_no_dataset_reads_may_go(fake):
    sha256 = "ab" * 32
    files = [{"url": "https://example.org/a.csv", "sha256": sha256, "bytes": 8}]
    source = {"type": "csv", "files": files, "label": "y", "features": ["x"], "num_classes": 2}
    fake.workspace.write(f"store/downloads/{sha256}/a.csv", "x,y\n1,0\n")
    fake.workspace.write(f"store/downloads/{'cd' * 32}/b.csv", "x,y\n1,0\n")
    before = fake.config["datasets"]["table"]
    fake.config["datasets"]["table"] = {"source": source, "shards": 2}
    assert list(listed(fake).values()) == ["download that no dataset reads"]
    assert f"store/downloads/{'cd' * 32}" in listed(fake)
    fake.config["datasets"]["table"] = before
    assert len(listed(fake)) == 2
    fake.config["datasets"]["idle"] = {"source": source, "shards": 2}
    assert listed(fake) == {}, "what a dataset without runs reads is not known"


def test_of_an_unused_dataset_every_folder_stays(fake):
    fake.config["datasets"]["idle-1"] = {**fake.config["datasets"]["rows"]}
    names = {"idle-1": "a" * 12, "idle": "b" * 12, "idle-1-2": "c" * 12, "1": "d" * 12}
    for name, identity in names.items():
        fake.remember("dataset", name, identity)
        fake.workspace.write(f"results/datasets/{identity}/manifest.json", "{}")
        fake.workspace.write(f"store/datasets/{identity}/f", "x")
    fake.remember("run", "idle-1", "a" * 12)  # no dataset
    fake.workspace.write(f"results/runs/{'a' * 12}/run.json", "{}")
    fake.workspace.write(f"store/datasets/{'a' * 12}.deleted/f", "x")  # no whole one
    gone = [f"{root}/datasets/{each * 12}" for root in ("results", "store") for each in "bcd"]
    assert sorted(listed(fake)) == sorted(
        [*gone, f"results/runs/{'a' * 12}", f"store/datasets/{'a' * 12}.deleted"]
    )


def test_a_store_holds_what_other_projects_made_and_that_stays(fake):
    for folder in ("datasets", "work", "tensorboard"):
        fake.workspace.write(f"store/{folder}/{DIGEST}/f", "x")
        fake.workspace.write(f"store/{folder}/{'e' * 12}/f", "x")
    fake.remember("dataset", "ours", "e" * 12)
    assert listed(fake) == {f"store/datasets/{'e' * 12}": "ours, no longer in the config"}
    fake.remember("run", "ours", "e" * 12)
    assert len(listed(fake)) == 3


def test_earlier_evaluations_and_reports_go_and_the_present_ones_stay(fake):
    project = fake.seal_all()
    old = fake.run("flat").evaluation
    fake.config["defaults"]["evaluation"] = {"batch": 7}
    fake.seal_evaluation(fake.run("flat"))
    for report in (project.report, fake.load().report):
        report.parent.mkdir(parents=True)
        report.write_text("page")
    found = listed(fake)
    assert found[from_here(str(old))] == "earlier evaluation"
    assert found[from_here(str(project.report.parent))] == "earlier report"
    assert from_here(str(fake.run("flat").evaluation)) not in found
    assert from_here(str(fake.load().report.parent)) not in found


def test_names_that_bear_no_identity_are_never_listed(fake):
    fake.seal_all()
    for name in (
        "notes",
        "mine-0123",
        f"{DIGEST}-x",
        f"x-{DIGEST}",
        f"{DIGEST}9",
        "0123456789AB",
    ):
        for folder in ("results/runs", "results/datasets", "store/work", "results/reports"):
            (Path(folder) / name).mkdir(parents=True)
    fake.workspace.write("results/notes.txt", "mine")
    fake.workspace.write(f"results/other/{DIGEST}/f", "mine")
    assert listed(fake) == {}


def test_the_store_is_where_the_variable_says(fake, monkeypatch, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setenv("SHARDLINE_STORE", str(scratch))
    fake.remember("run", "old")
    (scratch / "work" / DIGEST).mkdir(parents=True)
    fake.workspace.write(f"store/work/{DIGEST}/f", "another store")
    assert list(listed(fake)) == [f"{scratch}/work/{DIGEST}"]


def test_sizes_are_those_of_the_files(fake):
    fake.remember("run", "old")
    fake.workspace.write(f"store/work/{DIGEST}/a", "x" * 1000)
    fake.workspace.write(f"store/work/{DIGEST}/deep/b", "x" * 500)
    assert [item.bytes for item in find(fake)] == [1500]


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
        f"results/runs/{kept.id}/evaluation.json": "link to nothing",
    }


def test_delete_removes_what_is_listed_and_nothing_else(fake):
    fake.seal_all()
    fake.begin_training(fake.run("flat"), steps=1)
    fake.workspace.write("results/runs/notes/mine.txt", "mine")
    before = everything()
    fake.rows[1]["seed"] = 2
    garbage = find(fake)
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
    (outside / DIGEST).mkdir()
    fake.load()
    runs = Path("results/runs")
    (runs / ("a" * 12)).mkdir(parents=True)
    (runs / ("a" * 12) / "link").symlink_to(outside)
    (runs / ("b" * 12)).symlink_to(outside)
    Path("results/datasets").symlink_to(outside)  # a whole folder elsewhere is not ours to clean
    garbage = find(fake)
    assert sorted(item.path.name for item in garbage) == ["a" * 12, "b" * 12]
    assert sum(item.bytes for item in garbage if "b" in item.path.name) == 0
    list(delete(garbage))
    assert list(runs.iterdir()) == []
    assert sorted(path.name for path in outside.iterdir()) == [DIGEST, "precious"]


def test_an_interrupted_deletion_leaves_nothing_that_passes_for_a_result(fake, monkeypatch):
    fake.workspace.write(f"results/runs/{DIGEST}/model.safetensors", "x")

    def interrupted(path, ignore_errors=False):
        if not ignore_errors:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(delete(find(fake)))
    assert not Path(f"results/runs/{DIGEST}").exists()
    fake.workspace.write(f"results/runs/{DIGEST}/model.safetensors", "made again")
    assert len(listed(fake)) == 2
    list(delete(find(fake)))
    assert list(Path("results/runs").iterdir()) == []


def test_what_cannot_be_deleted_is_named(fake, monkeypatch):
    fake.remember("run", "old")
    fake.workspace.write(f"store/work/{DIGEST}/f", "x")

    def refuse(path, ignore_errors=False):
        if not ignore_errors:
            raise PermissionError(13, "Permission denied", str(path / "f"))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(
        DataError,
        match=rf"work/{DIGEST}.deleted/f cannot be deleted \(Permission denied\); fix",
    ):
        list(delete(find(fake)))


def test_the_only_trained_model_of_a_run_is_pointed_out(fake):
    fake.seal_all()
    fake.rows[0]["seed"] = fake.rows[1]["seed"] = 2
    fake.seal_run(fake.run("net"))
    project = fake.load()
    assert last_results(project, find(fake)) == ["flat"]


def test_a_lock_of_snakemake_is_named(fake):
    check_unlocked(fake.workspace.path)
    fake.workspace.write(".snakemake/locks/0.output.lock", "results/x\n")
    with pytest.raises(
        ShardlineError, match=r"^\.snakemake/locks/0\.output\.lock exists, .* `snakemake --unlock`"
    ):
        check_unlocked(fake.workspace.path)
