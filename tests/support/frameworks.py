"""The training programs of examples/ that read by `shardline_io`, as projects that a test runs in any place."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

from shardline.config.scripts import is_script
from shardline.ledger import read_ledger
from tests.support.workspace import REPOSITORY, SNAKEMAKE, Workspace

EXAMPLES = REPOSITORY / "examples"
# By example, the launchers that start it: the first one here and on Slurm, all of them over ssh.
LAUNCHERS = {
    "accelerate": ("torchrun", "none", "mpirun"),
    "deepspeed": ("torchrun", "none", "mpirun"),
    "horovod": ("mpirun",),
    "huggingface": ("torchrun", "none", "mpirun"),
    "jax": ("torchrun", "none", "mpirun"),
    "mpi4py": ("mpirun",),
    "tensorflow": ("torchrun", "none", "mpirun"),
    "torchrun": ("torchrun", "none", "mpirun"),
}
FRAMEWORKS = tuple(LAUNCHERS)
# Those of which a continuous integration takes one: the wheel of Horovod is ten minutes' work of a compiler.
QUICK = tuple(name for name in FRAMEWORKS if name != "horovod")
# An example and a program of it, where they are not the framework's `train.py`.
PROGRAMS = {"accelerate": ("huggingface", "loop.py")}
TESTED = {PROGRAMS.get(name, (name, ""))[0] for name in FRAMEWORKS}  # examples
# Under Azure ML's launcher each process is a world of its own for MPI.
WITHOUT_MPI = tuple(name for name in FRAMEWORKS if LAUNCHERS[name] != ("mpirun",))
# Environments outlive the tests, since one of them takes minutes and gigabytes.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardline-tests"
# Rank 1 kills itself before one step, and has its rank's program asked to end before another, once each.
FAULTS = """
import os
import signal

import shardline_io as io

train_whole = io.train
FAULTS = ((71, "killed", os.getpid, signal.SIGKILL), (151, "asked", os.getppid, signal.SIGTERM))


def train(*args):
    for batch in train_whole(*args):
        for step, name, target, number in FAULTS:
            mark = io.work_folder() / name
            if batch.step == step and io.world().rank == 1 and not mark.exists():
                mark.touch()
                os.kill(target(), number)
        yield batch


io.train = train
"""
# What this process has run on this machine without interruption, by framework.
WHOLE: dict[str, "Project"] = {}
STOP_GRACE_S = 5  # JAX never notices that a peer is gone, so its ranks are killed in the end


@dataclass(frozen=True)
class Trained:
    """What a run left.

    Attributes:
        model: weights by name.
        records: of the curves, without seconds.
        ledger: row ids of each step.
        ends: how each attempt ended, and with which code.
        reasons: the attempts' own words.
        accuracy: as the program measured it.
        hosts: of each rank.
    """

    model: dict[str, Any]
    records: list[dict[str, Any]]
    ledger: dict[int, list[int]]
    ends: list[tuple[str, int]]
    reasons: str
    accuracy: float
    hosts: list[str]


@dataclass(frozen=True)
class Project:
    """A copy of an example in a folder of its own."""

    workspace: Workspace
    framework: str

    @classmethod
    def of(cls, framework: str, folder: Path) -> "Project":
        """Copy what git keeps of an example, links followed, and make its data."""
        made = shutil.ignore_patterns(
            "data", "results", "store", "logs", "benchmarks", ".snakemake", "build", "wheels"
        )
        example, name = PROGRAMS.get(framework, (framework, "train.py"))
        shutil.copytree(EXAMPLES / example, folder, ignore=made, dirs_exist_ok=True)
        program = (folder / name).read_text()
        (folder / "train.py").write_text(program)
        (folder / "broken.py").write_text(f"import faults  # noqa: F401\n{program}")
        (folder / "faults.py").write_text(FAULTS)
        subprocess.run([sys.executable, "make_data.py", "data"], cwd=folder, check=True)
        project = cls(Workspace(folder), framework)
        project._share_environments()
        if framework == "horovod":
            make = ["make", "-C", str(EXAMPLES / example), "wheels", f"PYTHON={sys.executable}"]
            subprocess.run(make, check=True)
            (folder / "wheels").symlink_to(EXAMPLES / example / "wheels")
        return project

    @property
    def path(self) -> Path:
        """The project's folder."""
        return self.workspace.path

    def _share_environments(self) -> None:
        (CACHE / "envs").mkdir(parents=True, exist_ok=True)
        (self.path / "store").mkdir(exist_ok=True)
        (self.path / "store/envs").symlink_to(CACHE / "envs")

    def configure(
        self, models: Mapping[str, str], *, nodes: int = 1, runtime: Mapping[str, Any] = {}
    ) -> None:
        """Write the config, with two ranks on one or two nodes, and a table of runs.

        Args:
            models: by the name of a run, its column `model`; what is no script trains an epoch.
            runtime: is added to the example's.
        """
        example, _ = PROGRAMS.get(self.framework, (self.framework, ""))
        config = yaml.safe_load((EXAMPLES / example / "config/config.yaml").read_text())
        environment = config["defaults"].pop("environment", "")
        config["defaults"] |= {"nodes": nodes, "devices": 2 // nodes}
        config["runtime"] |= {"stop_grace_s": STOP_GRACE_S, **runtime}
        rows = [
            {
                "name": name, "dataset": "digits", "model": model, "model_args.hidden": 64,
                **({"environment": environment} if is_script(model) else {"trainer.max_epochs": 1}),
            }
            for name, model in models.items()
        ]  # fmt: skip
        self.workspace.configure(config, rows)

    def command(self, profile: Path, *arguments: str) -> list[str]:
        """Return the command line of a user."""
        return [
            "env", "--default-signal=INT", str(SNAKEMAKE), "--cores", "2", "--profile", str(profile), *arguments
        ]  # fmt: skip

    def run(self) -> None:
        """Run it on this machine."""
        done = subprocess.run(
            self.command(self.path / "profiles/local"), cwd=self.path, text=True, check=False,
            timeout=1800, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + self.logs()

    def copy(self, folder: Path) -> "Project":
        """Return the same project elsewhere, with its dataset and without its runs."""
        left_out = shutil.ignore_patterns("runs", "latest", "reports", "report", "work", "logs")
        shutil.copytree(self.path, folder, ignore=left_out, symlinks=True)
        return Project(Workspace(folder), self.framework)

    def logs(self) -> str:
        """Return the ends of the logs of all trainings."""
        logs = sorted(self.path.glob("logs/train/**/*.log"))
        return "".join(f"--- {log}\n{log.read_text()[-4000:]}" for log in logs)

    def trained(self, name: str, store: Path | None = None) -> Trained:
        """Return what a run left; the store is the project's, unless another one is given."""
        identity = self.workspace.identity(name)
        results = self.path / f"results/runs/{identity}"
        work = (store or self.path / "store") / f"work/{identity}"
        records = _lines(results / "metrics.jsonl")
        attempts = _lines(work / "attempts.jsonl")
        provenance = json.loads((results / "provenance.json").read_text())
        evaluation = provenance["training"].get("evaluation") or {}
        return Trained(
            model=load_file(results / "model.safetensors"),
            records=[{k: v for k, v in one.items() if k != "wall_s"} for one in records],
            ledger=read_ledger(work / "ledger"),
            ends=[(one["end"], one["exit_code"]) for one in attempts],
            reasons=" ".join(one["reason"] for one in attempts),
            accuracy=evaluation.get("metrics", {}).get("accuracy", 0.0),
            hosts=[rank["host"] for rank in provenance["world"]["ranks"]],
        )


def node_cache(folder: Path) -> Path:
    """Return a cache folder in which a node of Azure ML finds the environments that tests keep."""
    (CACHE / "envs").mkdir(parents=True, exist_ok=True)
    (folder / "shardline").mkdir(parents=True)
    (folder / "shardline/envs").symlink_to(CACHE / "envs")
    return folder


def assert_same(found: Trained, expected: Trained) -> None:
    """Verify that two trainings took the same samples, and have the same curves and weights, bit by bit."""
    assert found.ledger == expected.ledger
    assert found.records == expected.records
    assert found.model.keys() == expected.model.keys()
    for name, weight in expected.model.items():
        np.testing.assert_array_equal(found.model[name], weight, err_msg=name)


def _lines(path: Path) -> Sequence[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
