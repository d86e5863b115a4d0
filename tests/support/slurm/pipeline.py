"""A tiny project on a cluster, run by the real Snakemake with the shipped profile."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shardline.ledger import read_ledger
from tests.support.slurm.cluster import SlurmCluster
from tests.support.workspace import REPOSITORY, TINY_CONFIG, Workspace

SHIPPED = REPOSITORY / "profiles" / "slurm" / "profile.yaml"
FAST = {
    "slurm-init-seconds-before-status-checks": 1,
    "seconds-between-status-checks": 1,
    "latency-wait": 5,
}


@dataclass(frozen=True)
class Pipeline:
    """A project folder and the cluster that it runs on."""

    workspace: Workspace
    cluster: SlurmCluster

    @property
    def path(self) -> Path:
        """The project's folder."""
        return self.workspace.path

    def configure(self, *, runtime: Mapping[str, Any], config: Any = None, **row: Any) -> None:
        """Write config, a table of one run, and the shipped profile with the settings given."""
        row = {"name": "run", "dataset": "table", "model": "mlp", **row}
        self.workspace.configure({**TINY_CONFIG, **(config or {})}, [row])
        profile = yaml.safe_load(SHIPPED.read_text())
        profile["config"]["runtime"] |= {"ledger": True, "log_every_steps": 1, **runtime}
        profile["default-resources"]["mem_mb"] = 1000
        profile["set-resources"]["train"]["mem_mb"] = 3000
        self.workspace.write("profile/profile.yaml", yaml.safe_dump({**profile, **FAST}))

    def command(self, *arguments: str, profile: str = "profile") -> list[str]:
        """Return the command line of a user on the login machine."""
        return [
            sys.executable, str(REPOSITORY / "tests" / "support" / "slurm" / "snakemake_fast.py"),
            "--snakefile", str(REPOSITORY / "Snakefile"), "--directory", str(self.path),
            "--profile", str(self.path / profile), *arguments,
        ]  # fmt: skip

    def run(self, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run the pipeline to its end."""
        return self.cluster.login.run(
            *self.command(*arguments), cwd=self.path, timeout=timeout, check=False
        )

    def copy(self, path: Path, cluster: SlurmCluster | None = None) -> "Pipeline":
        """Return the same project elsewhere, with its dataset and without its runs."""
        left_out = shutil.ignore_patterns("runs", "latest", "reports", "report", "work", "logs")
        shutil.copytree(self.path, path, ignore=left_out, symlinks=True)
        return Pipeline(Workspace(path), cluster or self.cluster)

    def log(self) -> str:
        """Return the training's log."""
        return self.workspace.the("logs/train/*.log").read_text()

    def provenance(self) -> dict[str, Any]:
        """Return the sealed provenance."""
        document: dict[str, Any] = json.loads(
            self.workspace.the("results/runs/*/provenance.json").read_text()
        )
        return document

    def model(self) -> bytes:
        """Return the sealed weights."""
        return self.workspace.the("results/runs/*/model.safetensors").read_bytes()

    def losses(self) -> list[tuple[int, float]]:
        """Return step and train loss of each record."""
        lines = self.workspace.the("results/runs/*/metrics.jsonl").read_text().splitlines()
        records = map(json.loads, lines)
        return [(r["step"], r["train_loss"]) for r in records if "train_loss" in r]

    def samples(self) -> dict[int, list[int]]:
        """Return the row ids of each step."""
        return read_ledger(self.workspace.the("store/work/*/ledger"))
