"""A store that fails or is slow in mid-training: one sentence, no half-file, and the same bits afterwards."""

import pytest

from shardline.supervision.attempt_log import last_recorded_step
from tests.support.faults import run
from tests.support.processes import end_of_ranks, wait_until
from tests.support.rotation import rotating

pytestmark = pytest.mark.fault


def said(output, name, why):
    """Hold that a file was named once with the reason, and no traceback shown."""
    assert "Traceback" not in output, output
    sentences = {line for line in output.splitlines() if "could not be written" in line}
    assert len(sentences) == 1, output
    (sentence,) = sentences
    assert name in sentence
    assert why in sentence


# With no room at all, or with too little for a training checkpoint, which is then cut off in its middle.
@pytest.mark.parametrize("room", [1 << 15, *rotating(0)])
def test_a_disk_that_fills_up_in_mid_training(gated, mount, room):
    faulted = gated()
    disk = mount(faulted.ranks.root / "run" / "work")
    code, output = faulted.run(lambda: disk.fill(room))
    assert code == 3, output
    said(output, "", "the disk is full; free space")
    assert not faulted.sealed()
    assert not faulted.half_written()
    disk.empty()
    faulted.goes_on()


def test_a_disk_that_is_full_at_the_sealing(gated, mount):
    faulted = gated()
    disk = mount(faulted.ranks.results("run"))
    code, output = faulted.run(disk.fill)
    assert code == 3, output
    said(output, "model.safetensors", "the disk is full; free space")
    assert faulted.sealed() == ["filler"]
    disk.empty()
    steps = faulted.ranks.steps("run")
    faulted.ranks.train("run")
    assert faulted.ranks.steps("run") == steps, "no step is taken again"
    faulted.is_as_unbroken()


def test_a_quota_that_is_used_up_in_mid_training(gated, mount):
    faulted = gated()
    disk = mount(faulted.ranks.root / "run" / "work", size="200m", kind="btrfs")
    run("btrfs", "quota", "enable", str(disk.path))
    run("btrfs", "qgroup", "limit", "4m", str(disk.path))
    code, output = faulted.run(disk.fill)
    assert code == 3, output
    said(output, "", "the disk quota is used up; free space")
    assert not faulted.sealed()
    assert not faulted.half_written()
    disk.empty()
    faulted.goes_on()


def test_a_store_that_becomes_read_only_in_mid_training(gated, mount):
    faulted = gated()
    disk = mount(faulted.ranks.root / "run" / "work", size="64m", kind="ext4")
    code, output = faulted.run(disk.abort)
    assert code == 3, output
    said(output, "", "the file system is read-only; set SHARDLINE_STORE to a writable folder")
    assert not faulted.sealed()
    disk.mend()
    faulted.goes_on()


@pytest.mark.rotating
def test_a_training_goes_on_while_a_slow_store_takes_its_state(gated, mount, throttle):
    """The disk takes 256 KB/s, so that a state of 1 MB is written for seconds."""
    faulted = gated(**{"model_args.hidden": 280, "trainer.max_epochs": 6})
    disk = mount(faulted.ranks.root / "run" / "work", size="64m", kind="ext4")
    ranks, work = faulted.ranks, disk.path
    throttle(disk, bytes_per_s=1 << 18)
    (ranks.root / "go").touch()
    process = ranks.start("run")
    during: set[int] = set()

    def has_gone_on() -> bool:
        steps = last_recorded_step(work) or 0
        if any(work.glob("checkpoints/.step-*.tmp")):
            during.add(steps)
        return len(during) > 10

    wait_until(has_gone_on, process)
    throttle(disk, bytes_per_s=0)
    end_of_ranks(process)
    assert process.returncode == 0
    faulted.is_as_unbroken()
