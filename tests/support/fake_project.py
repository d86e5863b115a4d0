"""A project whose results were never computed, for the tests of the `shardline` command."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import convert
from safetensors.numpy import save_file

from shardline.config.bases import Base
from shardline.config.layout import LAYOUT
from shardline.config.load import load_project
from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.project import Project, record_names
from shardline.config.resolved import as_plain
from shardline.core.canonical import digest
from shardline.core.digests import file_blake3, file_sha256
from shardline.core.files import write_json
from shardline.core.seals import seal
from shardline.records.base import encode
from shardline.records.datasets import DatasetProvenance, Manifest
from shardline.records.jobs import JobRecord
from shardline.results.staleness import explain
from tests.support.job_records import job_record
from tests.support.workspace import Workspace

DIGEST = "0123456789ab"
MODEL = """
class Net:
    def __init__(self, width=8):
        self.width = width

    def forward(self, x):
        return x
"""
LOCK = "torch=={torch}\n    # via shardline\nnumpy==2.4.6\n    # via shardline\n"
SCHEMA = {
    "task": "classification",
    "feature_shape": [2],
    "feature_dtype": "float32",
    "classes": ["a", "b", "c"],
}
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

    def run(self, name: str) -> RunPlan:
        return self.load().named_runs()[name]

    def plan(self, name: str) -> Project:
        """Return what the jobs of a run are given of the project."""
        project = self.load()
        return project.part(runs=[key for key, run in project.runs.items() if name in run.names])

    def remember(self, kind: str, name: str, identity: str = DIGEST) -> None:
        """Have a name stand for an identity in the history."""
        line = {"kind": kind, "name": name, "id": identity}
        self.workspace.write("results/layout.json", json.dumps({"layout": LAYOUT}))
        with (self.workspace.path / "results/names.jsonl").open("a") as file:
            file.write(f"{json.dumps({**line, 'sha256': digest(line)})}\n")

    def seal_all(self) -> Project:
        project = self.load()
        for dataset in project.datasets.values():
            self.seal_dataset(project, dataset)
        for run in project.runs.values():
            self.seal_run(run)
            self.seal_evaluation(run)
        return project

    def seal_dataset(self, project: Project, dataset: DatasetPlan) -> None:
        records = []
        for number in range(dataset.settings.shards):
            path = project.store / "datasets" / dataset.id / f"shard-{number:05d}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({"ids": np.arange(number, 64 + number)}, path)
            size, blake3 = path.stat().st_size, file_blake3(path)
            rows = {"train": 60, "validation": 0, "test": 4}
            records.append({"file": path.name, "rows": rows, "bytes": size, "blake3": blake3})
        splits = {name: sum(record["rows"][name] for record in records) for name in rows}
        num_rows = splits["train"]
        of_each = {key: [0.0, 0.0] for key in ("mean", "std", "min", "max")}
        document = {
            "dataset": dataset.id,
            "schema": SCHEMA,
            "splits": splits,
            "bytes": sum(record["bytes"] for record in records),
            "statistics": {"features": {"count": num_rows, **of_each}, "class_counts": {}},
            "skipped": {"count": 0, "first": []},
            "shards": records,
            "identity": dataset.document,
        }
        write_json(dataset.manifest, encode(convert(document, Manifest)))

    def record_parts(self, dataset: DatasetPlan, parts: list[JobRecord]) -> None:
        """Write the provenance of a sealed dataset whose parts were made by some jobs."""
        provenance = DatasetProvenance(
            dataset=dataset.id,
            identity=digest(dataset.document),
            definitions=dataset.definitions,
            inferred={},
            action=job_record(f"seal_dataset/{dataset.id}"),
            parts=parts,
            files={"manifest.json": file_sha256(dataset.manifest)},
        )
        write_json(dataset.provenance, seal(encode(provenance)))

    def seal_run(self, run: RunPlan) -> None:
        identity, manifests = digest(run.document), [part.dataset.manifest for part in run.parts]
        digests = [file_sha256(path) if path.exists() else "" for path in manifests]
        datasets: dict[str, Any] = {"dataset": {"id": run.dataset.id}}
        read = {**datasets, "manifest_sha256": digests[0]}
        if len(run.parts) > 1:
            mixed = [{"id": part.dataset.id, "weight": str(part.weight)} for part in run.parts]
            datasets = {"datasets": mixed}
            pairs = zip(mixed, digests, strict=True)
            read = {"datasets": [{**part, "manifest_sha256": sha256} for part, sha256 in pairs]}
        write_json(run.folder / "identity.json", run.document)
        bases = {"bases": [encode(one.record) for one in run.bases]} if run.bases else {}
        spec = {
            "run": run.id, "identity": identity, **datasets, **bases,
            "model_class": run.model_class, "settings": as_plain(run.settings), "definitions": run.definitions,
        }  # fmt: skip
        write_json(run.folder / "run.json", seal(spec))
        model, metrics = run.folder / "model.safetensors", run.folder / "metrics.jsonl"
        save_file(WEIGHTS, model, metadata={"format": "pt", "identity": identity})
        metrics.write_text('{"step": 1}\n{"step": 2, "val_loss": 0.5}\n')
        provenance = {
            "run": run.id,
            "identity": identity,
            **read,
            **({"bases": [*map(self._base, run.bases)]} if run.bases else {}),
            "files": {path.name: file_sha256(path) for path in (model, metrics)},
        }
        write_json(run.folder / "provenance.json", seal(provenance))

    def _base(self, base: Base) -> dict[str, Any]:
        sealed = base.run and base.path.exists()
        return {**encode(base.record), **({"sha256": file_sha256(base.path)} if sealed else {})}

    def seal_evaluation(self, run: RunPlan, accuracy: float = 0.9778) -> None:
        headline = {"metric": "accuracy", "value": accuracy, "mode": "max"}
        document = {"run": run.id, "headline": headline, "identity": run.evaluation_document}
        write_json(run.evaluation, seal(document))

    def begin_training(self, run: RunPlan, steps: int) -> None:
        work = Path("store/work") / run.id
        (work / "checkpoints" / f"step-{steps:08d}").mkdir(parents=True)
        lines = [json.dumps({"step": step}) for step in range(1, steps + 1)]
        (work / "metrics.jsonl").write_text("\n".join(lines) + '\n{"st')  # a line being written

    def why(self, name: str) -> list[str]:
        project = self.load()
        return [cause.text for cause in explain(project, project.named_runs()[name]).causes]
