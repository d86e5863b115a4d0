"""What a pipeline with secrets all around it writes: records that others can check, and no secret."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardline.cli import app
from shardline.core.canonical import digest
from shardline.core.digests import file_sha256
from tests.support.crate_profile import issues
from tests.support.planted_secrets import Planted, plant
from tests.support.rotation import rotating
from tests.support.workspace import TINY_CONFIG, Workspace

SECRET = "geh3im"  # every planted secret begins with it
VARIABLES = (
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_STORAGE_KEY", "BLOB_SAS",
    "GITHUB_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN",
    "MY_PASSWORD", "NCCL_SECRET", "GLOO_TOKEN", "SLURM_JWT", "SNAKEMAKE_STORAGE_S3_SECRET_KEY", "SSHPASS",
    "UCX_PASSWORD", "WANDB_API_KEY", "SHARDLINE_TOKEN", "OMP_SECRET", "UNSUSPICIOUS",
)  # fmt: skip
PLANTED = plant(18)
ALLOWED = Planted("hub_token", *["hf_Al1owedAl1owedAl1owedAl1owedAl1o"] * 2, ("Al1owedAl1owed",))
# Prints, logs and raises all that is planted, and at the second start trains.
MODEL = """
import json, logging, os, sys, warnings
from pathlib import Path
from shardline.training.models.linear import Linear

class Leaky(Linear):
    def __init__(self, feature_shape, num_classes, hub_token="", pad_token=""):
        super().__init__(feature_shape, num_classes)

    def on_train_start(self):
        texts = json.loads(Path("planted.json").read_text())
        texts += ["with " + os.environ["UNSUSPICIOUS"], "with " + os.environ["MY_PASSWORD"]]
        says = print, logging.getLogger("leaky").error, warnings.warn, sys.stderr.write
        for number, text in enumerate(texts):
            says[number % 4](text + chr(10))
        if not Path("again").exists():
            raise RuntimeError("; ".join(texts))
"""
CITATION = """
cff-version: 1.2.0
message: Please cite.
title: Rows and digits
license: CC-BY-4.0
authors:
  - name: Institute of Rows
    website: https://rows.example
"""
# No crate on a disk can meet this one: programs that have no address of their own in the web.
NOT_MET = "process-run-crate-0.5_5.1"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A project that was run to its end, with a secret wherever a user may have one."""
    workspace = Workspace(tmp_path_factory.mktemp("made") / "project")
    served = tmp_path_factory.mktemp("served")
    rows = "x,y\n" + "".join(f"{number},{'ab'[number % 2]}\n" for number in range(400))
    (served / "rows.csv").write_text(rows)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(served))) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        _configure(workspace, served / "rows.csv", http.server_port)
        failed = workspace.snakemake("--retries", "0", env=_secrets())
        for errors in workspace.path.glob("store/work/*/errors"):  # which the next attempt deletes
            shutil.copytree(errors, workspace.path / "errors" / errors.parent.name)
        workspace.write("again", "")
        done = workspace.snakemake(env=_secrets())
        http.shutdown()
        thread.join()
    assert done.returncode == 0, done.stdout
    assert failed.returncode != 0
    (workspace.path / "output.txt").write_text(failed.stdout + done.stdout)
    return workspace


def _secrets() -> dict[str, str]:
    return {name: f"{SECRET}-env-{name.lower()}" for name in VARIABLES}


def _configure(workspace: Workspace, file: Path, port: int) -> None:
    url = f"http://{SECRET}user:{SECRET}pw@127.0.0.1:{port}/rows.csv"
    entry = {
        "url": f"{url}?sig={SECRET}sig&x=${{BLOB_SAS}}",
        "sha256": file_sha256(file),
        "bytes": file.stat().st_size,
    }
    source = {"type": "csv", "label": "y", "classes": ["a", "b"], "files": [entry]}
    config = {
        **TINY_CONFIG,
        "datasets": {**TINY_CONFIG["datasets"], "remote": {"source": source, "shards": 1}},
        "runtime": {
            "variables": {"SITE_SETTING": f"{SECRET}-plain", "SITE_TOKEN": f"{SECRET}-t"},
            "pass_env": ["UNSUSPICIOUS"],
            "not_secret": [
                "datasets.remote.source.files",
                "image.build_args",
                "model_args.hub_token",
            ],
            "tracking": ["csv", "tensorboard"],
        },
        "image": {"build_args": [f"--build-arg=PIP_INDEX=https://u:{SECRET}@pip.example"]},
    }
    common = {"model": "leaky:Leaky", "trainer.max_epochs": 1, "model_args.pad_token": "<pad>"}
    allowed = {"model_args.hub_token": ALLOWED.value}
    workspace.write("leaky.py", MODEL)
    workspace.write("planted.json", json.dumps([one.text for one in PLANTED]))
    workspace.configure(
        config,
        [
            {"name": "pair", "dataset": "digits", "devices": 2, **common},
            {"name": "far", "dataset": "remote", "devices": 1, **common, **allowed},
        ],
    )
    workspace.write("CITATION.cff", CITATION)
    remote = f"https://user:{SECRET}remote@git.example/project.git"
    for command in (["init", "-q"], ["remote", "add", "origin", remote]):
        subprocess.run(["git", *command], cwd=workspace.path, check=True)


def shardline(workspace: Workspace, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("shardline")
    return subprocess.run(
        [command, *arguments], cwd=workspace.path, text=True, capture_output=True, check=False,
        env={**os.environ, **_secrets()},
    )  # fmt: skip


def leaks(written: dict[str, bytes], planted: list[Planted]) -> list[tuple[str, str]]:
    """Return in which files which secrets are, as they are or as JSON, URLs and HTML quote them."""
    return [
        (name, one.text)
        for one in planted
        for form in one.spellings()
        for name, content in written.items()
        if form in content
    ]


def read(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text())
    return found


@pytest.mark.slow
def test_every_job_left_a_record_of_itself(made):
    documents = {
        "resolve_run": made.the("results/runs/<pair>/run.json"),
        "train": made.the("results/runs/<pair>/provenance.json"),
        "evaluate": made.the("results/runs/<pair>/evaluations/*.json"),
        "seal_dataset": made.the("results/datasets/<digits>/provenance.json"),
    }
    for rule, path in documents.items():
        document = read(path)
        action = document["action"]
        assert action["rule"] == rule
        about = made.identity("digits" if rule == "seal_dataset" else "pair")
        assert action["id"].startswith(f"{rule}/{about}")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", action["ended"])
        assert action["started"] <= action["ended"]
        assert action["variables"]["PYTHONHASHSEED"] == "0"
        assert action["num_cpus"] == len(os.sched_getaffinity(0))
        assert document["sha256"] == digest({k: v for k, v in document.items() if k != "sha256"})
    assert action["software"]["snakemake"]
    sealed = read(documents["seal_dataset"])
    parts = made.the("store/datasets/<digits>/parts/*.json")
    assert sealed["parts"] == [read(parts)["action"]]
    manifest = documents["seal_dataset"].with_name("manifest.json")
    assert sealed["files"] == {"manifest.json": file_sha256(manifest)}
    trained = read(documents["train"])["action"]
    assert "shardline.training.rank" in trained["command"]
    assert trained["variables"]["WORLD_SIZE"] == "2"
    for path in made.path.glob("results/runs/**/*.json*"):
        assert not re.search(r"\b(pair|far)\b", path.read_text()), f"{path} holds a name"


@pytest.mark.slow
def test_nothing_that_was_written_holds_a_secret(made):
    for command in (
        ["ls"], ["why", "far"], ["verify"], ["verify", "--json"], ["crate", "--zip", "all.zip", "--with-data"],
    ):  # fmt: skip
        done = shardline(made, *command)
        assert done.returncode == 0, done.stderr
        assert SECRET not in done.stdout + done.stderr, command
    # Snakemake's own report, which a user may hand on
    assert made.snakemake("--report", "report.zip").returncode == 0
    packed = {}
    for file in ("all.zip", "report.zip"):
        with zipfile.ZipFile(made.path / file) as archive:
            packed |= {f"{file}/{name}": archive.read(name) for name in archive.namelist()}
    given = {"config/config.yaml", "config/runs.tsv", ".git/config", "planted.json"}
    files = {
        str(path.relative_to(made.path)): path for path in made.path.rglob("*") if path.is_file()
    }
    written = {name: files[name].read_bytes() for name in files.keys() - given} | packed
    assert len(written) > 60
    for ending in (
        "errors/",
        "attempts.jsonl",
        made.identity("pair"),
        "rank-1.log",
        "tfevents",
        "metrics.csv",
    ):
        assert any(ending in name for name in written), ending
    assert any(
        b"RuntimeError: " in content for name, content in written.items() if "errors/" in name
    )
    assert [name for name, content in written.items() if SECRET.encode() in content] == []
    assert leaks(written, PLANTED) == []
    # what a user says is none stays where the jobs read it, and is masked in all else
    kept = {name for name, _ in leaks(written, [ALLOWED])}
    assert {re.sub(r"^all.zip/", "", name).rpartition("/")[2] for name in kept} == {
        "run.json",
        "identity.json",
        "rank.json",
    }
    assert b"<pad>" in (made.path / "results/report/report.json").read_bytes()
    assert b"site_setting" in packed["all.zip/config/config.yaml"].lower(), "only values are hidden"


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], *rotating(["--with-data"])], ids=["small", "data"])
def test_the_crate_conforms_to_its_profile(made, options, tmp_path):
    crate = tmp_path / "crate"
    for name in ("first.zip", "second.zip"):
        assert shardline(made, "crate", "--zip", name, *options).returncode == 0
    first, second = ((made.path / name).read_bytes() for name in ("first.zip", "second.zip"))
    assert first == second
    shutil.unpack_archive(made.path / "first.zip", crate)
    assert issues(crate, "REQUIRED") == []
    found = issues(crate, "RECOMMENDED")
    assert [line for line in found if NOT_MET not in line] == []
    assert found, f"{NOT_MET} is met now: docs/concepts/provenance.md says that it cannot be"
    assert (crate / "results/runs").is_dir()
    assert bool(list(crate.glob("store/datasets/*/*.safetensors"))) == bool(options)


@pytest.mark.slow
def test_the_metadata_beside_the_report_is_that_of_the_zip(made):
    beside = made.path / "results/report/ro-crate-metadata.json"
    assert issues(beside.parent, "REQUIRED", metadata_only=True) == []
    assert shardline(made, "crate", "--zip").returncode == 0
    with zipfile.ZipFile(made.path / "crate.zip") as archive:
        assert archive.read("ro-crate-metadata.json") == beside.read_bytes()


@pytest.mark.slow
def test_a_damaged_model_is_not_packed(made):
    model = made.the("results/runs/<pair>/model.safetensors")
    content = model.read_bytes()
    model.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        done = shardline(made, "crate", "--zip", "damaged.zip", "--with-data")
    finally:
        model.write_bytes(content)
    assert done.returncode == 3
    assert done.stderr.startswith(f"{model.relative_to(made.path)} has digest ")
    assert not (made.path / "damaged.zip").exists()


@pytest.mark.slow
def test_the_crate_tells_of_every_job_with_what_it_read_and_wrote(made):
    graph = {
        entity["@id"]: entity
        for entity in read(made.path / "results/report/ro-crate-metadata.json")["@graph"]
    }
    run = made.the("results/runs/<pair>").name
    train = graph[f"#action/train/{run}"]
    read_by = {reference["@id"] for reference in train["object"]}
    written = {reference["@id"] for reference in train["result"]}
    dataset = made.the("results/datasets/<digits>").name
    assert {
        f"results/runs/{run}/run.json",
        f"#store/datasets/{dataset}/",
        "#setting/seed=1",
    } <= read_by
    model = f"#results/runs/{run}/model.safetensors"
    assert written == {
        model,
        *(f"results/runs/{run}/{name}" for name in ("metrics.jsonl", "provenance.json")),
    }
    sealed = made.path / f"results/runs/{run}/model.safetensors"
    assert graph[model]["sha256"] == file_sha256(sealed)
    assert graph[model]["contentSize"] == str(sealed.stat().st_size)
    assert graph[train["instrument"]["@id"]]["name"] == "train"
    actions = [entity for entity in graph.values() if entity["@type"] == "CreateAction"]
    rules = [
        entity["@id"].split("/")[1] for entity in actions if entity["@id"].startswith("#action")
    ]
    assert sorted(rules) == sorted(
        ["build_shards", "seal_dataset", "resolve_run", "train", "evaluate"] * 2 + ["render_report"]
    )
    assert graph["./"]["license"] == {"@id": "https://spdx.org/licenses/CC-BY-4.0"}
    assert graph["./"]["datePublished"] == max(entity["endTime"] for entity in actions)


KINDS = {
    "model": "results/runs/<pair>/model.safetensors",
    "metrics": "results/runs/<pair>/metrics.jsonl",
    "settings": "results/runs/<pair>/run.json",
    "identity": "results/runs/<pair>/identity.json",
    "provenance": "results/runs/<pair>/provenance.json",
    "evaluation": "results/runs/<pair>/evaluations/*.json",
    "manifest": "results/datasets/<digits>/manifest.json",
    "dataset's provenance": "results/datasets/<digits>/provenance.json",
    "shard": "store/datasets/<remote>/shard-*.safetensors",
    "page": "results/report/index.html",
    "crate": "results/report/ro-crate-metadata.json",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_verify_names_the_file_with_one_altered_byte(made, kind, monkeypatch):
    monkeypatch.chdir(made.path)
    path = made.the(KINDS[kind]).resolve()
    content = path.read_bytes()
    # everywhere: also a byte of white space, of a key, of the seal itself
    step = max(1, len(content) // 3)
    for place in sorted({0, 1, *range(3, len(content), step), len(content) - 1}):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        try:
            done = CliRunner().invoke(app, ["verify"])
        finally:
            path.write_bytes(content)
        assert done.exit_code == 3, (place, done.output)
        assert str(path.relative_to(made.path)) in done.output, (place, done.output)
    assert CliRunner().invoke(app, ["verify"]).exit_code == 0
