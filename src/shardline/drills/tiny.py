"""The tiny project of a fault-injection test: what is trained, how often it is saved, and where it lies."""

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
Size = tuple[int, int]  # nodes, devices of each

ACCUMULATE = 2
_STEPS = 10  # of an epoch, about
_SHARDS = 4
# Of the rows, so that a validation has several batches on every rank.
_SPLITS = {"train": 0.4, "validation": 0.5, "test": 0.1}
_CADENCE = {"every_steps": 3, "every_min": 0}


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A project in a folder of its own.

    Attributes:
        folder: absolute.
        store: absolute; beside the project, or below the user's own store.
    """

    folder: Path
    store: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment that its commands run in."""
        return {**os.environ, "SHARDLINE_STORE": str(self.store)}

    @cached_property
    def runs(self) -> list[RunPlan]:
        """Its runs, one for each size."""
        return list(load_project(workdir=self.folder).runs.values())

    @property
    def _layout(self) -> ResultsLayout:
        return ResultsLayout(root=self.folder, named_store=self.store)

    def work(self, run: RunPlan) -> Path:
        """Return a run's folder in the store."""
        return self._layout.work(run.id)

    def results(self, run: RunPlan) -> Path:
        """Return the folder of a run's sealed files."""
        return self._layout.run(run.id)

    def plan(self, faults: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        """Write which faults its ranks inject, by the number of ranks."""
        write_json(self.folder / "plan.json", faults)

    def has_fault(self) -> bool:
        """Whether a fault was injected."""
        return any(self.folder.glob("injected/*.json"))

    def injected(self, ranks: int) -> list[dict[str, Any]]:
        """Return the faults injected into the run of so many ranks, each once: `place`, `step`, `pid`."""
        files = sorted(self.folder.glob(f"injected/{ranks}-*-rank-*.json"))
        each = {path.name.partition("-rank-")[0]: json.loads(path.read_text()) for path in files}
        return list(each.values())

    def last_log_line(self) -> str:
        """Return the last line that a training's job wrote to its log."""
        logs = sorted(self._layout.logs.glob("train/*.log"), key=lambda path: path.stat().st_mtime)
        lines = logs[-1].read_text(errors="replace").splitlines() if logs else []
        return next((line for line in reversed(lines) if line.strip()), "the job wrote no log")

    def twin(self, name: str, runtime: Mapping[str, Any]) -> "Tiny":
        """Write a project of the same identities into other folders, with some more settings of how it runs."""
        store = self.store.parent.with_name(name) / self.store.name
        other = Tiny(folder=self.folder.with_name(name), store=store)
        shutil.copytree(self.folder / "config", other.folder / "config")
        path = other.folder / CONFIG
        config = yaml.safe_load(path.read_text())
        config["runtime"] |= runtime
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return other


def num_ranks(run: RunPlan) -> int:
    """Return the number of a run's ranks."""
    return run.settings.nodes * run.settings.devices


def make_tiny(
    folder: Path, store: Path, sizes: Sequence[Size], *, epochs: int, runtime: Mapping[str, Any],
    also: Mapping[str, Any],
) -> Tiny:  # fmt: skip
    """Write a project that is trained in seconds at each of some sizes.

    Args:
        sizes: nodes and devices of each run.
        runtime: the user's own, and the test's timeouts.
        also: the user's other keys that set where and in which environment the ranks run.
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
    """Return the least number from 32 on that all sizes can share."""
    parts = lcm(*(nodes * devices * ACCUMULATE for nodes, devices in sizes))
    return -(-32 // parts) * parts
