"""A project whose results were never computed, for the tests of the `shardline` command."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from shardline.config import documents
from shardline.config.load import load_project
from shardline.config.names import LAYOUT, record_names
from shardline.config.project import Dataset, Project, Run
from shardline.core.digests import file_blake3, file_sha256
from shardline.core.files import write_json
from shardline.identity import code, digest
from shardline.results.staleness import explain
from tests.conftest import Workspace
from tests.support.imported import Interpreter
from tests.unit.mutated import Place

DIGEST = "0123456789ab"
MODEL = """
class Net:
    def __init__(self, width=8):
        self.width = width

    def forward(self, x):
        return x
"""
LOCK = "torch=={torch}\n    # via shardline\nnumpy==2.4.6\n    # via shardline\n"
SCHEMA = {"task": "classification", "feature_shape": [2], "classes": ["a", "b", "c"]}
# of the shipped model `linear` for rows of this schema
WEIGHTS = {
    "layer.weight": np.zeros((3, 2), np.float32),
    "layer.bias": np.zeros(3, np.float32),
}
RUNS = (
    {"name": "net", "dataset": "rows", "model": "mypkg.models:Net", "optim.lr": 0.1},
    {"name": "flat", "dataset": "table", "model": "linear", "optim.lr": 0.1},
)


class FakeProject:
    """A real config with results that were never computed, in the present folder."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.rows: list[dict[str, Any]] = [dict(row) for row in RUNS]
        self.config: dict[str, Any] = {
            "runs": "config/runs.tsv",
            "lock": "my.lock",
            "defaults": {"global_batch": 8, "devices": 1},
            "datasets": {
                "table": {
                    "source": {"type": "synthetic", "rows_per_shard": 8, "features": 2},
                    "shards": 4,
                },
                "rows": {
                    "source": {"type": "mypkg.sources:Rows", "files": ["data/*.csv"]},
                    "shards": 1,
                },
            },
        }
        workspace.write("mypkg/__init__.py", "")
        workspace.write("mypkg/models.py", MODEL)
        workspace.write("mypkg/sources.py", "class Rows:\n    pass\n")
        workspace.write("data/a.csv", "1,2\n")
        workspace.write("data/b.csv", "3,4\n")
        workspace.write("my.lock", LOCK.format(torch="2.12.0"))

    def load(self) -> Project:
        """Return the project, as if `snakemake` were started."""
        self.workspace.configure(self.config, self.rows)
        project = load_project()
        record_names(project)
        return project

    def run(self, name: str) -> Run:
        return self.load().named_runs()[name]

    def remember(self, kind: str, name: str, identity: str = DIGEST) -> None:
        """Have a name stand for an identity in the history."""
        line = json.dumps({"kind": kind, "name": name, "id": identity})
        self.workspace.write("results/layout.json", json.dumps({"layout": LAYOUT}))
        with (self.workspace.path / "results/names.jsonl").open("a") as file:
            file.write(f"{line}\n")

    def seal_all(self) -> Project:
        project = self.load()
        for dataset in project.datasets.values():
            self.seal_dataset(project, dataset)
        for run in project.runs.values():
            self.seal_run(run)
            self.seal_evaluation(run)
        return project

    def seal_dataset(self, project: Project, dataset: Dataset) -> None:
        records = []
        for number in range(dataset.settings["shards"]):
            path = project.store / "datasets" / dataset.id / f"shard-{number:05d}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({"ids": np.arange(number, 64 + number)}, path)
            size, blake3 = path.stat().st_size, file_blake3(path)
            records.append({"file": path.name, "rows": {}, "bytes": size, "blake3": blake3})
        total = sum(record["bytes"] for record in records)
        document = {
            "dataset": dataset.id,
            "bytes": total,
            "shards": records,
            "schema": SCHEMA,
            "identity": dataset.document,
        }
        write_json(dataset.manifest, document)

    def seal_run(self, run: Run) -> None:
        identity = digest(run.document)
        write_json(run.folder / "identity.json", run.document)
        spec = {
            "run": run.id, "identity": identity, "dataset": {"id": run.dataset.id},
            "model_class": run.model_class, "settings": run.settings, "definitions": run.definitions,
        }  # fmt: skip
        write_json(run.folder / "run.json", spec)
        model, metrics = run.folder / "model.safetensors", run.folder / "metrics.jsonl"
        save_file(WEIGHTS, model, metadata={"format": "pt", "identity": identity})
        metrics.write_text('{"step": 1}\n{"step": 2, "val_loss": 0.5}\n')
        provenance = {
            "run": run.id,
            "identity": identity,
            "dataset": {"id": run.dataset.id},
            "manifest_sha256": file_sha256(run.dataset.manifest)
            if run.dataset.manifest.exists()
            else "",
            "files": {path.name: file_sha256(path) for path in (model, metrics)},
        }
        write_json(run.folder / "provenance.json", provenance)

    def seal_evaluation(self, run: Run, accuracy: float = 0.9778) -> None:
        headline = {"metric": "accuracy", "value": accuracy, "mode": "max"}
        document = {"run": run.id, "headline": headline, "identity": run.evaluation_document}
        write_json(run.evaluation, document)

    def begin_training(self, run: Run, steps: int) -> None:
        work = Path("store/work") / run.id
        (work / "checkpoints" / f"step-{steps:08d}").mkdir(parents=True)
        lines = [json.dumps({"step": step}) for step in range(1, steps + 1)]
        (work / "metrics.jsonl").write_text("\n".join(lines) + '\n{"st')  # a line being written

    def why(self, name: str) -> list[str]:
        project = self.load()
        return [cause.text for cause in explain(project, project.named_runs()[name]).causes]


_parse_once = cache(code.parse_module)  # a pure function, and four fifths of loading a project


@pytest.fixture
def fake(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> FakeProject:
    monkeypatch.chdir(workspace.path)
    for name in ("SHARDLINE_STORE", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(code, "parse_module", _parse_once)
    return FakeProject(workspace)


# --- a project of every kind of run, for the tests that change one thing ---------------------------


@pytest.fixture(scope="module")
def template_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("template"))
    place.fill()
    return place


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Place], Place]:
    """Have the present process take the library and the template of a place."""

    def make(place: Place) -> Place:
        monkeypatch.setattr(code, "LIBRARY", place.library)
        monkeypatch.setattr(code, "parse_module", _parse_once)
        monkeypatch.setattr(documents, "report_folder", lambda: place.path / "report")
        return place

    return make


@pytest.fixture
def place(template_place: Place, tmp_path: Path, use: Callable[[Place], Place]) -> Place:
    """A project that a test may change."""
    shutil.copytree(template_place.path, tmp_path, dirs_exist_ok=True)
    return use(Place(tmp_path))


@pytest.fixture
def shared(template_place: Place, use: Callable[[Place], Place]) -> Iterator[Place]:
    """A project that a test changes and mends again; cheaper where it does so many times."""
    before = {path: path.read_text() for path in template_place.path.rglob("*") if path.is_file()}
    yield use(template_place)
    for path, text in before.items():
        path.write_text(text)


# --- code that is truly run, for the campaigns of identities ---------------------------------------


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a case makes and removes a dozen folders."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    started = Interpreter()
    yield started
    started.close()
