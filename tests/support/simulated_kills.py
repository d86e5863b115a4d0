"""Trainings of one rank in this process, killed at chosen places and resumed.

`Trainings` has the real worker train a tiny dataset. A kill copies the run's folders as they are and
raises an exception that nothing handles; the next attempt has the copy alone, so that whatever happens
on the exception's way out is lost, as with SIGKILL. A place is a hook, or an operation on a file, which
has then not happened; the file that was being written may be torn.

A state is written where the training goes on for a while, as with the real thread, but in this thread
and after a given number of places, so that a seed gives the same training each time.
"""

import io
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from msgspec import convert, structs
from msgspec.structs import replace

from shardline.checkpoints.folder import list_saved
from shardline.checkpoints.writer import Background
from shardline.config.load import load_project
from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.core.canonical import digest
from shardline.ledger import read_samples
from shardline.pipeline import run_jobs as jobs
from shardline.records.base import encode
from shardline.records.runs import ResolvedRun
from shardline.records.trainings import Training
from shardline.supervision.attempt_log import begin_attempt
from shardline.training import sealed_training
from shardline.training.goodput import Timeline
from shardline.training.rank_task import RankTask
from tests.support.built import build
from tests.support.killed_data import others, tokens_of
from tests.support.rank_tasks import ALONE, rank_runtime, rank_task

_OF_FILES = {"os.rename": "rename", "os.mkdir": "make", "os.remove": "remove", "os.rmdir": "remove"}


class Killed(BaseException):
    """What a kill raises; the program is not meant to handle it."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Where an attempt is killed: the first time that it comes to a place of this name, not before a step.

    Attributes:
        place: a hook such as `Callback.on_validation_end`, or a file operation such as `rename state.pt`.
        step: optimiser steps that are done at least.
        torn: how much of what is being written stays, from 0 to 1; None for all of it.
    """

    place: str
    step: int
    torn: float | None = None


class Process:
    """One attempt: what comes to pass in it, and its end by a kill.

    Args:
        root: folder of the attempt's files.
        kill: where it ends; None for nowhere.
        lateness: places that a training passes before a state is written.
    """

    def __init__(self, root: Path, kill: Kill | None, lateness: int) -> None:
        self.root, self.kill, self.lateness = root, kill, lateness
        self.is_dead = False
        self.step = 0
        self.places: dict[str, int] = {}
        self.events: list[tuple[Any, ...]] = []
        self.writer: LateWriter | None = None
        self._written: tuple[Path, int] | None = None

    def pass_place(self, name: str) -> None:
        """Come to a place; raises `Killed` where the attempt ends."""
        if self.is_dead:
            return
        if self.writer is not None:
            self.writer.pass_place()
        self.places[name] = max(self.places.get(name, 0), self.step)
        if self.kill and self.kill.place == name and self.step >= self.kill.step:
            self.is_dead = True
            self._leave()
            raise Killed

    def operate(self, event: str, arguments: Sequence[Any]) -> None:
        """Come to an operation on a file, which has not happened yet."""
        path = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes | Path) else ""
        if not path.startswith(f"{self.root}/"):
            return
        if event == "open":
            if not arguments[2] & (os.O_WRONLY | os.O_RDWR):
                return
            self.pass_place(f"open {_kind_of(path)}")
            with suppress(FileNotFoundError):
                is_kept = arguments[2] & os.O_APPEND
                self._written = Path(path), Path(path).stat().st_size if is_kept else 0
            self._written = self._written or (Path(path), 0)
        else:
            self.pass_place(f"{_OF_FILES[event]} {_kind_of(path)}")
            self._written = None

    def _leave(self) -> None:
        """Copy the files as a kill leaves them."""
        shutil.copytree(self.root, after(self.root))
        if self.kill.torn is None or self._written is None:
            return
        path, before = self._written
        copy = after(self.root) / path.relative_to(self.root)
        if copy.exists() and copy.stat().st_size >= before:
            os.truncate(copy, before + int(self.kill.torn * (copy.stat().st_size - before)))


def after(root: Path) -> Path:
    """Return where a kill leaves the files of an attempt."""
    return root.with_name(f"{int(root.name) + 1}")


def _kind_of(path: str) -> str:
    return re.sub(r"\d+", "N", path.rpartition("/")[2])


_now = threading.local()  # no variable of a model's code, which a training must not change


def _present() -> Process | None:
    return getattr(_now, "attempt", None)


def present() -> Process:
    """Return the attempt that is going on."""
    attempt = _present()
    assert attempt is not None
    return attempt


@contextmanager
def process(attempt: Process) -> Iterator[None]:
    """Run an attempt: models and files report to it."""
    _now.attempt = attempt
    with suppress(Killed), mock.patch("shardline.checkpoints.manager.Background", LateWriter):
        try:
            yield
        except Exception:
            if not attempt.is_dead:  # else of the way out
                raise
        finally:
            _now.attempt = None


def _audit(event: str, arguments: Sequence[Any]) -> None:
    attempt = _present()
    if attempt is None or attempt.is_dead:
        return
    is_ours = event == "open" or event in _OF_FILES
    if is_ours and threading.current_thread() is threading.main_thread():
        attempt.operate(event, arguments)


sys.addaudithook(_audit)


class LateWriter(Background):
    """Does the work in this thread, some places after it was begun."""

    def __init__(self) -> None:
        super().__init__()
        self._late: Any = None
        self._left = 0
        present().writer = self

    def start(self, work: Any) -> None:
        self._late, self._work, self._left = work, Future(), present().lateness
        self.pass_place()

    def pass_place(self) -> None:
        self._left -= 1
        if self._late is not None and self._left < 0:
            self._do()

    def wait(self) -> None:
        self._do()
        super().wait()

    def close(self) -> None:
        with suppress(Exception):
            self._do()
        super().close()

    def _do(self) -> None:
        work, self._late = self._late, None
        if work is None or ((attempt := _present()) is not None and attempt.is_dead):
            return
        try:
            self._work.set_result(work())
        except Exception as error:
            self._work.set_exception(error)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a training ended with, which no kill may change.

    Attributes:
        trained: what is recorded of the training, but for times.
        records: of `metrics.jsonl`, without times.
        ledger: part, pass and row id of each sample, by step.
        state: the last state, by path.
        events: the hooks, with the counters that they saw.
    """

    model: bytes
    trained: dict[str, Any]
    records: list[dict[str, Any]]
    ledger: dict[int, list[tuple[int, int, int]]]
    state: dict[str, Any]
    events: list[tuple[Any, ...]]

    def differences(self, other: "Outcome") -> list[str]:
        """Return what is another in the other, in a few words each."""
        found = [] if self.model == other.model else ["the sealed model"]
        for name in ("trained", "records", "ledger", "events"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                found.append(f"{name}: {_first_difference(mine, its)}")
        keys = dict.fromkeys((*self.state, *other.state))
        lacking = object()
        found += [
            f"state {key}: {self.state.get(key)} and {other.state.get(key)}"
            for key in keys
            if self.state.get(key, lacking) != other.state.get(key, lacking)
        ]
        return found


def _first_difference(mine: Any, its: Any) -> str:
    if isinstance(mine, dict):
        mine, its = sorted(mine.items()), sorted(its.items())
    pairs = enumerate(zip(mine, its, strict=False))
    place, pair = next(((i, p) for i, p in pairs if p[0] != p[1]), (min(len(mine), len(its)), ""))
    return f"{len(mine)} and {len(its)} long, from {place} on: {pair}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training.

    Attributes:
        model: `module:Class`.
        settings: by dotted key, over those of the tiny run.
        data: what it is trained on, see `build_trainings`.
        best_kept: best weights kept.
        check_sealed: what it is where a fresh model does not repeat its validation.
    """

    name: str
    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    data: str = "rows"
    best_kept: int = 1
    check_sealed: str = "error"


class Trainings:
    """Trains cases.

    Args:
        spec: a resolved run.
        data: places of datasets, by what cases call them.
    """

    def __init__(self, spec: dict[str, Any], data: dict[str, tuple[DatasetPlace, ...]]) -> None:
        self._spec, self._data = spec, data
        self._unbroken: dict[str, tuple[Outcome, dict[str, int]]] = {}

    def unbroken(self, case: Case) -> tuple[Outcome, dict[str, int]]:
        """Return what a case ends with, and its places with the last step at which each comes."""
        if case.name not in self._unbroken:
            with _folder() as folder:
                chain = Chain(self, case, folder, every_steps=2, keep=2)
                self._unbroken[case.name] = chain.run([]), chain.last.places
        return self._unbroken[case.name]

    def spec_of(self, case: Case) -> RunSpec:
        """Return a case's run."""
        settings = json.loads(json.dumps(self._spec["settings"]))
        for key, value in case.settings.items():
            group, _, name = key.rpartition(".")
            (settings[group] if group else settings)[name] = value
        identity = digest({"case": case.name, "settings": settings})
        spec = {**self._spec, "settings": settings, "model": case.model, "identity": identity}
        return structs.replace(RunSpec.of(convert(spec, ResolvedRun)), model_class=case.model)

    def places(self, case: Case) -> tuple[DatasetPlace, ...]:
        """Return where a case's data is."""
        return self._data[case.data]

    def killed(self, case: Case, kills: Sequence[Kill], **options: Any) -> Outcome:
        """Train with a chain of kills; see `Chain`."""
        with _folder() as folder:
            return Chain(self, case, folder, **options).run(kills)

    def rank_task(self, root: Path, case: Case, *, every_steps: int, keep: int) -> RankTask:
        """Return what the rank is given."""
        saves = {"every_steps": every_steps, "keep": keep, "keep_best": case.best_kept}
        given = rank_task(
            root,
            run=self.spec_of(case),
            run_json=root / "run.json",
            manifest=root,
            shards=root,
            runtime=rank_runtime(checkpoint=saves, verify="off", check_sealed=case.check_sealed),
            attempt=begin_attempt(root / "work"),
        )
        return replace(given, datasets=self.places(case))


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder in memory where there is one: a simulated kill needs no disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


class Chain:
    """One training, attempt by attempt.

    Args:
        folder: has a folder for each attempt.
        every_steps: optimiser steps between training checkpoints.
        keep: training checkpoints that stay.
        lateness: places that a training passes before a state is written.
    """

    def __init__(
        self, trainings: Trainings, case: Case, folder: Path, *, every_steps: int = 2, keep: int = 2,
        lateness: int = 0,
    ) -> None:  # fmt: skip
        self._trainings, self._case = trainings, case
        self._options = {"every_steps": every_steps, "keep": keep}
        self._lateness = lateness
        self.root = folder / "0"
        self._events: list[tuple[Any, ...]] = []

    def run(self, kills: Sequence[Kill]) -> Outcome:
        """Train, killed at each of the places in turn, and then to the end; return what came of it."""
        for kill in kills:
            if self.attempt(kill) is not None:
                break  # the rest of the chain comes nowhere; a sealed training is resumed once
        trained = self.attempt(None)
        assert trained is not None
        return self._outcome(trained)

    def attempt(self, kill: Kill | None) -> Training | None:
        """Train until a kill, or to the end; return what is recorded of the training, None if it was killed."""
        trained = None
        self.last = Process(self.root, kill, self._lateness)
        given = self._trainings.rank_task(self.root, self._case, **self._options)
        with process(self.last):
            trained, _ = sealed_training._train(given, given.action, ALONE, Timeline(time.time()))
        if self.last.is_dead:
            shutil.rmtree(self.root)
            self.root = after(self.root)
            trained = None
        self._join()
        return trained

    def take_events(self, shorter: "Chain") -> None:
        """Begin with the events of a shorter training, whose state this one continues."""
        self._events = [*shorter._events]

    def _join(self) -> None:
        """Put the attempt's events behind those of before the state that it resumed from."""
        for event in self.last.events:
            if event[0] != "began":
                self._events.append(event)
            elif event[1] is None:
                self._events = []
            else:
                saved = [i for i, e in enumerate(self._events) if e == ("saved", event[1])]
                del self._events[saved[-1] + 1 :]

    def _outcome(self, trained: Training) -> Outcome:
        lines = (self.root / "results/metrics.jsonl").read_text().splitlines()
        return Outcome(
            model=(self.root / "results/model.safetensors").read_bytes(),
            trained={
                k: v
                for k, v in encode(trained).items()
                if k not in ("resumed_step", "checkpoint_s")
            },
            records=[{**json.loads(line), "wall_s": 0} for line in lines],
            ledger=read_samples(self.root / "work/ledger"),
            state=self._last_state,
            events=[event for event in self._events if event[0] != "saved"],
        )

    @cached_property
    def _last_state(self) -> dict[str, Any]:
        (newest, *_) = list_saved(self.root / "work/checkpoints")
        state = torch.load(newest.path / "state.pt", map_location="cpu", weights_only=True)
        state["callbacks"] = {k: v for k, v in state["callbacks"].items() if k != "Stopwatch"}
        return flat(state)


def flat(state: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a state by their path.

    Without two counts of batches that nothing but Lightning's resuming reads, and which a state puts right.
    """
    # two states of the same values may differ in what pickle refers to twice
    own = [
        torch.load(io.BytesIO(one.numpy().tobytes()), weights_only=True) for one in state["ranks"]
    ]
    batches = "/loops/fit_loop/epoch_loop.batch_progress/total/"
    unread = (f"{batches}started", f"{batches}completed")
    return {k: v for k, v in _flat({**state, "ranks": own}).items() if k not in unread}


def _flat(state: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested state by their path."""
    if isinstance(state, dict):
        pairs: Any = state.items()
    elif isinstance(state, list | tuple):
        pairs = enumerate(state)
    else:
        if isinstance(state, torch.Tensor):  # NumPy has no bfloat16
            state = (state.float() if state.dtype is torch.bfloat16 else state).numpy().tobytes()
        return {prefix: state}
    return {path: v for key, value in pairs for path, v in _flat(value, f"{prefix}/{key}").items()}


def build_trainings(folder: Path) -> Trainings:
    """Build a dataset of some twenty train rows, five steps of four, and resolve a run on it.

    Cases may ask for these `rows`, for a `mix` of them with as many others, and for two datasets of
    `tokens`.
    """
    rows = {"type": "synthetic", "rows_per_shard": 14, "features": 4, "seed": 3}
    splits = {"train": 0.4, "validation": 0.5, "test": 0.1}
    config = {
        "runs": "config/runs.tsv",
        "defaults": {
            "global_batch": 4, "devices": 1, "accelerator": "cpu", "trainer": {"max_epochs": 4},
            "early_stopping": {"patience": 0}, "optim": {"lr": 0.05}, "data": {"window_bytes": 192},
        },
        "datasets": {"rows": {"source": rows, "shards": 4, "splits": splits}},
    }  # fmt: skip
    (folder / "config").mkdir(parents=True)
    (folder / "config/config.yaml").write_text(json.dumps(config))
    (folder / "config/runs.tsv").write_text("name\tdataset\tmodel\ntiny\trows\tlinear\n")
    with chdir(folder):
        project = load_project()
        (run,) = project.runs.values()
        dataset = run.dataset
        shards = build(project, dataset)
        jobs.resolve_run(project.part(runs=[run.id]), "run.json", "identity.json")
    spec = json.loads((folder / "run.json").read_text())
    rows = DatasetPlace(manifest=folder / dataset.manifest, shards=folder / shards)
    mix = (
        structs.replace(rows, weight="2/3"),
        structs.replace(others(folder / "others", rows), weight="1/3"),
    )
    tokens = tuple(
        tokens_of(folder / f"tokens-{n}", n, weight) for n, weight in ((1, "3/4"), (2, "1/4"))
    )
    return Trainings(spec, {"rows": (rows,), "mix": mix, "tokens": tokens})
