"""Training checkpoints that sealed runs keep: their limits, and what a deletion loses."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from shardline.checkpoints.folder import list_saved
from shardline.checkpoints.kept import remove_states
from shardline.checkpoints.manifest import TrainingCheckpoint
from shardline.config.layout import ResultsLayout, names_that_have_been, title_of
from shardline.config.plans import RunPlan
from shardline.config.settings.config import RuntimeCheckpoint
from shardline.core.errors import DataError
from shardline.core.files import read_json_lines
from shardline.results.running import fresh_heartbeat
from shardline.results.states import IDENTITY

_DAY_S = 86400


@dataclass(frozen=True, kw_only=True)
class KeptState:
    """A training checkpoint of a sealed run.

    Attributes:
        run: Id of the run.
        saved: The training checkpoint.
        bytes: Size of its files, and of the best weights that no other training checkpoint of the run lists.
        written: Time of writing, in seconds since the epoch.
    """

    run: str
    saved: TrainingCheckpoint
    bytes: int
    written: float


def kept_states(layout: ResultsLayout) -> list[KeptState]:
    """Return the training checkpoints of all runs that are sealed in this project, the oldest first."""
    work = layout.all_work
    if work.is_symlink() or not work.is_dir():
        return []
    now = time.time()
    found: list[KeptState] = []
    for path in work.iterdir():
        is_sealed = IDENTITY.fullmatch(path.name) and layout.model(path.name).exists()
        if is_sealed and not path.is_symlink() and not fresh_heartbeat(path, now):
            found += _of_run(path.name, list_saved(path / "checkpoints"))
    return sorted(found, key=lambda one: (one.written, one.saved.step))


def _of_run(run: str, states: Collection[TrainingCheckpoint]) -> Iterator[KeptState]:
    listed = Counter(name for saved in states for name in saved.best)
    for saved in states:
        own = sum(file.bytes for name, file in saved.best.items() if listed[name] == 1)
        written = datetime.fromisoformat(saved.written).timestamp()
        yield KeptState(run=run, saved=saved, bytes=saved.bytes + own, written=written)


def beyond_limits(
    states: Iterable[KeptState], limits: RuntimeCheckpoint, now: float
) -> dict[Path, str]:
    """Return the training checkpoints beyond `keep_days` and `keep_bytes`, with the limit.

    Args:
        states: All training checkpoints, the oldest first.
        now: Present time in seconds since the epoch.
    """
    found: dict[Path, str] = {}
    states = [*states]
    left = sum(one.bytes for one in states)
    for one in states:
        if limits.keep_days and now - one.written > limits.keep_days * _DAY_S:
            found[one.saved.path] = f"runtime.checkpoint.keep_days={limits.keep_days:g}"
        elif limits.keep_bytes and left > limits.keep_bytes:
            found[one.saved.path] = f"runtime.checkpoint.keep_bytes={limits.keep_bytes}"
        else:
            continue
        left -= one.bytes
    return found


def surplus_states(
    layout: ResultsLayout, limits: RuntimeCheckpoint, continued: Collection[str], gone: Collection[Path] = (),
) -> dict[Path, str]:  # fmt: skip
    """Return the training checkpoints of sealed runs beyond `keep_days` and `keep_bytes`, with the limit.

    Args:
        continued: Ids of runs whose states stay and do not count, since a run or a rung of the config may continue
            them; see `continuing.states_to_keep` and `stopping.waiting_runs`.
        gone: Files and folders that are removed anyway.
    """
    if not (limits.keep_days or limits.keep_bytes):
        return {}
    states = [
        one
        for one in kept_states(layout)
        if one.run not in continued
        and {*gone}.isdisjoint([one.saved.path, *one.saved.path.parents])
    ]
    return beyond_limits(states, limits, time.time())


def remove_beyond_limits(
    layout: ResultsLayout, limits: RuntimeCheckpoint, continued: Collection[str]
) -> list[str]:
    """Remove the training checkpoints of sealed runs beyond the limits, and return a sentence for each."""
    names, sentences = names_that_have_been(layout, "run"), []
    for path, limit in surplus_states(layout, limits, continued).items():
        run, loss = path.parents[1].name, loss_of(path)
        remove_states(path.parent, [path])
        sentences.append(
            f"removed the training checkpoint of {title_of(run, names)} ({loss}), beyond {limit}"
        )
    return sentences


def loss_of(path: Path) -> str:
    """Return the training that a deletion would lose, empty for other files.

    Args:
        path: Folder of a run in the store, its `checkpoints/`, or one training checkpoint.
    """
    if path.name.startswith("step-"):
        folder, only = path.parent, path
    else:
        folder, only = (path if path.name == "checkpoints" else path / "checkpoints"), None
    states = [one for one in list_saved(folder) if only in (None, one.path)]
    if not states:
        return ""
    last = states[0]
    hours = last.world_size * _seconds(folder.parent / "metrics.jsonl", last.step) / 3600
    return f"{last.step:,} steps, {hours:.2g} device hours"


def _seconds(metrics: Path, step: int) -> float:
    """Return the seconds of a training up to a step."""
    try:
        lines = read_json_lines(metrics)
    except (OSError, DataError):
        return 0.0
    times = [one.get("wall_s") or 0.0 for one in lines if one.get("step", 0) <= step]
    return float(max(times, default=0.0))


def missing_milestones(runs: Mapping[str, RunPlan]) -> Iterator[tuple[str, str]]:
    """Yield the name of each sealed run without a state of one of its milestones, and a sentence."""
    for key, run in runs.items():
        given = run.settings.checkpoint.milestones
        if key != run.id or not given or not run.has_model:
            continue
        states = [
            one for one in list_saved(run.layout.work(run.id) / "checkpoints") if one.milestone
        ]
        is_epochs = isinstance(given, list)
        there = {one.epoch if is_epochs else one.step for one in states}
        asked = given if isinstance(given, list) else given.steps
        if lacking := sorted({*asked} - there):
            yield (
                run.name,
                f"checkpoint.milestones {', '.join(map(str, lacking))}: {run.name} is sealed, and has no state there; "
                f"`shardline rm {run.name} --delete` lets it train again",
            )
