"""A tiny project on the emulated service, run by the real Snakemake with the shipped profile."""

import json
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from shardline.cli.new_project import init_project
from shardline.ledger import read_ledger
from tests.azureml.emulator import AzureMLEmulator
from tests.azureml.emulator.jobs import Job
from tests.support.machines import end_of, in_network_of, kill_group
from tests.support.workspace import REPOSITORY, TINY_CONFIG, Workspace

SHIPPED = REPOSITORY / "profiles/azureml/profile.yaml"
IMAGE = f"registry.example.com/shardline@sha256:{64 * 'a'}"
PATIENCE_S = 600
# What a checkout holds for a workflow that is run in it.
CHECKED_OUT = (
    "Snakefile", "rules", "scripts", "envs", "report", "profiles/default", "requirements.lock",
)  # fmt: skip
FAST = {"seconds-between-status-checks": 1, "latency-wait": 5}
# Two processors play all of the service's machines.
RUNTIME = {
    "oversubscribe": True, "threads_per_rank": 1, "ledger": True, "log_every_steps": 1,
    "checkpoint": {"every_steps": 3},
}  # fmt: skip
ROW = {"dataset": "table", "model": "slow:Slow", "trainer.max_epochs": 4}
NUM_STEPS = 80

# Slow, so that an accident strikes in the middle, and without an end, until a file `hurry` is in
# the store. It goes no further than a quarter while `wait` is there. After `stumble` the last rank fails.
MODEL = """
import os
import time
from pathlib import Path

from shardline.training.models.mlp import MLP

STORE = Path(os.environ["SHARDLINE_STORE"])
NUM_STEPS = 80


class Slow(MLP):
    def training_step(self, batch, batch_idx):
        is_told = (STORE / "hurry").exists
        if not is_told():
            time.sleep(1)
        while self.global_step >= NUM_STEPS // 4 and (STORE / "wait").exists():
            time.sleep(0.1)
        while self.global_step >= NUM_STEPS - 10 and not is_told():
            time.sleep(0.1)
        if (STORE / "stumble").exists() and self.global_rank == self.trainer.world_size - 1:
            raise ValueError(f"rank {self.global_rank} stumbles")
        return super().training_step(batch, batch_idx)
"""


@dataclass(frozen=True)
class Results:
    """What a training has come to.

    Attributes:
        folder: The project's folder.
        store: The store of its jobs.
    """

    folder: Path
    store: Path

    def samples(self) -> dict[int, list[int]]:
        """Return the row ids of each step."""
        (ledger,) = self.store.glob("work/*/ledger")
        return read_ledger(ledger)

    def losses(self) -> list[tuple[int, float]]:
        """Return step and train loss of each record."""
        records = map(json.loads, self._the("metrics.jsonl").read_text().splitlines())
        return [(r["step"], r["train_loss"]) for r in records if "train_loss" in r]

    def evaluation(self) -> dict[str, Any]:
        """Return the final metrics."""
        found: dict[str, Any] = json.loads(self._the("evaluations/*.json").read_text())["metrics"]
        return found

    def weights(self) -> dict[str, list[Any]]:
        """Return the sealed weights."""
        from safetensors.torch import load_file

        return {name: w.tolist() for name, w in load_file(self._the("model.safetensors")).items()}

    def provenance(self) -> dict[str, Any]:
        """Return the sealed provenance."""
        found: dict[str, Any] = json.loads(self._the("provenance.json").read_text())
        return found

    def identity(self) -> dict[str, Any]:
        """Return what tells this run from others, except for how its ranks share nodes."""
        found: dict[str, Any] = json.loads(self._the("identity.json").read_text())
        ranks = found["settings"].pop("nodes") * found["settings"].pop("devices")
        return {**found, "ranks": ranks}

    def resumed(self) -> list[str]:
        """Return the steps from which the last start has resumed, as the training's log has them."""
        log = Workspace(self.folder).the("logs/train/*.log").read_text()
        return re.findall(r"resuming from step (\d+): 4 ranks on 2 nodes", log)

    def _the(self, pattern: str) -> Path:
        return Workspace(self.folder).the(f"results/runs/*/{pattern}")


class Pipeline:
    """A checkout on the submitting machine, and the service where its jobs run."""

    def __init__(self, path: Path, service: AzureMLEmulator, name: str, sdk: str) -> None:
        """Check the project out.

        Args:
            path: The project's folder; it is made.
            service: The service.
            name: Name of the run, of the container of declared files, and of the jobs' store.
            sdk: What the profile says.
        """
        self.path, self.service, self.name, self.sdk = path, service, name, sdk
        self.store = service.datastore() / name
        self.store.mkdir(exist_ok=True)
        self.process: subprocess.Popen[str] | None = None
        self.starts = 0
        self.check_out()

    def check_out(self) -> None:
        """Write what the checkout holds: with v1 a project that uses the installed workflow."""
        if self.sdk == "v1":
            init_project(self.path)
        for relative in CHECKED_OUT if self.sdk == "v2" else ():
            source, target = REPOSITORY / relative, self.path / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        (self.path / "slow.py").write_text(MODEL)

    @property
    def environment(self) -> dict[str, str]:
        """What Snakemake has set on the submitting machine."""
        return self.service.environment

    @property
    def results(self) -> Results:
        """What it has come to."""
        return Results(self.path, self.store)

    # What the user does

    def configure(
        self, *, train: Mapping[str, Any], site: Mapping[str, Any] | None = None,
        sweeps: Mapping[str, Any] | None = None, **row: Any,
    ) -> None:  # fmt: skip
        """Write config, a table of one run, and the shipped profile with the site's values.

        Args:
            train: Values of the rule's resources.
            site: Further values of the profile.
            sweeps: Sweeps of the config.
            row: Settings of the run.
        """
        runtime = {**RUNTIME, "tracking": ["mlflow"]}
        config = {**TINY_CONFIG, "runtime": runtime, "azureml": {"register_data": True}}
        config |= {"sweeps": dict(sweeps)} if sweeps else {}
        Workspace(self.path).configure(config, [{"name": self.name, **ROW, **row}])
        profile = yaml.safe_load(SHIPPED.read_text())
        profile["set-resources"]["train"] |= train
        del profile["config"]["azureml"]  # it would go before the project's
        site = {"azureml-image": IMAGE, **self.site("SHARDLINE_STORE"), **(site or {})}
        self.write_profile({**profile, **site})

    def site(self, store: str) -> dict[str, Any]:
        """Return what a profile says of the service and of this project.

        Args:
            store: The variable that tells jobs where their store is.
        """
        service = self.service
        return {
            "azureml-sdk": self.sdk,
            "azureml-subscription": service.subscription,
            "azureml-resource-group": service.resource_group,
            "azureml-workspace": service.workspace,
            "azureml-compute": service.compute,
            "azureml-mounts": f"{store}={service.default_datastore}:{self.name}",
            "default-storage-prefix": f"az://{self.name}/project",
            **FAST,
        }

    def write_profile(self, profile: Mapping[str, Any]) -> None:
        """Write the profile that Snakemake is started with."""
        target = self.path / "profiles/azureml/profile.yaml"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(yaml.safe_dump(dict(profile)))

    def take_dataset(self, local: Results) -> None:
        """Have a dataset in the store and in the container as if this project's jobs had made it."""
        shutil.copytree(local.store / "datasets", self.store / "datasets")
        storage = self.service.blob_storage
        assert storage is not None
        self.service.container(self.name)
        for file in ("manifest.json", "provenance.json"):
            (path,) = local.folder.glob(f"results/datasets/*/{file}")
            blob = f"project/{path.relative_to(local.folder)}"
            upload = partial(storage.container_client(self.name).upload_blob, blob)
            in_network_of(self.service.login, partial(upload, path.read_bytes()))

    def run(self, *arguments: str) -> str:
        """Run the pipeline to an end without error, and return what it told."""
        self.start(*arguments)
        code = self.end()
        assert code == 0, self.story()
        return self.told()

    def start(self, *arguments: str) -> None:
        """Start Snakemake."""
        command = shlex.join(["snakemake", "--profile", "profiles/azureml", *arguments])
        self.starts += 1
        self._output(self.starts).touch()
        # Its folder is what the jobs get as code, so what it tells is kept beside.
        self.process = self.service.login.popen(
            "bash", "-c", f"echo $$ >../pid; exec {command} >../told-{self.starts} 2>&1",
            cwd=self.path, env=self.environment,
        )  # fmt: skip

    def end(self) -> int:
        """Wait for Snakemake's end and return its exit code."""
        assert self.process is not None
        return end_of(self.process, self.story, timeout_s=PATIENCE_S)

    def interrupt(self) -> int:
        """Press Ctrl-C; returns the exit code."""
        assert self.process is not None
        kill_group(self.process, signal.SIGINT)
        return self.end()

    def kill(self) -> None:
        """End Snakemake without warning."""
        self.service.login.run("kill", "-KILL", (self.path.parent / "pid").read_text().strip())
        assert self.end() != 0

    def hurry(self) -> None:
        """Let the training go on at full speed."""
        (self.store / "hurry").touch()

    def wait(self) -> None:
        """Have the training wait after a quarter of its steps."""
        (self.store / "wait").touch()

    def go_on(self) -> None:
        """Let the training go on that waits."""
        (self.store / "wait").unlink()

    # What there is to see

    def told(self, start: int | None = None) -> str:
        """Return what the last start has printed, or another by its number, from 1."""
        return self._output(start or self.starts).read_text()

    def jobs(self, rule: str = "") -> list[Job]:
        """Return this project's jobs, of one rule if it is given, in the order of submission."""
        return [
            job for job in self.service.jobs.values()
            if job.name.startswith(rule) and any(m.path == self.name for m in job.spec.mounts)
        ]  # fmt: skip

    def asked(self, pattern: str, since: int = 0) -> list[int]:
        """Return the places of the requests, from one on, that fit and were answered well."""
        return [
            place
            for place, request in enumerate(self.service.requests)
            if place >= since
            and request.status == 200
            and re.search(pattern, f"{request.method} {request.path}")
        ]

    def story(self) -> str:
        """Return the logs of all jobs, the faults that nobody met, and what the last start has told."""
        unmet = [
            f"{one.left} x {one.kind}: {one.match.pattern}" for one in self.service.faults_left()
        ]
        return f"{self.logs()}\n== faults to come: {unmet}\n== told\n{self.told()}"

    def logs(self) -> str:
        """Return all logs of all jobs, those that failed last."""
        return "".join(
            f"\n== {job.name} {job.status} {job.error} {name}\n{text}"
            for job in sorted(self.jobs(), key=lambda job: job.status == "Failed")
            for name, text in job.logs.items()
        )

    def wait_until(
        self, condition: Callable[[], bool], what: str, *, is_watched: bool = True
    ) -> None:
        """Wait until something holds, by default while Snakemake runs."""

        def holds() -> bool:
            assert self.process is not None
            ended = is_watched and self.process.poll() is not None
            assert not ended, f"ended before {what}; it told\n{self.story()}"
            return condition()

        self.service.wait_until(
            holds, lambda: f"no {what}; it told\n{self.story()}", timeout_s=PATIENCE_S
        )

    def wait_for_checkpoint(self, *, is_watched: bool = True) -> None:
        """Wait until the training has saved its state once more."""
        known = self._saves()
        self.wait_until(
            lambda: self._saves() != known, "training checkpoint", is_watched=is_watched
        )

    def _output(self, start: int) -> Path:
        return self.path.parent / f"told-{start}"

    def _saves(self) -> list[int]:
        return [path.stat().st_ino for path in self.store.glob("work/*/checkpoints/step-*")]
