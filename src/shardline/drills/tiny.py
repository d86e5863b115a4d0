"""Tiny project of a fault-injection test."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from pathlib import Path
from typing import Any

import yaml

from shardline.config.layout import ResultsLayout
from shardline.config.load import load_project
from shardline.config.plans import RunPlan
from shardline.core.files import write_json

CONFIG = Path("config/config.yaml")
Size = tuple[int, int]  # nodes, devices per node

ACCUMULATE = 2
_STEPS = 10  # approximate steps per epoch
_SHARDS = 4
# Shares of rows. A validation needs several batches on every rank.
_SPLITS = {"train": 0.4, "validation": 0.5, "test": 0.1}
_CADENCE = {"every_steps": 3, "every_min": 0}


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """Tiny project in its own folder.

    Attributes:
        folder: absolute path of the project.
        store: absolute path of the store, beside the project or below the user's store.
    """

    folder: Path
    store: Path

    @property
    def env(self) -> dict[str, str]:
        """Environment variables of the commands."""
        return {**os.environ, "SHARDLINE_STORE": str(self.store)}

    @cached_property
    def runs(self) -> list[RunPlan]:
        """Runs, one per size."""
        return list(load_project(workdir=self.folder).runs.values())

    @property
    def _layout(self) -> ResultsLayout:
        return ResultsLayout(root=self.folder, named_store=self.store)

    def work(self, run: RunPlan) -> Path:
        """Return the folder of a run in the store."""
        return self._layout.work(run.id)

    def results(self, run: RunPlan) -> Path:
        """Return the folder of the sealed files of a run."""
        return self._layout.run(run.id)

    def plan(self, faults: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        """Write the faults to inject, by number of ranks."""
        write_json(self.folder / "plan.json", faults)

    def has_fault(self) -> bool:
        """Return whether a fault was injected."""
        return any(self.folder.glob("injected/*.json"))

    def injected(self, ranks: int) -> list[dict[str, Any]]:
        """Return the injected faults of the run with this number of ranks: `place`, `step`, `time`, `pid`."""
        files = sorted(self.folder.glob(f"injected/{ranks}-*-rank-*.json"))
        each = {path.name.partition("-rank-")[0]: json.loads(path.read_text()) for path in files}
        return list(each.values())

    def last_log_line(self) -> str:
        """Return the last line in the log of the newest training job."""
        logs = sorted(self._layout.logs.glob("train/*.log"), key=lambda path: path.stat().st_mtime)
        lines = logs[-1].read_text(errors="replace").splitlines() if logs else []
        return next((line for line in reversed(lines) if line.strip()), "the job wrote no log")

    def twin(self, name: str, runtime: Mapping[str, int]) -> "Tiny":
        """Write a project with the same identities and further `runtime` settings into other folders."""
        store = self.store.parent.with_name(name) / self.store.name
        other = Tiny(folder=self.folder.with_name(name), store=store)
        shutil.copytree(self.folder / "config", other.folder / "config")
        path = other.folder / CONFIG
        config = yaml.safe_load(path.read_text())
        config["runtime"] |= runtime
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return other


def num_ranks(run: RunPlan) -> int:
    """Return the number of ranks of a run."""
    return run.settings.nodes * run.settings.devices


def make_tiny(
    folder: Path, store: Path, sizes: Sequence[Size], *, epochs: int, runtime: Mapping[str, Any],
    also: Mapping[str, Any],
) -> Tiny:  # fmt: skip
    """Write a project with one run per size, each of which trains in seconds.

    Args:
        sizes: numbers of nodes and of devices per node of each run.
        runtime: `runtime` settings of the user and of the profile.
        also: other config keys of the user that choose the environment of the ranks.
    """
    config = {
        "runs": "config/runs.tsv",
        **also,
        "defaults": {
            "global_batch": _global_batch(sizes),
            "model_args": {"hidden": 32},
            "optim": {"lr": 0.01},
            "early_stopping": {"patience": 0},
            "trainer": {"max_epochs": epochs, "accumulate": ACCUMULATE},
        },
        "runtime": {
            **runtime,
            "check": False,
            "checkpoint": {**(runtime.get("checkpoint") or {}), **_CADENCE},
            "log_every_steps": 1,
            "ledger": True,
            "oversubscribe": True,
            "tracking": [],
        },
        "datasets": {"rows": _rows(sizes)},
    }
    rows = ["name\tdataset\tmodel\tnodes\tdevices"]
    for nodes, devices in dict.fromkeys(sizes):
        rows.append(
            f"drill-{nodes}x{devices}\trows\tshardline.drills.faulty_model:Drill\t{nodes}\t{devices}"
        )
    (folder / "config").mkdir(parents=True)
    (folder / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "config" / "runs.tsv").write_text("\n".join(rows) + "\n")
    return Tiny(folder=folder, store=store)


def _rows(sizes: Sequence[Size]) -> dict[str, Any]:
    rows = _global_batch(sizes) * _STEPS / _SPLITS["train"] / _SHARDS
    return {
        "source": {"type": "synthetic", "rows_per_shard": round(rows), "features": 8, "seed": 3},
        "shards": _SHARDS,
        "shards_per_job": _SHARDS,
        "splits": _SPLITS,
    }


def _global_batch(sizes: Sequence[Size]) -> int:
    """Return the smallest global batch of at least 32 that divides over all sizes."""
    parts = lcm(*(nodes * devices * ACCUMULATE for nodes, devices in sizes))
    return -(-32 // parts) * parts
