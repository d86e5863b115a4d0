"""Files that a model reads and no identity holds: named in the log, or the end of the training."""

import pytest

from tests.support.workspace import REPOSITORY

ROW = {"dataset": "table", "model": "mypkg.models:Net", "devices": 1, "trainer.max_epochs": 1}
READ = (
    "1 file was read that no identity contains: data/vocab.txt (read by mypkg/models.py, line 12)"
)


@pytest.mark.slow
def test_a_file_of_no_identity_ends_the_training_or_is_named_in_its_log(tiny):
    page = (REPOSITORY / "docs/how-to/write-a-model.md").read_text()
    model = page.split("```python\n")[1].split("```")[0]
    workspace = tiny(
        {"name": "own", **ROW, "devices": 2, "code_files": ""},
        {"name": "named", **ROW, "code_files": "data/*.txt"},
        runtime={"watch_reads": "error"},
    )
    before, call, after = model.partition("        super().__init__()\n")
    workspace.write(
        "mypkg/models.py", before + call + "        open('data/vocab.txt').close()\n" + after
    )
    workspace.write("mypkg/__init__.py", "")
    workspace.write("data/vocab.txt", "a b c")

    refused = workspace.snakemake()
    assert refused.returncode != 0
    assert f"runtime.watch_reads=error: {READ}; list it in the column code_files" in refused.stdout
    assert "Traceback" not in refused.stdout
    assert not workspace.matching("logs/train/*/attempt-2.log"), "a retry would end alike"
    assert not workspace.matching("results/runs/<own>/model.safetensors")
    assert workspace.matching("results/runs/<named>/evaluations/*.json")

    warned = workspace.snakemake("--until", "evaluate", "--config", "runtime={watch_reads: warn}")
    assert warned.returncode == 0, warned.stdout
    for log in ("logs/train/<own>.log", "logs/evaluate/<own>-*.log"):
        text = workspace.the(log).read_text()
        assert text.count(f"runtime.watch_reads=warn: {READ}") == 1
    for log in ("logs/train/<named>.log", "logs/evaluate/<named>-*.log"):
        assert "watch_reads" not in workspace.the(log).read_text()


SOURCE = """
import numpy as np

from shardline.sources import Schema, Source, Table

class Rows(Source):
    schema = Schema(feature_shape=(2,), classes=("a", "b"))

    def iter_tables(self, shard):
        scale = float(open("data/scale.txt").read())
        ids = np.arange(32 * shard, 32 * shard + 32)
        yield Table(ids=ids, features=np.full((32, 2), scale, "float32"), labels=ids % 2)
"""


@pytest.mark.rotating
@pytest.mark.slow
def test_a_source_may_read_its_own_files_only(tiny):
    row = {"name": "run", "dataset": "rows", "model": "linear", "devices": 1}
    source = {"type": "mypkg.sources:Rows"}

    def build():
        datasets = {"rows": {"source": source, "shards": 1}}
        workspace = tiny(row, datasets=datasets, runtime={"watch_reads": "error"})
        workspace.write("mypkg/__init__.py", "")
        workspace.write("mypkg/sources.py", SOURCE)
        workspace.write("data/scale.txt", "2")
        return workspace.snakemake("--until", "seal_dataset")

    refused = build()
    assert refused.returncode != 0
    read = "data/scale.txt (read by mypkg/sources.py, line 10); list it in source.files"
    assert read in refused.stdout
    assert "Traceback" not in refused.stdout
    source["files"] = ["data/scale.txt"]
    built = build()
    assert built.returncode == 0, built.stdout
