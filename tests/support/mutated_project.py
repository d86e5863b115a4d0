"""A small project of every kind of run, for tests that change one thing at a time."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shardline.config.load import load_project
from shardline.core.nested import merge, with_values
from shardline.core.package import report_folder
from shardline.identity.code_index import OURS
from tests.support.workspace import REPOSITORY

ROWS = [  # name, dataset, model, strategy
    ("linear", "digits", "linear", ""),
    ("mlp", "digits", "mlp", ""),
    ("table", "synthetic", "linear", ""),
    ("sharded", "synthetic", "mlp", "fsdp"),
    ("own", "rings", "mypkg.models:Net", ""),
    ("program", "digits", "script: tools/train.py --lr 0.1", ""),
]
USER_FILES = {
    "data/rings.csv": "1,2,0\n3,4,1\n",
    "mypkg/__init__.py": "",
    "mypkg/models.py": (
        "from pytorch_lightning import LightningModule\nfrom mypkg import helpers\n\n\n"
        "class Net(LightningModule):\n    def forward(self, x):\n        return helpers.scale(x)\n"
    ),
    "mypkg/helpers.py": "from .deep import FACTOR\n\n\ndef scale(x):\n    return x * FACTOR\n",
    "mypkg/deep.py": "FACTOR = 2\n",
    "mypkg/sources.py": (
        "from shardline.sources import Source\n\n\nclass Rings(Source):\n    pass\n"
    ),
    "mypkg/unused.py": "VALUE = 1\n",
    "tools/train.py": "import json\nimport beside\n\nprint(json.dumps(beside.WIDTH))\n",
    "tools/beside.py": "WIDTH = 3\n",
}
NAMES = [name for name, *_ in ROWS]
DATASETS = {f"dataset {dataset}" for _, dataset, *_ in ROWS}
TRAINS = {f"train {name}" for name in NAMES}
EVALUATES = {f"evaluate {name}" for name in NAMES}
REPORT = {"report"}


def of_runs(*names: str) -> set[str]:
    """The stages of some runs, from training on."""
    return {f"{stage} {name}" for name in names for stage in ("train", "evaluate")} | REPORT


def of_dataset(dataset: str) -> set[str]:
    """The stages of a dataset and of all its runs."""
    return {f"dataset {dataset}"} | of_runs(*(row[0] for row in ROWS if row[1] == dataset))


def with_what_follows(stages: set[str]) -> set[str]:
    """Add the stages that read the results of those that are stale."""
    found = set(stages)
    for name, dataset, *_ in ROWS:
        if f"dataset {dataset}" in found:
            found.add(f"train {name}")
        if f"train {name}" in found:
            found.add(f"evaluate {name}")
    return found | (REPORT if found & EVALUATES else set())


def stale(before: dict[str, str], after: dict[str, str]) -> set[str]:
    """Return the stages whose identity changed."""
    assert before.keys() == after.keys()
    return {stage for stage in before if before[stage] != after[stage]}


@dataclass
class Place:
    """A project folder, with copies of all that counts besides."""

    path: Path

    @property
    def library(self) -> Path:
        return self.path / "lib"

    @property
    def lock(self) -> Path:
        return self.path / "requirements.lock"

    def fill(self) -> None:
        ignored = shutil.ignore_patterns("__pycache__")
        for name in OURS:
            shutil.copytree(REPOSITORY / "src" / name, self.library / name, ignore=ignored)
        shutil.copy(REPOSITORY / "requirements.lock", self.lock)
        shutil.copytree(report_folder(), self.path / "report")
        for name, text in USER_FILES.items():
            self.write(name, text)
        rows = [("name", "dataset", "model", "strategy"), *ROWS]
        self.write("config/runs.tsv", "".join("\t".join(row) + "\n" for row in rows))
        shipped = yaml.safe_load((REPOSITORY / "config" / "config.yaml").read_text())
        rings = {"type": "mypkg.sources:Rings", "files": ["data/*.csv"], "options": {"width": 1}}
        shipped["datasets"]["rings"] = {"source": rings, "shards": 2}
        self.write_config({**shipped, "lock": "requirements.lock"})

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        before = (self.path / name).read_text()
        assert change(before) != before, f"{name} is not changed"
        self.write(name, change(before))

    def edit_library(self, change: Callable[[str], str]) -> None:
        """Change every module of the library."""
        for path in self.library.rglob("*.py"):
            path.write_text(change(path.read_text()))

    def config(self) -> dict[str, Any]:
        return yaml.safe_load((self.path / "config" / "config.yaml").read_text())

    def write_config(self, config: dict[str, Any]) -> None:
        self.write("config/config.yaml", yaml.safe_dump(config, sort_keys=False))

    def set(self, dotted: str, value: Any) -> None:
        """Set one key of the config."""
        self.write_config(merge(self.config(), with_values({}, {dotted: value})))

    def stages(self) -> dict[str, str]:
        """The identity of every stage, by `stage name`."""
        loaded = load_project(workdir=self.path)
        found = {f"dataset {one.name}": one.id for one in loaded.datasets.values()}
        found |= {f"train {run.name}": run.id for run in loaded.runs.values()}
        found |= {f"evaluate {run.name}": run.evaluation_id for run in loaded.runs.values()}
        return found | {"report": loaded.layout.name_of(loaded.report)}
