"""Shards and manifests that are lost or damaged, before a training and in its middle."""

import json
from pathlib import Path

import pytest

from tests.support.rotation import rotating

pytestmark = pytest.mark.fault

REPAIR = "shardline verify --repair"


def shards(faulted) -> list[Path]:
    return sorted(faulted.ranks.shards.glob("*.safetensors"))


def flip(path: Path, at: int = -1) -> None:
    """Change one bit of a file in place."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    with path.open("r+b") as file:
        file.write(content)


@pytest.mark.parametrize("devices", [2, *rotating(1)])
def test_a_shard_that_is_lost_before_a_training(gated, devices):
    faulted = gated(devices=devices)
    shard, kept = shards(faulted)[1], shards(faulted)[1].read_bytes()
    shard.unlink()
    code, output = faulted.fails_at_once()
    assert code == 3
    assert f"shard {shard} cannot be read (No such file or directory); run `{REPAIR}" in output, (
        output
    )
    shard.write_bytes(kept)
    faulted.begins()


@pytest.mark.parametrize("policy", ["first", "always"])
@pytest.mark.parametrize("devices", [2, *rotating(1)])
def test_a_shard_that_is_damaged_in_mid_training_stops_it_before_it_is_read_again(
    gated, devices, policy
):
    faulted = gated(devices=devices)
    shard = shards(faulted)[0]
    code, output = faulted.run(lambda: flip(shard), verify=policy)
    assert code == 3, output
    assert f"shard {shard} is damaged: its BLAKE3 digest is" in output
    assert REPAIR in output
    assert not faulted.sealed()
    flip(shard)
    faulted.goes_on()


def test_a_shard_that_is_lost_in_mid_training_stops_it_by_name(gated):
    faulted = gated()
    shard, kept = shards(faulted)[0], shards(faulted)[0].read_bytes()
    code, output = faulted.run(shard.unlink)
    assert code == 3, output
    assert f"shard {shard} cannot be read (No such file or directory); run `{REPAIR}" in output
    assert not faulted.sealed()
    shard.write_bytes(kept)
    faulted.goes_on()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "is not valid JSON"),
        (lambda text: text.replace('"blake3": "', '"blake3": "0', 1), "is damaged"),
    ],
    ids=["torn", "changed"],
)
def test_a_damaged_manifest_of_a_dataset_stops_a_training_by_name(gated, damage, message):
    faulted = gated()
    manifest = faulted.ranks.manifest
    kept = manifest.read_text()
    manifest.write_text(damage(kept))
    code, output = faulted.fails_at_once()
    assert code == 3
    assert message in output, output
    assert "Traceback" not in output
    assert not faulted.sealed()
    manifest.write_text(json.dumps(json.loads(kept)))  # its form does not count
    faulted.begins()
