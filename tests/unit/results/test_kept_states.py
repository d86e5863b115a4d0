"""What sealed runs keep: limits of days and bytes, `checkpoint.keep_last`, and what a deletion loses."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.checkpoints.folder import find_damage, list_saved, newest_good, saving
from shardline.checkpoints.manifest import Bound, TrainingCheckpoint
from shardline.config.settings.config import Runtime, RuntimeCheckpoint
from shardline.pipeline.invocation import record_project
from shardline.pipeline.training import _limit_states, _prune
from shardline.results.gc import find_garbage
from shardline.results.kept_states import (
    KeptState,
    beyond_limits,
    kept_states,
    loss_of,
    missing_milestones,
    remove_beyond_limits,
)
from tests.support.fake_project import FakeProject

IDENTITY = "a" * 64
DAY = 86400


@st.composite
def states(draw: st.DrawFn) -> list[KeptState]:
    found = []
    for number, (age, size) in enumerate(
        draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=6))
    ):
        saved = TrainingCheckpoint(
            identity=IDENTITY, step=number, epoch=0, world_size=1, best={}, written="", files={},
            path=Path(f"/{number}"),
        )  # fmt: skip
        found.append(KeptState(run=f"{number}", saved=saved, bytes=size, written=-age * DAY))
    return sorted(found, key=lambda one: one.written)


@given(states(), st.integers(0, 9), st.integers(0, 300))
def test_the_oldest_go_first_and_no_more_than_needed(kept, days: int, most: int) -> None:
    gone = beyond_limits(kept, RuntimeCheckpoint(keep_days=days, keep_bytes=most), 0.0)
    left = [one for one in kept if one.saved.path not in gone]
    if not days and not most:
        assert not gone
    if days:
        assert all(-one.written <= days * DAY for one in left)
    if most:
        assert sum(one.bytes for one in left) <= most
    # the newest of what went would not have fitted beside the rest, or was too old
    last = next((one for one in reversed(kept) if one.saved.path in gone), None)
    if last is not None and not (days and -last.written > days * DAY):
        assert sum(one.bytes for one in left) + last.bytes > most
    assert [one.saved.path for one in kept if one.saved.path in gone] == [*gone]
    ages = [-one.written for one in kept if one.saved.path in gone]
    assert not ages or min(ages) >= max((-one.written for one in left), default=0)


def save(
    run: Any, step: int, *, milestone: bool = False, best: str = "", world_size: int = 2
) -> Path:
    """Write a training checkpoint of a run, 100 s for each step."""
    folder = run.layout.work(run.id) / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    digests = {}
    if best:
        (folder / best).write_bytes(b"w" * 10)
        from shardline.checkpoints.folder import describe

        digests = {best: describe(folder / best)}
    bound = Bound(reasons=[], is_within=False, epoch_end=step, planned=step)
    with saving(
        folder, step=step, epoch=step // 2, identity=IDENTITY, world_size=world_size, keep=9, milestone=milestone,
        best=digests, bound=bound,
    ) as scratch:  # fmt: skip
        (scratch / "state.pt").write_bytes(b"s" * 1000)
    line = {"step": step, "epoch": 0, "wall_s": 1800.0 * step}
    with (folder.parent / "metrics.jsonl").open("a") as file:
        file.write(f"{json.dumps(line)}\n")
    return folder


def test_sealed_runs_lose_their_oldest_states_and_the_log_says_so(fake: FakeProject) -> None:
    fake.seal_all()
    net = fake.run("net")
    folder = save(net, 2, milestone=True, best="best-2.safetensors")
    save(net, 4, best="best-4.safetensors")
    running = fake.run("flat")
    other = save(running, 3)
    (running.folder / "model.safetensors").unlink()  # in progress: its states are no surplus
    assert [(one.saved.step, one.bytes) for one in kept_states(net.layout)] == [
        (2, 1010),
        (4, 1010),
    ]
    limits = RuntimeCheckpoint(keep_bytes=1500)
    (sentence,) = remove_beyond_limits(net.layout, limits, ())
    assert sentence == (
        f"removed the training checkpoint of net ({net.id}) (2 steps, 2 device hours), beyond "
        "runtime.checkpoint.keep_bytes=1500"
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        "best-4.safetensors",
        "latest.json",
        "step-00000004",
    ]
    assert find_damage(folder, IDENTITY) == (1, [])
    assert remove_beyond_limits(net.layout, limits, ()) == []
    assert len(remove_beyond_limits(net.layout, RuntimeCheckpoint(keep_bytes=9), ())) == 1
    assert not folder.exists()
    assert other.exists()


def test_the_pointer_names_a_state_that_is_left(fake: FakeProject) -> None:
    fake.seal_all()
    net = fake.run("net")
    folder = save(net, 2, milestone=True)
    save(net, 4)
    runtime = Runtime(checkpoint=RuntimeCheckpoint(after_sealing="none"))
    _prune(folder.parent, net.folder / "model.safetensors", runtime, is_in_place=True)
    saved, passed = newest_good(folder, IDENTITY)
    assert (saved.step, passed) == (2, [])


@pytest.mark.parametrize("keep_last", [False, True])
def test_a_run_keeps_its_last_state_whatever_the_profile_says(
    fake: FakeProject, keep_last: bool
) -> None:
    fake.config["defaults"]["checkpoint"] = {"keep_last": keep_last}
    fake.config["runtime"] = {"checkpoint": {"after_sealing": "none"}}
    fake.seal_all()
    net = fake.run("net")
    folder = save(net, 4)
    project = fake.load()
    listed = [item.path for item in find_garbage(project, project.built) if item.loses]
    assert listed == ([] if keep_last else [folder])
    _prune(
        folder.parent,
        net.folder / "model.safetensors",
        project.runtime,
        is_in_place=True,
        keep_last=keep_last,
    )
    assert folder.exists() == keep_last


def test_the_list_of_garbage_says_what_is_lost(fake: FakeProject) -> None:
    fake.config["runtime"] = {"checkpoint": {"keep_days": 1e-9}}
    fake.seal_all()
    net = fake.run("net")
    folder = save(net, 4)
    project = fake.load()
    (item,) = [item for item in find_garbage(project, project.built) if item.loses]
    assert (item.path, item.loses) == (folder / "step-00000004", "4 steps, 4 device hours")
    assert item.reason == "training checkpoint beyond runtime.checkpoint.keep_days=1e-09"
    del fake.rows[0]
    project = fake.load()
    (item,) = [item for item in find_garbage(project, project.built) if item.loses]
    assert (item.path, item.loses) == (folder.parent, "4 steps, 4 device hours")
    assert loss_of(net.folder) == ""


def test_a_state_that_a_longer_run_may_continue_stays_beyond_the_limits(
    fake: FakeProject, caplog: pytest.LogCaptureFixture
) -> None:
    """For `gc` and at the end of a training alike."""
    fake.config["runtime"] = {"checkpoint": {"keep_days": 1e-9, "keep_bytes": 1}}
    fake.seal_all()
    net = fake.run("net")
    folder = save(net, 4, world_size=1)
    epochs = net.settings.trainer.max_epochs
    own, limits = dict(fake.rows[0]), RuntimeCheckpoint(keep_days=1e-9, keep_bytes=1)
    fake.rows.append({**own, "name": "longer", "trainer.max_epochs": epochs + 1})
    project = fake.load()
    assert net.name in project.named_runs()
    assert not [item for item in find_garbage(project, project.built) if item.loses]
    _limit_states(project.layout, limits)  # of a command that has recorded nothing
    assert "no training checkpoint beyond runtime.checkpoint.keep_days" in caplog.text
    record_project(project)
    _limit_states(project.layout, limits)
    assert list_saved(folder)
    fake.seal_run(project.named_runs()["longer"])
    project = fake.load()
    (item,) = [item for item in find_garbage(project, project.built) if item.loses]
    assert item.path == folder / "step-00000004"
    _limit_states(project.layout, limits)
    assert not list_saved(folder)


def test_a_milestone_that_a_sealed_run_never_passed_is_named(fake: FakeProject) -> None:
    fake.seal_all()
    before = fake.run("net")
    save(before, 4, milestone=True)
    fake.config["defaults"]["checkpoint"] = {"milestones": [2, 5]}
    project = fake.load()
    assert project.named_runs()["net"].id == before.id
    found = dict(missing_milestones(project.runs))
    assert found["net"] == (
        "checkpoint.milestones 5: net is sealed, and has no state there; `shardline rm net --delete` lets it train "
        "again"
    )
    fake.config["defaults"]["checkpoint"] = {"milestones": {"steps": [4]}}
    assert "net" not in dict(missing_milestones(fake.load().runs))
    assert list_saved(before.layout.work(before.id) / "checkpoints")[0].milestone
