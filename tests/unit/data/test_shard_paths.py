"""A manifest that was altered makes nobody read, pack or delete a file outside of its dataset's folder."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import convert

from shardline.core.files import read_json, write_json
from shardline.data.shard_format import shard_path
from shardline.data.shard_map import ShardMap
from shardline.errors import DataError
from shardline.provenance.crate.contents import collect, records_of
from shardline.records.datasets import Manifest
from shardline.results.verify import verify_dataset
from tests.support.command_line import shardline

SECRET = "../../../secret.txt"
SCHEMA = {"classes": [], "feature_shape": [1], "feature_dtype": "uint8", "task": "regression"}
PARTS = st.sampled_from(
    ["..", ".", "", "a", "shard-00000.safetensors", "\x00", "é", "C:", "~", "٣"]
)
NAMES = st.one_of(
    st.builds(lambda parts, mark: mark.join(parts), st.lists(PARTS, max_size=4), st.sampled_from("/\\\n")),
    st.from_regex(r"shard-\d{0,7}\.safetensors\s?"),
    st.text(),
    st.none() | st.integers() | st.lists(st.text()),
)  # fmt: skip


@settings(deadline=None)
@given(NAMES)
def test_every_accepted_name_is_a_file_of_the_folder(name):
    folder = Path("/store/datasets/rows")
    if re.fullmatch(r"shard-[0-9]+\.safetensors", str(name)):
        path = shard_path(folder, name)
        assert (path.parent, path.name) == (folder, name)
        assert path.resolve().parent == folder
    else:
        with pytest.raises(DataError, match=re.escape(repr(name))):
            shard_path(folder, name)


@pytest.fixture
def dataset(fake):
    """Return a sealed dataset, and a function that alters its manifest's first shard."""
    fake.seal_all()
    dataset = fake.run("flat").dataset

    def alter(name):
        document = read_json(dataset.manifest, remedy="")
        document["shards"][0]["file"] = name
        write_json(dataset.manifest, document)
        return convert(document | {"schema": SCHEMA}, Manifest)

    return dataset, alter


@pytest.mark.parametrize("name", [SECRET, "/etc/hostname", "a/../shard-00000.safetensors"])
def test_a_name_outside_of_the_folder_is_rejected_wherever_it_is_used(fake, dataset, name):
    found, alter = dataset
    manifest = alter(name)
    secret = Path("store/datasets") / found.id / SECRET
    secret.write_text("kept")
    for use in (
        lambda: ShardMap(manifest, Path("store/datasets") / found.id),
        lambda: collect(project := fake.load(), records_of(project), with_data=True),
    ):
        with pytest.raises(DataError, match=re.escape(f"shards[].file={name!r} is not a shard's")):
            use()
    problem = verify_dataset(fake.load(), found.id).problems[0]
    assert problem.startswith(f"a manifest's shards[].file={name!r} is not a shard's name")
    assert shardline("verify", "--repair", found.name).exit_code == 0
    assert secret.read_text() == "kept"


def test_a_linked_shard_is_rejected_and_repair_drops_the_link_alone(fake, dataset):
    found, alter = dataset
    manifest = alter("shard-00000.safetensors")
    shard = Path("store/datasets") / found.id / "shard-00000.safetensors"
    moved = shard.rename(Path("elsewhere").absolute())
    shard.symlink_to(moved)
    with pytest.raises(DataError, match="is a symbolic link, expected a file"):
        ShardMap(manifest, shard.parent)
    (problem,) = verify_dataset(fake.load(), found.id).problems
    assert problem.startswith(
        f"shard {shard.absolute()} is a symbolic link, expected a file; run `shardline"
    )
    assert shardline("verify", "--repair", found.name).exit_code == 0
    assert (moved.exists(), shard.is_symlink()) == (True, False)
