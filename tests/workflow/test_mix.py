"""A run on a mix with a transform of the user's, through the real pipeline and the commands that read its results."""

import json
import re
from fractions import Fraction

import pytest

AUGMENT = """
class Augment:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, sample, generator):
        noise = generator.normal(size=sample["features"].shape).astype("float32")
        return {**sample, "features": sample["features"] + self.scale * noise}
"""
TABLE = {"type": "synthetic", "rows_per_shard": 200, "features": 8}
ROW = {
    "name": "mixed",
    "dataset": "{web: 0.7, books: 0.3}",
    "model": "mlp",
    "devices": 2,
    "data.transform": "{type: mypkg.data:Augment, scale: 0.1}",
    "data.epoch_samples": 320,
}


@pytest.mark.rotating
@pytest.mark.slow
def test_a_mix_is_trained_evaluated_reported_and_known_by_its_datasets(tiny) -> None:
    datasets = {
        name: {"source": {**TABLE, "seed": seed}, "shards": 2}
        for seed, name in enumerate(["web", "books"])
    }
    workspace = tiny(ROW, datasets=datasets)
    workspace.write("mypkg/__init__.py", "")
    workspace.write("mypkg/data.py", AUGMENT)
    done = workspace.snakemake()
    assert done.returncode == 0, done.stdout
    again = workspace.snakemake("--dry-run")
    assert "Nothing to be done" in again.stdout
    spec = json.loads(workspace.the("results/runs/<mixed>/run.json").read_text())
    assert sorted(part["weight"] for part in spec["datasets"]) == ["3/10", "7/10"]
    provenance = json.loads(workspace.the("results/runs/<mixed>/provenance.json").read_text())
    assert [part["id"] for part in provenance["datasets"]] == [
        part["id"] for part in spec["datasets"]
    ]
    page = workspace.the("results/reports/*/index.html").read_text()
    assert "0.7 web + 0.3 books" in page
    linked = re.findall(r"<b>Dataset</b> <a [^>]*>(\w+)</a>, weight ([\d.]+), manifest", page)
    assert {key: Fraction(weight) for key, weight in linked} == {
        part["id"]: Fraction(part["weight"]) for part in spec["datasets"]
    }
    assert "0.7 web + 0.3 books" in workspace.shardline("ls")
    assert "none with problems" in workspace.shardline("verify", "--deep")
    lineage = workspace.shardline(
        "lineage", str(workspace.the("results/runs/<mixed>/model.safetensors"))
    )
    assert lineage.count("manifest.json") == 2
