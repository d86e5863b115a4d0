"""A built dataset and resolved runs, so that ranks can be started without Snakemake."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from shardline.checkpoints.folder import last_step
from shardline.config.load import load_project
from shardline.config.resolved import ActualGeometry
from shardline.core.files import read_json_lines
from shardline.launch.commands import LaunchPlan, launch_command
from shardline.pipeline import run_jobs as jobs
from shardline.training.rank_task import read_run, write_task
from tests.support.built import build
from tests.support.forked import Launch
from tests.support.processes import end_of_ranks, rank_environment, wait_until
from tests.support.rank_tasks import rank_runtime, rank_task


@dataclass(frozen=True)
class Ranks:
    """One run, ready to be trained as often as a test wants, each time in a store of its own."""

    root: Path
    run_json: Path
    manifest: Path
    shards: Path
    devices: int
    nodes: int
    every_steps: int
    is_by_torchrun: bool = False
    lightning: tuple[str, ...] = ()

    def spec_file(self, name: str, geometry: ActualGeometry | None = None, **runtime: Any) -> Path:
        """Write what the ranks of an attempt are given; attempts of one name share a store."""
        folder = self.root / name
        spec = rank_task(
            folder,
            run_json=self.run_json,
            run=replace(read_run(self.run_json, name="run"), lightning=self.lightning),
            manifest=self.manifest,
            shards=self.shards,
            runtime=rank_runtime(checkpoint={"every_steps": self.every_steps}, **runtime),
            geometry=geometry,
        )
        write_task(folder / "rank.json", spec)
        return folder / "rank.json"

    def results(self, name: str) -> Path:
        """Return the folder of an attempt's sealed files."""
        return self.root / name / "results"

    def start(
        self, name: str, *, hold: int | None = None, **changes: Any
    ) -> "subprocess.Popen[str] | Launch":
        """Start the ranks in a process group of their own.

        Args:
            hold: Step after which they wait until `release`: what a test does in mid-training comes in time.
        """
        spec = self.spec_file(name, **changes)
        if not self.is_by_torchrun:
            if hold is not None:
                (self.root / "hold").touch()
            output = self.root / f"{name}.output"
            return Launch(self.devices, spec, cwd=self.root, output=output, hold=hold)
        assert hold is None, "ranks of torchrun wait for nothing"
        plan = LaunchPlan(run_id=name, nodes=self.nodes, devices=self.devices)
        return subprocess.Popen(
            launch_command("torchrun", ["-m", "shardline.training.rank", str(spec)], plan),
            cwd=self.root,
            env=rank_environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def train(self, name: str, **changes: Any) -> str:
        """Train to the end and return the output."""
        process = self.start(name, **changes)
        output = end_of_ranks(process)
        assert process.returncode == 0, output
        return output

    def release(self) -> None:
        """Let ranks go on that wait after a step."""
        (self.root / "hold").unlink()

    def kill_when(
        self, name: str, condition: Callable[[], bool], *, hold: int, **changes: Any
    ) -> None:
        """Start the ranks and kill all of them as soon as a condition holds.

        Args:
            hold: Step after which they wait for the kill.
        """
        process = self.start(name, hold=hold, **changes)
        wait_until(condition, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        self.release()

    def kill_after(self, name: str, step: int, **changes: Any) -> int:
        """Start the ranks, kill all of them once the state of a step or a later one is saved, and return its step."""
        folder = self.root / name / "work/checkpoints"
        saved = -(-step // self.every_steps) * self.every_steps
        hold = saved + max(1, self.every_steps // 2)
        self.kill_when(name, lambda: last_step(folder) >= step, hold=hold, **changes)
        return last_step(folder)

    def model(self, name: str) -> bytes:
        """Return the sealed weights."""
        return (self.results(name) / "model.safetensors").read_bytes()

    def provenance(self, name: str) -> dict[str, Any]:
        """Return the sealed provenance."""
        document: dict[str, Any] = json.loads((self.results(name) / "provenance.json").read_text())
        return document

    def steps(self, name: str) -> list[int]:
        """Return the steps of the train records in the order of the attempt's metrics file."""
        lines = (self.root / name / "work" / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [record["step"] for record in records if "train_loss" in record]

    def steps_lost(self, name: str) -> int:
        """Return how many steps were begun more than once, by the first rank's sample ledger."""
        files = (self.root / name / "work").rglob("from-*-rank-00000-*.jsonl")
        begun = [{line["step"] for line in read_json_lines(file)} for file in files]
        return sum(map(len, begun)) - len(set().union(*begun))


@pytest.fixture
def prepare(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ranks]:
    """Build the dataset of one row and resolve it."""

    def make(
        every_steps: int = 100, datasets: Mapping[str, Any] | None = None, **row: Any
    ) -> Ranks:
        config = {"datasets": datasets} if datasets else {}
        workspace = tiny({"name": "run", "dataset": "table", "model": "mlp", **row}, **config)
        monkeypatch.chdir(workspace.path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        project = load_project()
        (run,) = project.runs.values()
        shards = build(project, run.dataset)
        run_json = workspace.path / run.folder / "run.json"
        jobs.resolve_run(
            project.part(runs=[run.id]), str(run_json), str(run_json.with_name("identity.json"))
        )
        return Ranks(
            root=workspace.path,
            run_json=run_json,
            manifest=workspace.path / run.dataset.manifest,
            shards=workspace.path / shards,
            devices=run.settings.devices,
            nodes=run.settings.nodes,
            every_steps=every_steps,
            lightning=run.lightning,
        )

    return make
