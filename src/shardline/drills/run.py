"""A drill from its begin to its verdict."""

import json
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

from shardline.config.document import read_config
from shardline.config.layout import ResultsLayout
from shardline.config.project import Run
from shardline.core.errors import ConfigError, LaunchError
from shardline.core.package import shipped_snakefile
from shardline.core.process import sigterm_as_interrupt
from shardline.drills.commands import Commands, Overdue, kill, log_of
from shardline.drills.disk import SmallDisk
from shardline.drills.faults import FAULTS, Scene, cancel
from shardline.drills.profile import Profile, read_profile
from shardline.drills.tiny import Size, Tiny, make_tiny
from shardline.drills.verdict import Drilled, Outcome, Trained, compare, cost, why_not

FOLDER = Path("drills")
PLACES = ("mid-epoch", "mid-accumulation", "mid-validation")
_LEAST_EPOCHS = 4


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be drilled.

    Attributes:
        name: one of `faults.FAULTS`.
        config: the user's, of which `runtime`, `lock` and `conda` apply.
        profile: Snakemake's.
        size: nodes and devices; `resume` also trains on one rank.
        seed: of where the faults fall.
        interruptions: of each run, in `resume`.
        timeout_s: seconds that the whole may take.
        keep: whether the folder stays though all went well.
        arguments: further words for Snakemake.
        tell: gets a line for each thing that happens.
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
    tell: Callable[[str], None]

    @property
    def sizes(self) -> list[Size]:
        """The sizes that are trained."""
        return list(dict.fromkeys([(1, 1), self.size] if self.name == "resume" else [self.size]))

    @property
    def strikes(self) -> int:
        """How often each run is struck."""
        return self.interruptions if self.name == "resume" else 1


@contextmanager
def drilled(order: Order) -> Iterator[list[Drilled]]:
    """Run a drill in a folder of its own, which stays as long as this context, or where it is needed.

    Raises:
        ConfigError, LaunchError: it cannot be drilled here, or another drill is under way.
    """
    profile = read_profile(order.profile)
    if profile.executor not in FAULTS[order.name].executors:
        raise ConfigError(
            f"--profile {order.profile} has executor={profile.executor}, on which {order.name} cannot be "
            f"drilled; it can on {' and '.join(FAULTS[order.name].executors)}"
        )
    with _alone(), sigterm_as_interrupt(), ExitStack() as ending:
        unbroken = _make(order, profile)
        for folder in (unbroken.folder.parent, unbroken.store.parent):
            ending.callback(shutil.rmtree, folder, ignore_errors=True)
        commands = _commands(order, profile)
        order.tell("training without a fault")
        if commands.run(unbroken) != 0:
            ending.pop_all()
            raise LaunchError(
                f"the drill's training failed without any fault; the reason stands in {log_of(unbroken)}"
            )
        with ExitStack() as broken:
            drills = _break(order, commands, unbroken, broken)
            if order.keep or any(drill.outcome.reasons for drill in drills):
                ending.pop_all()
                kept = unbroken.folder.parent
                drills = [replace(d, outcome=replace(d.outcome, folder=kept)) for d in drills]
            yield drills


@contextmanager
def _alone() -> Iterator[None]:
    FOLDER.mkdir(exist_ok=True)
    try:
        with FileLock(FOLDER / "lock", timeout=0):
            yield
    except Timeout:
        raise LaunchError(
            f"another drill is under way in {FOLDER.resolve()}, expected one at a time; wait until it has ended"
        ) from None


def _make(order: Order, profile: Profile) -> Tiny:
    """Write the project of the training that nothing befalls."""
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
        epochs=max(_LEAST_EPOCHS, order.strikes + 1),
        runtime=runtime,
        also=also,
    )


def _commands(order: Order, profile: Profile) -> Commands:
    own = Path("Snakefile")
    return Commands(
        profile=profile,
        snakefile=(own if own.exists() else shipped_snakefile()).resolve(),
        arguments=order.arguments,
        deadline=time.monotonic() + order.timeout_s,
    )


def _break(order: Order, commands: Commands, unbroken: Tiny, ending: ExitStack) -> list[Drilled]:
    """Train once more, with the faults, and judge what comes of it."""
    tiny = unbroken.twin("broken", FAULTS[order.name].runtime_on(commands.profile.executor))
    disk = None
    if order.name == "disk-full":
        disk = ending.enter_context(SmallDisk(tiny.store))
        commands = replace(commands, inside=disk.inside)
    tiny.plan({run_ranks(run): _strikes(order, unbroken, run, tiny) for run in unbroken.runs})
    given, said = _give(order, commands, tiny, disk)
    seen = replace(tiny, store=disk.path(tiny.store)) if disk else tiny
    return [_judge(order, seen, unbroken, run, given=given, said=said) for run in unbroken.runs]


def run_ranks(run: Run) -> int:
    """Return the number of a run's ranks."""
    return int(run.settings["nodes"] * run.settings["devices"])


def _strikes(order: Order, unbroken: Tiny, run: Run, tiny: Tiny) -> list[dict[str, Any]]:
    """Return what befalls a run: one fault in each epoch from the second on, or from the first in `resume`."""
    fault, random = FAULTS[order.name], Random(f"{order.seed}/{run.name}")
    trained = json.loads((unbroken.results(run) / "provenance.json").read_text())["training"]
    an_epoch = trained["steps"] // trained["epochs"]
    # a fault that has a cost to show comes when an epoch is done
    is_resume = order.name == "resume"
    first, places = (0, random.sample(PLACES, len(PLACES))) if is_resume else (1, PLACES)
    return [
        {
            "place": places[number % len(places)],
            "step": epoch * an_epoch + random.randint(4, an_epoch - 2),
            "rank": None if fault.is_for_all else run_ranks(run) - 1,
            "action": fault.action,
            "pace_s": fault.pace_s,
            "file": str(tiny.store / SmallDisk.FILLER),
        }
        for number, epoch in enumerate(range(first, first + order.strikes))
    ]


def _give(order: Order, commands: Commands, tiny: Tiny, disk: SmallDisk | None) -> tuple[int, str]:
    """Give the command as a user would, again and again while it fails and something has changed.

    Returns:
        How often it was given, and what it said at its end where that was no success.
    """
    fault, scene, given = FAULTS[order.name], None, 0
    try:
        while given <= order.strikes * len(tiny.runs):
            given += 1
            what = (
                "the same command again" if given > 1 else f"training with the fault: {fault.does}"
            )
            order.tell(what)
            with commands.started(tiny) as process:
                scene = scene or Scene(commands=commands, tiny=tiny, process=process, disk=disk)
                if fault.inject and given == 1 and commands.wait(process, tiny.is_struck) is None:
                    fault.inject(scene)
                code = commands.wait(process)
            order.tell(f"the command ended with code {code}")
            if code == 0:
                return given, ""
            if fault.mend:
                fault.mend(scene)
        return given, f"the command failed {given} times: {tiny.last_words()}"
    except Overdue as error:
        return given, str(error)
    finally:
        if scene:
            kill(scene.orphans)
            cancel(scene)


def _judge(order: Order, tiny: Tiny, unbroken: Tiny, run: Run, *, given: int, said: str) -> Drilled:
    broken = Trained(work=tiny.work(run), results=tiny.results(run))
    compared = compare(broken, Trained(work=unbroken.work(run), results=unbroken.results(run)))
    ranks = run_ranks(run)
    struck = tiny.struck(ranks)
    outcome = Outcome(
        drill=order.name,
        profile=order.profile,
        ranks=ranks,
        reasons=why_not(compared, planned=order.strikes, struck=len(struck), said=said),
        commands=given,
        interruptions=[{"ranks": ranks, **one} for one in struck],
        compared=compared,
        **cost(broken.attempts()),
    )
    return Drilled(outcome=outcome, broken=broken)
