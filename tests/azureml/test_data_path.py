"""Declared files behind Azure Blob storage (Azurite), bulky ones in the store: nobody shares a disk."""

import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shardline.config.load import load_project
from tests.azureml.azurite import ACCOUNT, INSTALL, KEY, find_azurite
from tests.support.needs import require
from tests.support.processes import free_port, wait_until
from tests.support.workspace import REPOSITORY, SNAKEMAKE, TINY_CONFIG, Workspace

pytestmark = pytest.mark.slow
NOTHING = "Nothing to be done"
ROWS = [
    {"name": "slow", "dataset": "table", "model": "linear", "optim.lr": 0.01},
    {"name": "fast", "dataset": "table", "model": "linear", "optim.lr": 0.02},
]
CONTRACT = ("run.json", "identity.json", "metrics.jsonl", "model.safetensors", "provenance.json")
BROKEN = """import pytorch_lightning


class Net(pytorch_lightning.LightningModule):
    def __init__(self, *args, **kwargs):
        raise ValueError("nonsense")
"""
# of a start, and of a dry run
_MESSAGE = re.compile(r"^(?:\d\d:\d\d:\d\d  |Job \d+: )((?:(?!: done in|  ).)*)$", re.MULTILINE)


@dataclass(frozen=True)
class Blobs:
    """A running Azurite.

    Attributes:
        log: file with a line for each request.
    """

    connection: str
    log: Path

    @property
    def environment(self) -> dict[str, str]:
        """What the storage plugin reads."""
        return {
            "AZURITE_CONNECTION_STRING": self.connection,
            "SNAKEMAKE_STORAGE_AZURE_ACCOUNT_NAME": ACCOUNT,
        }

    def sizes(self, container: str) -> dict[str, int]:
        """Return the size in bytes of each blob."""
        from azure.storage.blob import ContainerClient

        client = ContainerClient.from_connection_string(self.connection, container)
        with client:
            return {blob.name: blob.size for blob in client.list_blobs()}

    def delete(self, container: str, name: str) -> None:
        """Delete one blob."""
        from azure.storage.blob import ContainerClient

        with ContainerClient.from_connection_string(self.connection, container) as client:
            client.delete_blob(name)

    def requests(self) -> int:
        """Return how many requests there were."""
        return self.log.read_text().count("RequestMethod=")


@dataclass(frozen=True)
class Checkout:
    """A project folder whose declared files are in a container."""

    workspace: Workspace
    blobs: Blobs
    container: str
    store: Path

    def make(self, rows: list[dict[str, object]]) -> None:
        """Write config and run table."""
        defaults = {**TINY_CONFIG["defaults"], "trainer": {"max_epochs": 1}}
        self.workspace.configure({**TINY_CONFIG, "defaults": defaults}, rows)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the variables of this machine."""
        return {**self.blobs.environment, "SHARDLINE_STORE": str(self.store), **more}

    def run(self, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """Run the pipeline."""
        return self.workspace.snakemake(
            "--default-storage-provider", "azure",
            "--default-storage-prefix", f"az://{self.container}/project",
            "--shared-fs-usage", "none", *arguments, env=self.environment(**env),
        )  # fmt: skip

    def run_on_a_node(
        self, job: str, *arguments: str, env: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        """Run one job as a remote executor does, in this folder."""
        rule = job.partition(":")[0]
        return subprocess.run(
            [
                str(SNAKEMAKE), "--snakefile", str(REPOSITORY / "Snakefile"), "--mode", "remote",
                "--target-jobs", job, "--allowed-rules", rule, "--force", "--no-hooks", "--nolock",
                "--cores", "all", "--shared-fs-usage", "none", "--rerun-triggers", "mtime",
                "--default-storage-provider", "azure", "--target-files-omit-workdir-adjustment",
                "--default-storage-prefix", f"az://{self.container}/project", *arguments,
            ],
            cwd=self.workspace.path,
            env={**os.environ, **self.blobs.environment, **env},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=600,
        )  # fmt: skip


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blobs]:
    """Azurite on loopback."""
    program = find_azurite()
    require(program, f"azurite-blob not found; run: {INSTALL}")
    require(
        importlib.util.find_spec("snakemake_storage_plugin_azure"),
        "the extra [azureml] is not installed",
    )
    folder = tmp_path_factory.mktemp("azurite")
    port = free_port()
    with (folder / "output.log").open("w") as output:
        process = subprocess.Popen(
            [
                str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location",
                str(folder / "data"), "--debug", str(folder / "requests.log"),
                "--skipApiVersionCheck", "--disableTelemetry",
            ],
            stdout=output,
            text=True,
        )  # fmt: skip
    try:
        wait_until(lambda: "successfully listens" in (folder / "output.log").read_text(), process)
        yield Blobs(
            connection=(
                f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
                f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
            ),
            log=folder / "requests.log",
        )
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def first(blobs: Blobs, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A project whose whole main job was run."""
    checkout = _checkout(blobs, tmp_path_factory.mktemp("first"), "main-job")
    checkout.make(ROWS)
    done = checkout.run()
    assert done.returncode == 0, done.stdout
    assert "Report: results/report/index.html" in done.stdout
    return checkout


@pytest.fixture
def other(first: Checkout, tmp_path: Path) -> Checkout:
    """An empty checkout of the same project on a machine with nothing of the store."""
    checkout = _checkout(first.blobs, tmp_path, first.container)
    checkout.make(ROWS)
    return checkout


def _checkout(blobs: Blobs, folder: Path, container: str) -> Checkout:
    (folder / "project").mkdir()
    workspace = Workspace(folder / "project")
    return Checkout(workspace, blobs, container, folder / "mount")


def jobs(done: "subprocess.CompletedProcess[str]") -> set[str]:
    """Return what was made, names without their digests."""
    assert done.returncode == 0, done.stdout
    return {re.sub(r" \([0-9a-f]{12}\)", "", text) for text in _MESSAGE.findall(done.stdout)}


def test_the_main_job_leaves_small_files_in_the_storage_and_copies_of_them_here(first):
    folder = first.workspace.path
    for name in ("slow", "fast"):
        latest = folder / "results" / "latest" / name
        assert [n for n in (*CONTRACT, "evaluation.json") if not (latest / n).is_file()] == []
        log = first.workspace.the(f"logs/train/<{name}>.log").read_text()
        assert "progress step=" in log
        assert first.workspace.the(f"benchmarks/train/<{name}>.tsv").read_text()
    assert not (folder / "store").exists()
    bulky = {p.name for p in first.store.rglob("*") if p.suffix in (".safetensors", ".pt")}
    assert {"state.pt", "shard-00000.safetensors"} <= bulky
    sizes = first.blobs.sizes(first.container)
    assert not {name for name in sizes if Path(name).name in bulky}
    assert max(sizes.values()) < 2_000_000  # the report page
    assert all(
        name.startswith(("project/results", "project/logs", "project/bench")) for name in sizes
    )


def test_another_checkout_fetches_what_is_sealed_and_makes_nothing(first, other):
    again = first.run()
    assert NOTHING in again.stdout, again.stdout
    before = first.blobs.requests()
    done = other.run()
    assert NOTHING in done.stdout, done.stdout
    page = other.workspace.path / "results/report/index.html"
    assert page.read_text() == (first.workspace.path / "results/report/index.html").read_text()
    ours = {p.name for p in (other.workspace.path / "results/latest/slow").iterdir()}
    assert {*CONTRACT, "evaluation.json"} <= ours
    fetched = first.blobs.requests() - before
    other.run()
    # lists, whose number does not grow with that of the runs
    assert first.blobs.requests() - before - fetched < 12 < fetched


def test_shardline_tells_what_was_fetched(first, other):
    assert other.run().returncode == 0
    command = SNAKEMAKE.with_name("python")

    def shardline(*arguments: str) -> str:
        program = "from shardline.cli import main; main()"
        done = subprocess.run(
            [str(command), "-c", program, *arguments],
            cwd=other.workspace.path, env={**os.environ, "SHARDLINE_STORE": str(first.store)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    states = {item["run"]: item["state"] for item in json.loads(shardline("ls", "--json"))}
    assert states == {"slow": "done", "fast": "done"}
    assert "is fresh" in shardline("why", "slow")
    assert "none with problems" in shardline("verify")


def test_a_changed_setting_trains_that_run_alone(first, other):
    other.make([ROWS[0], {**ROWS[1], "optim.lr": 0.03}])
    changed = {f"{verb} fast" for verb in ("Resolving", "Training", "Evaluating")}
    assert jobs(other.run("--dry-run")) == changed | {"Writing the report"}


def test_a_nodes_job_takes_its_inputs_from_the_storage_and_the_shards_from_its_mount(first, other):
    project = load_project(workdir=first.workspace.path)
    run = next(iter(project.runs.values()))
    blob = f"project/{project.layout.name_of(run.evaluation)}"
    first.blobs.delete(first.container, blob)
    moved = other.workspace.path.parent / "elsewhere"
    moved.symlink_to(first.store)
    job = f"evaluate:run={run.id},evaluation={run.evaluation_id}"
    alone = other.run_on_a_node(job, env={})
    assert alone.returncode != 0
    assert "runtime.store=store is in the folder of this job only" in " ".join(alone.stdout.split())
    done = other.run_on_a_node(job, env={"SHARDLINE_STORE": str(moved)})
    assert done.returncode == 0, done.stdout
    assert blob in first.blobs.sizes(first.container)
    assert not (other.workspace.path / "results").exists()
    old, old_action = _judged(run.evaluation)
    assert NOTHING in first.run().stdout  # and brings the newer one home
    new, new_action = _judged(run.evaluation)
    assert new == old
    assert new_action["started"] > old_action["started"]


def _judged(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an evaluation without what tells when it was made, and that."""
    document = json.loads(path.read_text())
    del document["sha256"]
    return document, document.pop("action")


def test_a_run_that_fails_leaves_its_log_here(blobs, tmp_path):
    checkout = _checkout(blobs, tmp_path, "failing")
    checkout.workspace.write("broken.py", BROKEN)
    checkout.make([{**ROWS[0], "model": "broken:Net"}])
    done = checkout.run()
    assert done.returncode == 1
    assert "nonsense" in done.stdout, done.stdout
    assert "nonsense" in checkout.workspace.the("logs/train/<slow>.log").read_text()
    assert checkout.workspace.the("results/runs/<slow>/run.json").is_file()


@pytest.mark.rotating  # the client's own retries take 80 s
def test_a_storage_that_does_not_answer_is_named_in_one_sentence(blobs, tmp_path):
    checkout = _checkout(blobs, tmp_path, "nowhere")
    checkout.make(ROWS)
    endpoint = re.sub(
        r"BlobEndpoint=[^;]*", "BlobEndpoint=http://127.0.0.1:9/devstoreaccount1", blobs.connection
    )
    done = checkout.run("--dry-run", AZURITE_CONNECTION_STRING=endpoint)
    assert done.returncode == 1
    assert "storage az://nowhere/project/ does not answer" in " ".join(done.stdout.split())
    assert KEY not in done.stdout
    assert "Traceback" not in done.stdout
