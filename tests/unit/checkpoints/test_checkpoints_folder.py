"""Folders of training checkpoints: torn, corrupt, missing, foreign, and what is resumed from then."""

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from shardline.checkpoints.folder import (
    describe,
    last_step,
    list_saved,
    newest_good,
    remove_scratch,
    saving,
)
from shardline.checkpoints.kept import prune_sealed, superfluous
from shardline.config.settings.config import Runtime, RuntimeCheckpoint
from shardline.core.files import write_json
from shardline.core.seals import seal
from shardline.errors import DataError
from shardline.pipeline.training import _prune

MINE, OTHER = "a" * 64, "b" * 64


def save(folder: Path, step: int, *, keep: int = 2, identity: str = MINE, best: str = "") -> Path:
    """Write a training checkpoint of two files, one in a folder of its own."""
    known = {}
    if best:
        (folder / best).write_bytes(f"weights of {best}".encode())
        known = {best: describe(folder / best)}
    with saving(
        folder, step=step, epoch=1, identity=identity, world_size=2, keep=keep, best=known
    ) as scratch:
        (scratch / "state.pt").write_bytes(b"state %d" % step * step * 10)
        (scratch / "shards").mkdir()
        (scratch / "shards/rank-00000.safetensors").write_bytes(b"weights")
    return folder / f"step-{step:08d}"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "checkpoints"
    path.mkdir()
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_is_found_with_what_its_manifest_says(folder):
    assert newest_good(folder, MINE) == (None, [])
    assert last_step(folder) == 0
    for step in (10, 20, 30):
        save(folder, step)
    assert names(folder) == ["latest.json", "step-00000020", "step-00000030"]
    assert json.loads((folder / "latest.json").read_text()) == {"newest": "step-00000030"}
    saved, passed = newest_good(folder, MINE)
    assert passed == []
    assert (saved.step, saved.epoch, saved.world_size) == (30, 1, 2)
    assert saved.bytes == 2407
    assert saved.files["shards/rank-00000.safetensors"].bytes == 7
    assert [one.step for one in list_saved(folder)] == [30, 20]
    assert last_step(folder) == 30


def flip(path):
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "torn": (
        lambda path: (path / "state.pt").write_bytes(b"state"),
        "state.pt has 5 bytes, expected 2,400",
    ),
    "a bit": (lambda path: flip(path / "state.pt"), "state.pt has BLAKE3 digest .*, expected "),
    "no file": (
        lambda path: (path / "shards/rank-00000.safetensors").unlink(),
        "shards/rank-00000.safetensors is missing",
    ),
    "files without manifest": (
        lambda path: (path / "manifest.json").unlink(),
        "it has no manifest.json",
    ),
    "torn manifest": (
        lambda path: (path / "manifest.json").write_text('{"identity": "'),
        "its manifest.json is not readable",
    ),
    "manifest of a list": (
        lambda path: (path / "manifest.json").write_text("[]"),
        "its manifest.json was changed after it was written",
    ),
    "manifest without files": (
        lambda path: write_json(
            path / "manifest.json",
            seal({**json.loads((path / "manifest.json").read_text()), "files": {}}),
        ),
        "its manifest.json lists no files",
    ),
    "edited manifest": (
        lambda path: write_json(
            path / "manifest.json",
            {**json.loads((path / "manifest.json").read_text()), "epoch": 7},
        ),
        "its manifest.json was changed after it was written",
    ),
    "misnamed": (
        lambda path: (path.with_name("step-00000020") / "manifest.json").replace(
            path / "manifest.json"
        ),
        "its manifest.json is of step 20",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", [*DAMAGE])
def test_a_damaged_newest_one_is_passed_over_and_said(folder, damage):
    for step in (10, 20, 30):
        save(folder, step, keep=3)
    change, message = DAMAGE[damage]
    change(folder / "step-00000030")
    saved, passed = newest_good(folder, MINE)
    assert saved.step == (10 if damage == "misnamed" else 20)
    assert len(passed) == (2 if damage == "misnamed" else 1)
    assert passed[0].startswith(f"training checkpoint {folder / 'step-00000030'} is damaged: ")
    assert re.search(message, passed[0])


def test_none_that_is_good_is_told_apart_from_none_at_all(folder):
    for step in (10, 20):
        flip(save(folder, step) / "state.pt")
    saved, passed = newest_good(folder, MINE)
    assert saved is None
    assert len(passed) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "latest.json is missing"),
        (lambda path: path.write_text('{"new'), "latest.json is not readable"),
        (lambda path: path.write_text("[]"), "latest.json is not readable"),
        (
            lambda path: path.write_text('{"newest": "step-00000099"}'),
            "step-00000099 is missing, though latest.json names it",
        ),
    ],
)
def test_a_missing_or_damaged_pointer_is_said_and_hides_nothing(folder, change, message):
    for step in (10, 20):
        save(folder, step)
    change(folder / "latest.json")
    saved, (said,) = newest_good(folder, MINE)
    assert saved.step == 20
    assert message in said


def test_another_runs_checkpoint_is_refused_by_name(folder):
    save(folder, 10, identity=OTHER)
    with pytest.raises(
        DataError,
        match=r"step-00000010 belongs to another run \(identity b{12}\), expected identity aaaa.*move .*away",
    ):
        newest_good(folder, MINE)


def test_best_weights_stay_as_long_as_a_kept_state_names_them_and_count_as_its_part(folder):
    save(folder, 10, best="best-1.safetensors")
    save(folder, 20, best="best-2.safetensors")
    assert {"best-1.safetensors", "best-2.safetensors"} <= {*names(folder)}
    (folder / "best-2.safetensors").write_bytes(b"")
    saved, (said,) = newest_good(folder, MINE)
    assert saved.step == 10
    assert "best-2.safetensors has 0 bytes, expected 29" in said
    save(folder, 30, best="best-3.safetensors")
    assert "best-1.safetensors" not in names(folder)


def test_one_that_was_passed_over_makes_room_for_its_successor_and_what_came_later_goes(folder):
    for step in (10, 20, 30):
        save(folder, step, keep=3)
    flip(folder / "step-00000020/state.pt")
    flip(folder / "step-00000030/state.pt")
    save(folder, 20, keep=3)
    assert names(folder) == ["latest.json", "step-00000010", "step-00000020"]
    assert newest_good(folder, MINE)[0].step == 20


KILLED = """
import os, sys
from pathlib import Path
from shardline.checkpoints import folder
from shardline.checkpoints.folder import saving

def die(*_, **__): os._exit(9)

places = {
    "files": (os, "fsync"),
    "manifest": (folder, "write_json"),
    "name": (Path, "rename"),
    "pointer": (folder, "sync_folder"),
    "pruning": (folder, "_prune"),
}
setattr(*places[sys.argv[2]], die)
with saving(Path(sys.argv[1]), step=30, epoch=0, identity="a" * 64, world_size=1, keep=2) as scratch:
    (scratch / "state.pt").write_bytes(b"new")
"""


@pytest.mark.parametrize("moment", ["files", "manifest", "name", "pointer", "pruning"])
def test_a_kill_at_any_moment_leaves_a_good_one_and_no_rubbish(folder, moment):
    for step in (10, 20):
        save(folder, step)
    done = subprocess.run([sys.executable, "-c", KILLED, folder, moment], check=False)
    assert done.returncode == 9
    remove_scratch(folder)
    saved, passed = newest_good(folder, MINE)
    assert (saved.step, passed) == (30 if moment in ("pointer", "pruning") else 20, [])
    assert not list(folder.glob(".*"))


def test_one_that_stood_aside_comes_back_if_its_successor_never_came(folder):
    save(folder, 10).rename(folder / ".step-00000010.old")
    remove_scratch(folder)
    assert newest_good(folder, MINE)[0].step == 10


def test_a_write_that_fails_leaves_what_there_was(folder):
    save(folder, 10)
    before = names(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(DataError, match="step-00000020 could not be written: .*larger than"):
            save(folder, 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(folder) == before


def trained(folder: Path, *, best: str = "best-2") -> None:
    """Leave what a training with two states and two best weights leaves."""
    save(folder, 10, best="best-1.safetensors")
    save(folder, 20, best=f"{best}.safetensors")


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        ("all", ["best-1.safetensors", "best-2.safetensors", "latest.json", "step-00000010", "step-00000020"]),
        ("last", ["best-2.safetensors", "latest.json", "step-00000020"]),
    ],
)  # fmt: skip
def test_what_stays_of_a_sealed_run_is_good_to_seal_it_again(folder, keep, left):
    trained(folder)
    gone = superfluous(folder, keep)
    assert sorted(path.name for path in gone) == sorted({*names(folder)} - {*left})
    prune_sealed(folder, keep)
    assert names(folder) == left
    assert superfluous(folder, keep) == (gone if keep == "all" else [])
    saved, passed = newest_good(folder, MINE)
    assert (saved.step, [*saved.best], passed) == (20, ["best-2.safetensors"], [])


def test_nothing_of_a_sealed_run_may_stay_but_what_a_script_wrote_stays_with_last(folder):
    (folder / "epoch=3.ckpt").write_bytes(b"a script's own")
    prune_sealed(folder, "last")
    assert names(folder) == ["epoch=3.ckpt"]
    trained(folder)
    prune_sealed(folder, "none")
    assert not folder.exists()
    assert not list(folder.parent.glob(".*")), "and no scratch"


@pytest.mark.parametrize("lacking", ["provenance.json", "metrics.jsonl", "model.safetensors", ""])
@pytest.mark.parametrize("is_in_place", [True, False])  # else a storage gets the results later
def test_a_training_is_pruned_once_all_is_sealed(tmp_path, folder, lacking, is_in_place):
    trained(folder)
    before = names(folder)
    for name in {"provenance.json", "metrics.jsonl", "model.safetensors"} - {lacking}:
        (tmp_path / name).touch()
    runtime = Runtime(checkpoint=RuntimeCheckpoint(after_sealing="none"))
    _prune(tmp_path, tmp_path / "model.safetensors", runtime, is_in_place=is_in_place)
    if lacking:
        assert names(folder) == before
    elif is_in_place:
        assert not folder.exists()
    else:
        assert newest_good(folder, MINE)[0].step == 20
