"""Names of shards and parts: five digits below 100,000, more above, and everywhere in the order of numbers."""

import dataclasses
import re
from pathlib import Path

from msgspec import structs

from shardline.config.layout import ResultsLayout
from shardline.config.plans import DatasetPlan, order_of_part, shards_of_part
from shardline.config.settings.config import DatasetSettings
from shardline.config.settings.source_settings import DigitsSettings
from shardline.data.build import build_shards, seal, shard_file, shard_number
from shardline.data.sources.synthetic import Synthetic
from shardline.provenance.graph import ProvenanceGraph
from shardline.provenance.nodes import ActionNode
from shardline.provenance.sealed_records import SealedRecords
from shardline.records.datasets import Part, Skipped

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
RULES = Path(__file__).parents[3] / "rules" / "common.smk"


def dataset_of(**settings):
    """Return a dataset of which only the settings are known."""
    fields = {field.name: None for field in dataclasses.fields(DatasetPlan)}
    return DatasetPlan(
        **fields | {"settings": DatasetSettings(source=DigitsSettings(type="digits"), **settings)}
    )


def test_a_million_shards_have_files_and_parts_in_the_order_of_their_numbers():
    pattern = re.search(r'part=r"(.+)"', RULES.read_text())[1]
    parts = dataset_of(shards=1_000_000, shards_per_job=63).parts
    assert [*parts][:2] == ["00000-00062", "00063-00125"], "existing names stay"
    assert {name: shards_of_part(name) for name in parts} == parts
    assert all(re.fullmatch(pattern, name) for name in parts)
    assert sorted(parts) != [*parts] == sorted(sorted(parts), key=order_of_part)
    rule = {"rule": "build_shards", "inputs": {}, "outputs": {}}
    jobs = [ActionNode(id=f"build_shards/d-0/{part}", **rule) for part in parts]
    assert sorted(sorted(jobs, key=lambda job: job.id), key=lambda job: job.order) == jobs
    files = [*map(shard_file, range(1_000_000))]
    assert (files[7], files[100_000]) == ("shard-00007.safetensors", "shard-100000.safetensors")
    assert sorted(files) != files == sorted(sorted(files), key=shard_number)
    assert shard_number("manifest.json") == -1


def test_more_than_100_000_shards_are_sealed_in_the_order_of_their_numbers(tmp_path):
    number = 100_003
    source = Synthetic(num_shards=number, rows_per_shard=200, features=2)
    record, statistics = next(build_shards(source, [100_002], SHARES, tmp_path))
    assert (tmp_path / "shard-100002.safetensors").stat().st_size == record.bytes
    records = [structs.replace(record, file=shard_file(shard)) for shard in reversed(range(number))]
    skipped = {shard_file(n): Skipped(count=1, first=[f"row of {n}"]) for n in (100_000, 99_999, 7)}
    of_all = structs.replace(statistics.to_record(), first=0, stop=number)
    parts = [
        Part(dataset="d-0", shards=records[:9], statistics=[], skipped=skipped),
        Part(dataset="d-0", shards=records[9:], statistics=[of_all]),
    ]
    manifest = seal(parts, dataset="d-0", source=source, document={})
    assert [r.file for r in manifest.shards] == [*map(shard_file, range(number))]
    assert manifest.skipped.first == ["row of 7", "row of 99999", "row of 100000"]


def test_lineage_lists_the_parts_in_the_order_of_their_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["00063-00125", "99981-100043", "100044-100106"]
    folder = Path("store/datasets/0123456789ab/parts")
    folder.mkdir(parents=True)
    for name in reversed(names):
        (folder / f"{name}.json").write_text("{}")
    graph = ProvenanceGraph(SealedRecords(layout=ResultsLayout(root=tmp_path), remedy="none"))
    found = graph.seal_dataset("0123456789ab").files_read
    assert [Path(name).stem for name in found] == names
