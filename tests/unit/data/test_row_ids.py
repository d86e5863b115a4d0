"""A row id that stands in two shards is found when a dataset is sealed, however many rows there are."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.data import row_ids
from shardline.data.build import build_shards, describe_part, seal
from shardline.data.row_ids import check_row_ids
from shardline.errors import DataError
from shardline.pipeline.dataset_jobs import build_shards as build_part
from shardline.pipeline.dataset_jobs import seal_dataset
from shardline.records.datasets import Manifest
from shardline.sources import Schema, Source, Table
from tests.support.fake_project import FakeProject

IDS = st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20) | st.integers(0, 99).map(lambda n: n << 50)  # fmt: skip


class Numbered(Source):
    """Rows with the ids that a test gives, by shard."""

    schema = Schema(feature_shape=(2,), classes=("a",))

    def __init__(self, ids: Sequence[Sequence[int]]) -> None:
        super().__init__(num_shards=len(ids))
        self.ids = ids

    def iter_tables(self, shard: int) -> Any:
        ids = np.array(self.ids[shard], dtype=np.int64)
        yield Table(
            ids=ids,
            features=np.zeros((len(ids), 2), np.float32),
            labels=np.zeros(len(ids), np.int64),
            splits=np.zeros(len(ids), np.int64),
        )


def manifest_of(ids: Sequence[Sequence[int]], folder: Path) -> Manifest:
    source = Numbered(ids)
    part = describe_part("d", build_shards(source, range(len(ids)), {}, folder), {})
    return seal([part], dataset="d", source=source, document={})


@settings(max_examples=150, deadline=None, print_blob=True)
@given(
    ids=st.lists(st.lists(IDS, min_size=1, max_size=8, unique=True), min_size=1, max_size=6),
    at_a_time=st.integers(1, 40),
)
def test_an_id_is_found_if_and_only_if_it_stands_in_two_shards(
    ids: list[list[int]], at_a_time: int
) -> None:
    """Whatever the number of groups that fit into memory one after the other."""
    shards = {
        one: [f"shard-{n:05d}.safetensors" for n, of in enumerate(ids) if one in of]
        for one in {i for of in ids for i in of}
    }
    twice = {one: files for one, files in shards.items() if len(files) > 1}
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_ids, "_AT_A_TIME", at_a_time)
        manifest = manifest_of(ids, Path(name))
        if not twice:
            check_row_ids(manifest, Path(name))
            return
        with pytest.raises(DataError) as error:
            check_row_ids(manifest, Path(name))
    assert any(
        f"dataset d: row id {one} is in {files[0]} and in {files[1]}, expected" in str(error.value)
        for one, files in twice.items()
    )  # fmt: skip
    assert "number the rows in the source, or remove source.id_column" in str(error.value)


@pytest.mark.parametrize("how", ["missing", "short"])
def test_a_shard_that_cannot_be_read_is_named(how: str, tmp_path: Path) -> None:
    manifest = manifest_of([[1, 2], [3, 4]], tmp_path)
    shard = tmp_path / "shard-00001.safetensors"
    content = shard.read_bytes()
    shard.unlink()
    if how == "short":
        shard.write_bytes(content[:-8])
    with pytest.raises(
        DataError, match=rf"shard {shard} cannot be read .*; delete the dataset's folder"
    ):
        check_row_ids(manifest, tmp_path)


def test_ids_of_a_column_that_stand_in_two_shards_fail_the_sealing_alone(fake: FakeProject) -> None:
    lines = [f"{place % 19},{place},{place % 2}" for place in range(20)]  # the first is the last
    fake.workspace.write("data/rows.csv", "\n".join(["id,x,y", *lines, ""]))
    source = {"type": "csv", "files": ["data/rows.csv"], "label": "y", "num_classes": 2}
    shares = {"train": 0.8, "validation": 0.1, "test": 0.1}
    fake.config["datasets"]["table"] = {
        "source": {**source, "id_column": "id"}, "shards": 2, "splits": shares,
    }  # fmt: skip
    fake.config["runtime"] = {"strict_env": "warn"}
    project, dataset = fake.load(), fake.run("flat").dataset
    part = project.layout.parts(dataset.id) / "00000-00001.json"
    plan = project.part(datasets=[dataset.id])
    build_part(plan, "00000-00001", str(part))

    with pytest.raises(DataError, match=r"row id 0 is in shard-00000\S* and in shard-00001"):
        seal_dataset(plan, str(dataset.manifest), str(dataset.provenance))
    assert not dataset.manifest.exists()
