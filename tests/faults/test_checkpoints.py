"""Training checkpoints that are damaged on the disk: an older one is gone on from, and that is said."""

import pytest

from tests.faults.test_data import flip
from tests.support.rotation import rotating

pytestmark = pytest.mark.fault


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def states(faulted):
    """Return the folders of the training checkpoints, the newest first."""
    folders = (faulted.ranks.root / "run/work/checkpoints").glob("step-*")
    # a kill may leave one that was being deleted
    return sorted((one for one in folders if (one / "state.pt").exists()), reverse=True)


@pytest.mark.parametrize(
    ("name", "damage"),
    [("state.pt", flip), ("state.pt", halve), ("manifest.json", halve)],
    ids=["bit", "torn", "manifest"],
)
@pytest.mark.parametrize("devices", [2, *rotating(1)])
def test_a_damaged_newest_one_is_passed_over(gated, devices, name, damage):
    faulted = gated(devices=devices)
    faulted.kill()
    newest, older = states(faulted)[:2]
    damage(newest / name)
    output = faulted.goes_on()
    assert f"training checkpoint {newest} is damaged" in output
    assert f"resuming from step {int(older.name.removeprefix('step-'))}:" in output


def test_a_damaged_pointer_hides_nothing(gated):
    faulted = gated()
    faulted.kill()
    halve(states(faulted)[0].with_name("latest.json"))
    assert "latest.json is not readable" in faulted.goes_on()


def test_a_training_never_begins_anew_in_silence_where_all_are_damaged(gated):
    faulted = gated()
    faulted.kill()
    folders = states(faulted)
    kept = [(folder / "state.pt").read_bytes() for folder in folders]
    for folder in folders:
        flip(folder / "state.pt")
    code, output = faulted.fails_at_once()
    assert code == 3
    assert str(folders[0].parent) in output
    assert not faulted.sealed()
    for folder, content in zip(folders, kept, strict=True):
        (folder / "state.pt").write_bytes(content)
    faulted.goes_on()
