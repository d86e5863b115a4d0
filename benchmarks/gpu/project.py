"""Datasets, runs and ranks of the suite: what the pipeline's jobs do, without Snakemake."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.sizes import Work
from benchmarks.turns import REPOSITORY, Ended, TimeOver

from shardline.checkpoints.manifest import CheckpointPolicy
from shardline.config.load import load_project
from shardline.config.resolved import DatasetPlace
from shardline.core.rank_environment import rank_variables
from shardline.pipeline import run_jobs as jobs
from shardline.pipeline.dataset_jobs import build_shards, seal_dataset
from shardline.training.rank_task import RankRuntime, RankTask, Train, read_run, write_task

NEVER = 1000  # epochs, more than any turn comes to
_LOAD = threading.Lock()  # a project is loaded in its folder, which is the process's
_SMALL_SIZE, SMALL_ROWS, SMALL_BATCH = 16, 320, 32


@dataclass(frozen=True, kw_only=True)
class Run:
    """A resolved run and its dataset, which several trainings share.

    Attributes:
        run_json: the resolved run.
        place: where its dataset is.
        folder: of the project.
    """

    run_json: Path
    place: DatasetPlace
    folder: Path

    def training(self, name: str, **runtime: Any) -> "Training":
        """Return a training in a folder of its own.

        Args:
            runtime: fields of `RankRuntime`; `checkpoint`: those of its policy.
        """
        folder = self.folder / name
        policy = CheckpointPolicy(**runtime.pop("checkpoint", {}))
        settings: dict[str, Any] = {
            "log_every_steps": 1, "ledger": True, "verify": "first", "strict_env": "warn", "watch_reads": "off",
            "oversubscribe": True, "rendezvous_timeout_s": 60, "hang_timeout_s": 0.0, **runtime,
        }  # fmt: skip
        for made in ("work", "results", "logs"):
            (folder / made).mkdir(parents=True)
        task = RankTask(
            run=read_run(self.run_json),
            action=Train(run_json=self.run_json, results=folder / "results"),
            datasets=(self.place,),
            work=folder / "work",
            rank_logs=folder / "logs",
            runtime=RankRuntime(checkpoint=policy, **settings),
        )
        write_task(folder / "rank.json", task)
        return Training(folder)


@dataclass(frozen=True)
class Training:
    """A training's folder, with `work`, `results`, `logs` and `rank.json`."""

    folder: Path

    @property
    def words(self) -> list[str]:
        """What Python is started with."""
        return ["-m", "shardline.training.rank", str(self.folder / "rank.json")]

    def attempt(self, end: float, threads: int, **variables: str) -> int:
        """Run an attempt to its end, and return its exit code.

        Args:
            end: by the monotonic clock, when there is no more time.

        Raises:
            TimeOver: the time was over.
        """
        env = {**os.environ, **rank_variables(threads, {}, ""), **variables}
        with (self.folder / "output").open("a") as output:
            process = subprocess.Popen(
                [sys.executable, *self.words], cwd=REPOSITORY, env=env, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        try:
            return process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeOver(f"its time was over; {self.tail()}") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def complete(self, end: float, threads: int, **variables: str) -> "Training":
        """Run an attempt that has to succeed.

        Raises:
            Ended: it did not.
        """
        if self.attempt(end, threads, **variables):
            raise Ended(self.tail())
        return self

    def tail(self) -> str:
        """Return the end of its output."""
        return self.output()[-1500:]

    def output(self) -> str:
        """Return all of its output."""
        return (self.folder / "output").read_text(errors="replace")

    def json(self, name: str) -> Any:
        """Return a sealed file's document."""
        return json.loads((self.folder / "results" / name).read_bytes())


def timed_run(work: Work, folder: Path, accelerator: str, **settings: Any) -> Run:
    """Build a work's dataset, and resolve its run; a second run in the folder finds the dataset there.

    Args:
        settings: of the run, besides those of the work.
    """
    changed = {
        "global_batch": work.batch,
        "data": {"normalize": work.normalize},
        "trainer": {"max_epochs": NEVER, "validate_every_epochs": NEVER},
        **settings,
    }
    source = {"type": f"benchmarks.gpu.sources:{work.source}", "options": work.options}
    return _run(folder, f"benchmarks.gpu.models:{work.model}", source, work.shards, accelerator, changed)  # fmt: skip


def small_run(folder: Path, accelerator: str, **settings: Any) -> Run:
    """Build the small images, and resolve a run of a model that may be killed."""
    changed = {
        "global_batch": SMALL_BATCH,
        "data": {"normalize": "global"},
        "trainer": {"max_epochs": 3},
        **settings,
    }
    options = {"rows": SMALL_ROWS // 2, "size": _SMALL_SIZE}
    source = {"type": "benchmarks.gpu.sources:Images", "options": options}
    return _run(folder, "benchmarks.gpu.models:Small", source, 2, accelerator, changed)


def _run(
    folder: Path, model: str, source: Mapping[str, Any], shards: int, accelerator: str, settings: Mapping[str, Any]
) -> Run:  # fmt: skip
    config = {
        "runs": "runs.tsv",
        "defaults": {
            "devices": 1, "accelerator": accelerator, "optim": {"name": "adam", "lr": 0.001},
            "early_stopping": {"patience": 0}, **settings,
        },
        "runtime": {"strict_env": "warn"},
        "datasets": {"rows": {"source": dict(source), "shards": shards, "splits": _SPLITS}},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    _be_found()
    with _LOAD, chdir(folder):
        Path("config").mkdir(exist_ok=True)
        Path("config/config.yaml").write_text(json.dumps(config))
        Path("runs.tsv").write_text(f"name\tdataset\tmodel\nsuite\trows\t{model}\n")
        project = load_project(config)
        (run,) = project.runs.values()
        place = _dataset(project, run.dataset)
        run_json = folder / f"{run.id}.json"
        jobs.resolve_run(
            project.part(runs=[run.id]), str(run_json), str(folder / f"{run.id}.identity.json")
        )
    return Run(run_json=run_json, place=place, folder=folder / run.id)


def _be_found() -> None:
    """Name the repository in PYTHONPATH, where the project's sources and models are looked for."""
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(REPOSITORY) not in named:
        os.environ["PYTHONPATH"] = os.pathsep.join([*named, str(REPOSITORY)])


_SPLITS = {"train": 0.9, "validation": 0.05, "test": 0.05}


def _dataset(project: Any, dataset: Any) -> DatasetPlace:
    shards = Path(project.store / "datasets" / dataset.id).absolute()
    manifest = Path(dataset.manifest).absolute()
    if not manifest.exists():
        plan = project.part(datasets=[dataset.id])
        for part in dataset.parts:
            build_shards(plan, part, str(shards / f"parts/{part}.json"))
        seal_dataset(plan, str(dataset.manifest), str(dataset.provenance))
    return DatasetPlace(manifest=manifest, shards=shards)
