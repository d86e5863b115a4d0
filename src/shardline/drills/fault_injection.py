"""Run a fault-injection test and return its outcomes."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from filelock import FileLock, Timeout

from shardline.config.layout import ResultsLayout
from shardline.config.plans import RunPlan
from shardline.config.user_files import read_config
from shardline.core.errors import ConfigError, LaunchError
from shardline.core.package import shipped_snakefile
from shardline.core.process import sigterm_as_interrupt
from shardline.drills.faults import FAULTS, Scene, SmallDisk, cancel
from shardline.drills.outcome import (
    Drilled,
    DrilledRun,
    TrainedFiles,
    compare,
    cost,
    verdict_of,
    why_not_survived,
)
from shardline.drills.profile_command import Commands, Overdue, Profile, kill, log_of, read_profile
from shardline.drills.tiny import Size, Tiny, make_tiny, num_ranks
from shardline.provenance.resume_certificates import identify
from shardline.records.base import read_record
from shardline.records.certificates import Interruption
from shardline.records.trainings import TrainingProvenance

FOLDER = Path("drills")
PLACES = ("mid-epoch", "mid-accumulation", "mid-validation")
_LEAST_EPOCHS = 4


@dataclass(frozen=True, kw_only=True)
class FaultTest:
    """Settings of a fault-injection test.

    Attributes:
        name: one of `faults.FAULTS`.
        config: the user's config; only `runtime`, `lock` and `conda` apply.
        profile: value of Snakemake's `--profile`.
        size: numbers of nodes and of devices per node; `resume` also trains on one rank.
        seed: random seed that chooses the steps at which faults are injected.
        interruptions: number of interruptions per run; only for `resume`.
        timeout_s: time limit of the whole test, in seconds.
        keep: whether to keep the folder after a survived test.
        arguments: further command-line arguments for Snakemake.
        report: called with one line per event.
    """

    name: str
    config: Path
    profile: str
    size: Size
    seed: int
    interruptions: int
    timeout_s: float
    keep: bool
    arguments: Sequence[str]
    report: Callable[[str], None]

    @property
    def sizes(self) -> list[Size]:
        """Sizes to train."""
        return list(dict.fromkeys([(1, 1), self.size] if self.name == "resume" else [self.size]))

    @property
    def num_faults(self) -> int:
        """Number of faults per run."""
        return self.interruptions if self.name == "resume" else 1


@contextmanager
def drilled(order: FaultTest) -> Iterator[list[Drilled]]:
    """Run a fault-injection test in its own folder, and remove the folder if every run survived.

    Raises:
        ConfigError, LaunchError: the fault cannot be injected here, or another test is running.
    """
    profile = read_profile(order.profile)
    if profile.executor not in FAULTS[order.name].executors:
        raise ConfigError(
            f"--profile {order.profile} has executor={profile.executor}, on which the fault {order.name} cannot "
            f"be injected; expected executor {' or '.join(FAULTS[order.name].executors)}"
        )
    with _alone(), sigterm_as_interrupt(), ExitStack() as ending:
        unbroken = _make(order, profile)
        for folder in (unbroken.folder.parent, unbroken.store.parent):
            ending.callback(shutil.rmtree, folder, ignore_errors=True)
        own = Path("Snakefile")
        commands = Commands(
            profile=profile,
            snakefile=(own if own.exists() else shipped_snakefile()).resolve(),
            arguments=order.arguments,
            deadline=time.monotonic() + order.timeout_s,
        )
        order.report("training without a fault")
        if commands.run(unbroken) != 0:
            ending.pop_all()
            raise LaunchError(
                f"the training failed before any fault was injected; see the reason in {log_of(unbroken)}"
            )
        with ExitStack() as broken:
            found = _train_with_faults(order, commands, unbroken, broken)
            if order.keep or any(one.reasons for one, _ in found):
                ending.pop_all()
                kept = unbroken.folder.parent
                found = [(replace(one, folder=kept), identity) for one, identity in found]
            yield found


@contextmanager
def _alone() -> Iterator[None]:
    FOLDER.mkdir(exist_ok=True)
    try:
        with FileLock(FOLDER / "lock", timeout=0):
            yield
    except Timeout:
        raise LaunchError(
            f"another `shardline drill` is running in {FOLDER.resolve()}; expected one at a time; wait until it ends"
        ) from None


def _make(order: FaultTest, profile: Profile) -> Tiny:
    """Write the project of the uninterrupted training, and return it."""
    config = read_config(order.config)
    runtime = {**(config.get("runtime") or {}), **profile.runtime}
    number = next(n for n in range(1, 10_000) if not (FOLDER / f"{order.name}-{n}").exists())
    folder = (FOLDER / f"{order.name}-{number}").resolve()
    named = os.environ.get("SHARDLINE_STORE") or runtime.get("store") or ResultsLayout.named_store
    store = Path(named) / folder.relative_to(Path.cwd()) if Path(named).is_absolute() else folder
    also: dict[str, Any] = {}
    if lock := config.get("lock"):
        also["lock"] = str(Path(lock).resolve())
    if conda := config.get("conda"):
        place = conda.get("folder")
        also["conda"] = {**conda, **({"folder": str(Path(place).resolve())} if place else {})}
    return make_tiny(
        folder / "unbroken",
        ResultsLayout(root=store / "unbroken").store,
        order.sizes,
        epochs=max(_LEAST_EPOCHS, order.num_faults + 1),
        runtime=runtime,
        also=also,
    )


def _train_with_faults(
    order: FaultTest, commands: Commands, unbroken: Tiny, ending: ExitStack
) -> list[Drilled]:
    """Train again with faults, and compare the result with the uninterrupted training."""
    tiny = unbroken.twin("broken", FAULTS[order.name].runtime_on(commands.profile.executor))
    disk = None
    if order.name == "disk-full":
        disk = ending.enter_context(SmallDisk(tiny.store))
        commands = replace(commands, inside=disk.inside)
    tiny.plan({num_ranks(run): _plan(order, unbroken, run, tiny) for run in unbroken.runs})
    commands_given, failure = _run_command(order, commands, tiny, disk)
    seen = replace(tiny, store=disk.path(tiny.store)) if disk else tiny
    return [
        _outcome(order, seen, unbroken, run, commands_given=commands_given, failure=failure)
        for run in unbroken.runs
    ]


def _plan(order: FaultTest, unbroken: Tiny, run: RunPlan, tiny: Tiny) -> list[dict[str, Any]]:
    """Return the faults of a run: one per epoch, from epoch 1 on, or from epoch 0 for `resume`."""
    fault, random = FAULTS[order.name], Random(f"{order.seed}/{run.name}")
    path = unbroken.results(run) / "provenance.json"
    trained = read_record(path, TrainingProvenance, remedy="run `shardline drill` again").training
    assert trained.steps
    assert trained.epochs
    an_epoch = trained.steps // trained.epochs
    # To show lost work, a fault must come after the first epoch.
    is_resume = order.name == "resume"
    first, places = (0, random.sample(PLACES, len(PLACES))) if is_resume else (1, PLACES)
    return [
        {
            "place": places[number % len(places)],
            "step": epoch * an_epoch + random.randint(4, an_epoch - 2),
            "rank": None if fault.is_for_all else num_ranks(run) - 1,
            "action": fault.action,
            "pace_s": fault.pace_s,
            "file": str(tiny.store / SmallDisk.FILLER),
        }
        for number, epoch in enumerate(range(first, first + order.num_faults))
    ]


def _run_command(
    order: FaultTest, commands: Commands, tiny: Tiny, disk: SmallDisk | None
) -> tuple[int, str]:
    """Run the command as a user would, and repeat it while it fails, at most once per fault.

    Returns:
        Number of times that the command ran, and the reason of the last failure; empty if it succeeded.
    """
    fault, scene, num_commands = FAULTS[order.name], None, 0
    try:
        while num_commands <= order.num_faults * len(tiny.runs):
            num_commands += 1
            is_first = num_commands == 1
            what = (
                f"training with the fault: {fault.does}" if is_first else "the same command again"
            )
            order.report(what)
            with commands.started(tiny) as process:
                scene = scene or Scene(commands=commands, tiny=tiny, process=process, disk=disk)
                if fault.inject and is_first and commands.wait(process, tiny.has_fault) is None:
                    fault.inject(scene)
                code = commands.wait(process)
            order.report(f"the command ended with code {code}")
            if code == 0:
                return num_commands, ""
            if fault.restore:
                fault.restore(scene)
        return num_commands, f"the command failed {num_commands} times: {tiny.last_log_line()}"
    except Overdue as error:
        return num_commands, str(error)
    finally:
        if scene:
            kill(scene.orphans)
            cancel(scene)


def _outcome(
    order: FaultTest, tiny: Tiny, unbroken: Tiny, run: RunPlan, *, commands_given: int, failure: str
) -> Drilled:
    broken = TrainedFiles(work=tiny.work(run), results=tiny.results(run))
    compared = compare(broken, TrainedFiles(work=unbroken.work(run), results=unbroken.results(run)))
    ranks = num_ranks(run)
    injected = tiny.injected(ranks)
    reasons = why_not_survived(
        compared, planned=order.num_faults, injected=len(injected), failure=failure
    )
    outcome = DrilledRun(
        verdict=verdict_of(reasons),
        drill=order.name,
        profile=order.profile,
        ranks=ranks,
        reasons=reasons,
        commands=commands_given,
        interruptions=[Interruption(ranks=ranks, **fault) for fault in injected],
        compared=compared,
        **cost(broken.attempts()),
    )
    provenance = broken.provenance()
    return outcome, identify(provenance) if provenance else None
