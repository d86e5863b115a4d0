"""Datasets that were damaged or cut off, and only their own part made again, by the real Snakemake."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import wait_until

ROW = {"name": "run", "dataset": "table", "model": "linear", "devices": 1, "trainer.max_epochs": 1}


def shardline(workspace, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("shardline")
    return subprocess.run(
        [command, *arguments], cwd=workspace.path, text=True, capture_output=True, check=False
    )


def sealed(workspace) -> dict[str, tuple[bytes, int]]:
    """Return what is sealed below results/runs, with its date."""
    files = [f for f in workspace.path.glob("results/runs/*/*") if f.is_file()]
    return {str(f): (f.read_bytes(), f.stat().st_mtime_ns) for f in files}


@pytest.mark.rotating
@pytest.mark.slow
def test_a_damaged_shard_is_repaired_by_its_own_parts_job_alone(tiny):
    workspace = tiny(ROW)
    first = workspace.snakemake()
    assert first.returncode == 0, first.stdout
    manifest = workspace.the("results/datasets/<table>/manifest.json")
    shards = sorted(workspace.path.glob("store/datasets/*/shard-*.safetensors"))
    before = {path: path.read_bytes() for path in (manifest, *shards)}
    runs, dates = sealed(workspace), {path: path.stat().st_mtime_ns for path in shards}
    damaged = bytearray(before[shards[3]])
    damaged[-1] ^= 1
    shards[3].write_bytes(damaged)

    found = shardline(workspace, "verify")
    assert found.returncode == 3
    assert "run `shardline verify --repair table`, then `snakemake`" in found.stdout
    repaired = shardline(workspace, "verify", "--repair", "table")
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
    assert "to rebuild 1 part" in repaired.stdout
    command = re.search(r"^  snakemake (.*)$", repaired.stdout, re.MULTILINE)
    again = workspace.snakemake(*command[1].split())
    assert again.returncode == 0, again.stdout
    assert again.stdout.count("Cutting shards ") == 1, again.stdout
    assert again.stdout.count("Sealing the manifest of ") == 1, again.stdout
    assert "\n2 of 2 jobs done, " in again.stdout, again.stdout

    assert {path: path.read_bytes() for path in before} == before, "the manifest to the byte"
    assert [path.stat().st_mtime_ns == dates[path] for path in shards] == [True, True, False, False]
    assert sealed(workspace) == runs
    content = shardline(workspace, "verify")
    assert (content.returncode, content.stderr) == (0, "")
    assert "none with problems" in content.stdout
    assert "Nothing to be done" in workspace.snakemake().stdout


SOURCE = """
import os

import numpy as np

from shardline.sources import Schema, Source, Table


class Gated(Source):
    schema = Schema(feature_shape=(2,), classes=("a", "b"))

    def iter_tables(self, shard):
        if shard == 3 and os.path.exists("gate"):
            open("gate").read()  # blocks until somebody writes into this pipe
        ids = np.arange(20) + 20 * shard
        yield Table(ids=ids, features=np.ones((20, 2)), labels=ids % 2)
"""


@pytest.mark.slow
def test_ctrl_c_in_a_part_leaves_whole_files_and_the_next_run_makes_that_part_alone(tiny):
    dataset = {"source": {"type": "mine:Gated"}, "shards": 4, "shards_per_job": 2}
    workspace = tiny({**ROW, "dataset": "gated"}, datasets={"gated": dataset})
    workspace.write("mine.py", SOURCE)
    os.mkfifo(workspace.path / "gate")

    def has_begun_the_second_part():
        return bool(list(workspace.path.glob("store/datasets/*/shard-00002.safetensors")))

    process = subprocess.Popen(
        workspace.command("--until", "seal_dataset"), cwd=workspace.path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        wait_until(lambda: any(workspace.path.glob("store/datasets/*/parts/*.json")), process)
        wait_until(has_begun_the_second_part, process)
    finally:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.communicate(timeout=300)
    assert process.returncode != 0
    store = workspace.path / "store" / "datasets"
    assert not list(store.rglob("*.tmp"))
    first = workspace.the("store/datasets/*/parts/*.json")
    before = (first.name, first.read_bytes(), first.stat().st_mtime_ns)

    (workspace.path / "gate").unlink()
    again = workspace.snakemake("--until", "seal_dataset")
    assert again.returncode == 0, again.stdout
    assert again.stdout.count("Cutting shards ") == 1, again.stdout
    assert (first.name, first.read_bytes(), first.stat().st_mtime_ns) == before
    assert len(list(store.glob("*/shard-*.safetensors"))) == 4
