"""A study in this process: the real jobs of a sweep, trainings that compute a number, and a controller that is killed.

A kill is an exception that nothing handles, before an operation on a file; the operation has then not happened. As
Snakemake does, the controller starts a job when its inputs are there, in an order that a seed chooses.
"""

import json
import math
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.rungs import AnySlot
from shardline.core.errors import CODE_ERROR, LaunchError
from shardline.core.files import write_bytes, write_json
from shardline.pipeline import sweep_jobs
from shardline.pipeline.jobs import Jobs
from shardline.pipeline.stored_trials import packed, unpack
from shardline.pipeline.sweep_inputs import SweepJobs
from shardline.provenance import actions
from shardline.results.alike import rest_of
from shardline.results.sweeps.trials import read_proposal, read_result, read_study
from shardline.supervision.supervisor import RankError

_GIT = {"commit": None, "dirty": None}
_OPERATIONS = ("rename", "replace", "mkdir", "remove", "unlink", "link", "symlink")
_MACHINE = {"num_cpus": 2, "memory_bytes": 1}


class Killed(BaseException):
    """The end of the controller and of its jobs."""


def value_at(settings: Mapping[str, Any]) -> float:
    """Return the validation loss of some settings: a bowl in the logarithm of the rate."""
    loss = (math.log10(settings.get("optim.lr", 0.01)) + 2.5) ** 2
    return (
        loss
        + 0.1 * settings.get("optim.weight_decay", 0.0)
        + settings.get("model_args.hidden", 64) / 1000
    )


def falling(settings: Mapping[str, Any], epoch: int) -> float:
    """Return a loss that falls with the epochs, and is never better than that of better settings."""
    return value_at(settings) + 1 / epoch


@dataclass(kw_only=True)
class Controller:
    """Runs a project's sweep to its end, through kills and failures.

    Attributes:
        project: Project with one sweep, in the present folder.
        seed: Seed of the order of jobs, of kills and of failures from outside.
        fails: Function of settings: the failure of the training itself, if any.
        kill_rate: Probability of a kill at an operation on a file.
        kill_at: Number of the operation on a file, from 0, at which the controller is killed once.
        fault_rate: Probability that a training fails for a reason outside of it.
        operations: Number of operations on files so far.
        trained: Id of each run whose training was started.
        curve: With rungs, function of settings and epochs: the validation loss. `falling` if None.
        last_epoch: With rungs, function of settings: the epoch in which a training stops early; 0 for none.
        epochs: Of each training with rungs, the epochs that were trained.
        storage: Folder in which declared files are, instead of the project's folder; each job then gets copies of its
            inputs, and each training runs in a new folder, as on another machine.
    """

    project: Project
    seed: int = 0
    fails: Any = lambda settings: None
    kill_rate: float = 0.0
    kill_at: int | None = None
    fault_rate: float = 0.0
    operations: int = 0
    trained: list[str] = field(default_factory=list)
    curve: Any = None
    last_epoch: Any = lambda settings: 0
    epochs: list[int] = field(default_factory=list)
    starts: int = 0
    storage: Path | None = None

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        (self.plan,) = self.project.sweeps.values()
        self._part = self.project.part(runs=[self.plan.base])
        if self.storage:
            self.storage.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        """Start the controller again until the study is sealed."""
        with self._simulated():
            while not self._exists(self.plan.summary(self.project.layout)):
                self.starts += 1
                assert self.starts < 1000, "the study makes no progress"
                try:
                    self._command()
                except (Killed, LaunchError):
                    continue
        self._fetch()

    def _fetch(self) -> None:
        """Copy the files of a storage, as the start and the end of Snakemake do."""
        if self.storage:
            shutil.copytree(self.storage, ".", dirs_exist_ok=True)
            unpack(self.project)

    def _command(self) -> None:
        self._fetch()
        inputs = self.inputs()
        while ready := [job for job in self._jobs(inputs) if self._is_ready(job, inputs)]:
            self._execute(self._random.choice(ready), inputs)

    def inputs(self) -> SweepJobs:
        """Return the functions that say what each job reads. They know what a storage contained at the start."""
        storage: Any = None
        if self.storage:
            begun = {path for path in self.storage.rglob("*") if path.is_file()}
            storage = SimpleNamespace(exists=lambda path: self._stored(path) in begun)
        return SweepJobs(Jobs(self.project, storage, is_main=True, cores=2), is_main=True)

    def _exists(self, path: Path) -> bool:
        return (self._stored(path) if self.storage else path).exists()

    def _stored(self, path: Path) -> Path:
        assert self.storage
        return self.storage / (path.relative_to(Path.cwd()) if path.is_absolute() else path)

    def _jobs(self, inputs: SweepJobs) -> Iterator[tuple[str, AnySlot, int]]:
        """Yield the jobs without an output."""
        layout = self.project.layout
        for trial in self.plan.slots:
            if not self._exists(self.plan.proposal(layout, trial)):
                yield "propose", trial, 0
            for repeat, path in enumerate(self.plan.results(layout, trial)):
                if not self._exists(path):
                    yield "train_trial", trial, repeat
        if not self._exists(self.plan.summary(layout)):
            yield "seal_study", 0, 0

    def _is_ready(self, job: tuple[str, AnySlot, int], inputs: SweepJobs) -> bool:
        return all(self._exists(Path(path)) for path in self._inputs(job, inputs))

    def _inputs(self, job: tuple[str, AnySlot, int], inputs: SweepJobs) -> list[str]:
        rule, trial, _ = job
        wildcards = SimpleNamespace(study=self.plan.id, trial=str(trial), get={"trial": trial}.get)
        needed = {
            "propose": inputs.before,
            "train_trial": inputs.proposal,
            "seal_study": inputs.summary,
        }
        found = needed[rule](wildcards)
        return [found] if isinstance(found, str) else [*found]

    def _execute(self, job: tuple[str, AnySlot, int], inputs: SweepJobs) -> None:
        rule, trial, repeat = job
        layout, key = self.project.layout.declared, self.plan.id
        part, given = self._part, [*map(self._copy, self._inputs(job, inputs))]
        if rule == "propose":
            output = self.plan.proposal(layout, trial)
            sweep_jobs.propose(part, key, trial, self._place(output), given)
            self._deliver(output)
        elif rule == "train_trial":
            output = self.plan.results(layout, trial)[repeat]
            more, named = packed(output), {"proposal": given[0], "manifest": []}
            with self._machine():
                sweep_jobs.train_trial(
                    part, key, trial, repeat, Path("log"), self._place(output), named,
                    packed=self._place(more) if self.storage else None,
                )  # fmt: skip
            self._deliver(more, output)
        else:
            output = self.plan.summary(layout)
            sweep_jobs.seal_study(part, key, self._place(output), given)
            self._deliver(output)

    @contextmanager
    def _machine(self) -> Iterator[None]:
        """With a storage, run a job in a new folder that shares only the states of trainings."""
        if not self.storage:
            yield
            return
        machine = self.storage.with_name("machine")
        shutil.rmtree(machine, ignore_errors=True)
        shutil.copytree("config", machine / "config")
        with chdir(machine):
            yield

    def _copies(self) -> Path:
        assert self.storage
        return self.storage.with_name("copies")

    def _place(self, output: Path) -> str:
        """Return where a job writes a declared file."""
        if self.storage:
            output = self._copies() / output
            output.parent.mkdir(parents=True, exist_ok=True)
        return str(output)

    def _copy(self, path: str) -> str:
        """Return where a job reads a declared file."""
        if not self.storage:
            return path
        place = self._place(Path(path))
        shutil.copyfile(self._stored(Path(path)), place)
        return place

    def _deliver(self, *outputs: Path) -> None:
        for output in outputs if self.storage else ():
            self._stored(output).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(self._copies() / output, self._stored(output))

    def _train(
        self, project: Project, log: Path, model: str, inputs: Any, *, group: str, **_: Any
    ) -> bool:
        (run,) = project.runs.values()
        assert group == self.plan.name, "trackers group the trials by the name of the sweep"
        if (Path(model).parent / "provenance.json").exists():  # by a trial beside this one
            return False
        self.trained.append(run.id)
        settings = run.row.settings
        if self._random.random() < self.fault_rate:
            raise LaunchError("a machine was lost; start the pipeline again")
        if failure := self.fails(settings):
            code = CODE_ERROR if failure == "error" else 6
            raise RankError(
                f"rank 0: {failure}", kind="failed" if failure == "error" else failure, code=code
            )
        value = value_at(settings) + run.settings.seed / 1000
        if self.plan.rungs:
            self._train_rung(run, Path(model))
            return True
        lines = [{"step": step, "epoch": 0, "val_loss": value + 1 / step} for step in (1, 2, 5)]
        write_bytes(Path(model), b"")
        write_bytes(
            Path(model).with_name("metrics.jsonl"),
            "".join(json.dumps(one) + "\n" for one in lines).encode(),
        )
        write_json(
            Path(model).with_name("provenance.json"), {"training": {"steps": 5}, "duration_s": 2.0}
        )
        return True

    def _train_rung(self, run: RunPlan, model: Path) -> None:
        """Train from the longest state of the same training, and write a state."""
        settings, curve = run.row.settings, self.curve or falling
        rest, planned = rest_of(run.document), run.settings.trainer.max_epochs
        end = min(self.last_epoch(settings) or planned, planned)
        store = self.storage.with_name("store") if self.storage else model.parents[1]
        states = [json.loads(path.read_text()) for path in store.glob("*/state.json")]
        before = max((one["epochs"] for one in states if one["rest"] == rest), default=0)
        noise = run.settings.seed / 1000
        lines = [
            {"step": epoch, "epoch": epoch - 1, "val_loss": curve(settings, epoch) + noise}
            for epoch in range(1, end + 1)
        ]
        self.epochs.append(end - min(before, end))
        training = {"steps": end, "consumed": {"steps": end, "planned": planned}}
        continued = {"continued": {"step": before}} if before else {}
        write_bytes(
            model.with_name("metrics.jsonl"),
            "".join(json.dumps(one) + "\n" for one in lines).encode(),
        )
        write_json(
            model.with_name("provenance.json"),
            {"training": training, "duration_s": 2.0, **continued},
        )
        write_json(store / run.id / "state.json", {"rest": rest, "epochs": end})
        write_bytes(model, b"")

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        def resolve(project: Project, run_json: str, identity_json: str) -> None:
            write_json(Path(identity_json), {})
            write_json(Path(run_json), {})

        with (
            mock.patch.object(sweep_jobs, "train", self._train),
            mock.patch.object(sweep_jobs, "resolve_run", resolve),
            mock.patch.object(os, "fsync", return_value=None),
            mock.patch.object(actions, "git_state", return_value=_GIT),
            mock.patch.object(actions, "software", dict),
            mock.patch.object(actions, "machine", return_value=_MACHINE),
            self._killed(),
        ):
            yield

    @contextmanager
    def _killed(self) -> Iterator[None]:
        def killing(operation: Any) -> Any:
            def operate(*arguments: Any, **named: Any) -> Any:
                self.operations += 1
                if self.operations - 1 == self.kill_at or (
                    self.kill_rate and self._random.random() < self.kill_rate
                ):
                    raise Killed
                return operation(*arguments, **named)

            return operate

        patches = [mock.patch.object(os, name, killing(getattr(os, name))) for name in _OPERATIONS]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()

    def outcome(self) -> tuple[list[Any], list[Any], int | None]:
        """Return proposals, results and choice, without what says when and where jobs ran."""
        layout = self.project.layout
        proposals, results = [], []
        for trial in self.plan.slots:
            one = read_proposal(self.plan.proposal(layout, trial))
            told = [(seen.row, seen.value, seen.values) for seen in one.told]
            proposals.append(
                (
                    one.settings,
                    one.row,
                    one.runs,
                    bool(one.excluded),
                    told,
                    one.in_flight,
                    one.parallel,
                    one.trial,
                    [(left.trial, left.value) for left in one.left],
                )
            )
            results += [
                (found.run, found.value, found.step, found.failure, *found.values)
                for found in map(read_result, self.plan.results(layout, trial))
            ]
        return proposals, results, read_study(self.plan.summary(layout)).best
