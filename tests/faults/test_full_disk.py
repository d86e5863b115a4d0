"""A store that cannot take the shards: one sentence, nothing half-written, nothing lost.

The jobs are the real ones, run as programs on a real file system that is full,
read-only or not ours. It is mounted in a namespace of the test's own.
"""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.support.needs import require
from tests.support.workspace import Workspace

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-euc")
JOB = """
import sys
from shardline.config.load import load_project
from shardline.config.user_files import read_config
from shardline.pipeline.job_frame import job
from shardline.pipeline.dataset_jobs import build_shards
from pathlib import Path

config = read_config(Path("config/config.yaml"))
project = load_project(config)
(dataset,) = project.datasets.values()
part = list(dataset.parts)[int(sys.argv[1])]
list_of_part = project.store / "datasets" / dataset.id / "parts" / f"{part}.json"
with job("job.log"):
    build_shards(project.part(datasets=[dataset.id]), part, str(list_of_part))
"""
CONFIG = {
    "runs": "config/runs.tsv",
    "defaults": {"global_batch": 8, "devices": 1},
    "datasets": {
        "table": {
            "source": {"type": "synthetic", "rows_per_shard": 500, "features": 100},
            "shards": 4,
            "shards_per_job": 2,
        }
    },
}


@pytest.fixture
def project(workspace: Workspace) -> Workspace:
    """A project whose dataset has two parts of two shards of 0.27 MB each."""
    workspace.configure(CONFIG, [{"name": "run", "dataset": "table", "model": "linear"}])
    workspace.write("job.py", JOB)
    (workspace.path / "small").mkdir()
    return workspace


def run(workspace: Workspace, *lines: str, shell=NAMESPACE) -> subprocess.CompletedProcess[str]:
    """Run shell commands in the project; `$JOB 0` is the job of the first part."""
    return subprocess.run(
        [*shell, "\n".join(lines)],
        cwd=workspace.path,
        env={
            **os.environ,
            "SHARDLINE_STORE": "small",
            "JOB": f"{shlex.quote(sys.executable)} job.py",
        },
        text=True,
        capture_output=True,
        check=False,
        timeout=600,
    )


def need_namespaces() -> None:
    able = (
        shutil.which("unshare") and not subprocess.run([*NAMESPACE, "true"], check=False).returncode
    )
    require(able, "file systems are mounted in a user namespace, which this machine does not allow")


def failed(output: str) -> str:
    """Return the one sentence that a job ended with."""
    (sentence,) = [line for line in output.splitlines() if "could not be written" in line]
    assert "Traceback" not in output
    return sentence


def test_a_full_disk_fails_one_part_in_one_sentence_and_the_next_run_finishes_it(project):
    need_namespaces()
    done = run(
        project,
        "mount -t tmpfs -o size=1m tmpfs small",
        "$JOB 0",
        "(cd small && find . -type f -exec sha256sum {} + | sort > ../before)",
        "! $JOB 1 2> full",
        "(cd small && find . -name '*.tmp' > ../scratch; sha256sum -c ../before)",
        "find small -name '0000*.json' > parts",
        "mount -o remount,size=4m small",
        "$JOB 1",
        "(cd small && sha256sum -c ../before && find . -type f | sort > ../after)",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = {
        name: (project.path / name).read_text() for name in ("full", "scratch", "parts", "after")
    }
    assert "shard-00003.safetensors could not be written: the disk is full; free" in failed(
        text["full"]
    )
    assert text["scratch"] == ""
    assert text["parts"].count("\n") == 1, "the failed part is not described"
    assert text["after"].count(".safetensors") == 4
    assert text["after"].count(".json") == 2


def test_a_read_only_store_is_named(project):
    need_namespaces()
    done = run(project, "mount -t tmpfs -o ro tmpfs small", "$JOB 0")
    assert done.returncode == 3
    assert "the file system is read-only; set SHARDLINE_STORE" in failed(done.stderr)


def test_a_store_without_write_permission_is_named_and_untouched(project):
    small = project.path / "small"
    small.chmod(0o555)
    # root may write anywhere, unless it has given that power away
    root = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if not os.geteuid() else ()
    done = run(project, "$JOB 0", shell=(*root, "sh", "-euc"))
    assert done.returncode == 3
    assert "no permission to write there; fix the folder's owner or set" in failed(done.stderr)
    assert not list(small.iterdir())
    small.chmod(0o755)
    assert run(project, "$JOB 0", shell=("sh", "-euc")).returncode == 0
    assert len(list(small.rglob("*.safetensors"))) == 2
