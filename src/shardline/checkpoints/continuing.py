"""Continue a shorter training: take its state and records over into the folder of a longer run.

The folder is then as if the longer run itself had been killed after that state, and the training resumes as usual. The
state is taken over last, behind the milestones before it. So a kill in between leaves a folder whose states are whole,
and the next attempt takes the state over again.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from shardline.checkpoints.folder import list_saved, problem_of, saving
from shardline.checkpoints.kept import discard_from
from shardline.checkpoints.manifest import Continued, TrainingCheckpoint
from shardline.core.errors import DataError
from shardline.core.files import link_or_copy, make_folder, read_json_lines, write_bytes, writing
from shardline_io.ledger_files import files_of, remove_behind

# Files of the jobs of a run, not of its training. All others are copied, since callbacks may write any file.
_OF_JOBS = {
    "attempts", "attempts.jsonl", "checkpoints", "counted_files.json", "divergence.json", "errors", "holder.json",
    "identity.json", "lock", "machine", "modules", "output", "profiler", "rank.json", "stop.json", "tracking", "watch",
}  # fmt: skip


def states_to_continue(
    folder: Path, *, world_size: int
) -> Iterator[tuple[TrainingCheckpoint, str]]:
    """Yield the training checkpoints of a shorter run, newest first, each with why a longer run has no such state.

    Args:
        folder: `checkpoints/` in the shorter run's folder of the store.
        world_size: Number of ranks of the longer run.
    """
    for saved in list_saved(folder):
        if saved.world_size != world_size:
            yield saved, f"{saved.world_size} ranks trained it, not {world_size}"
        elif saved.bound is None:
            yield (
                saved,
                "an earlier Shardline saved its state, without what depends on the training's length",
            )
        else:
            yield saved, "; ".join(saved.bound.reasons)


def why_cut(saved: TrainingCheckpoint, max_steps: int) -> str:
    """Return why a run has no such state, if its end or that of the other training is in the epoch of the state.

    Args:
        max_steps: `trainer.max_steps` of the run; -1 if it ends with an epoch.
    """
    bound = saved.bound
    if bound is None or not bound.is_within:
        return ""
    if bound.epoch_end <= min(bound.planned, max_steps if max_steps > 0 else bound.planned):
        return ""
    if bound.of_cut is None:
        return "an earlier Shardline saved its state, without what an end within an epoch changes"
    return "; ".join(bound.of_cut)


def take_over(
    saved: TrainingCheckpoint, work: Path, *, identity: str, continued: Continued,
    milestones: Sequence[tuple[TrainingCheckpoint, Continued]] = (),
    before: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Take a state of a shorter run over, with its milestones and the files that its training had written.

    No job may train in the folder. Training checkpoints of the longer run that are there are removed.

    Args:
        saved: State of the shorter run.
        work: Folder of the longer run in the store.
        identity: Identity of the longer run.
        continued: Record of the shorter run.
        milestones: Intact earlier states that the longer run keeps, in the order of their steps, with their records.
        before: Called once the state was verified, before anything is taken over.

    Raises:
        DataError: A file of the state is damaged, or cannot be taken over.
    """
    check_intact(saved)
    before()
    folder = work / "checkpoints"
    with writing(work):
        make_folder(folder)
        discard_from(folder, 0)
        _copy_records(saved.path.parents[1], work)
        cut_ledger(work / "ledger", saved.step)
    for one, record in milestones:
        _take(one, folder, identity, record, milestone=True)
    _take(saved, folder, identity, continued)


def _take(
    saved: TrainingCheckpoint, folder: Path, identity: str, continued: Continued, *, milestone: bool = False
) -> None:  # fmt: skip
    with writing(folder):
        links = [_link(saved.path.parent / name, folder / name) for name in saved.best]
    with saving(
        folder, step=saved.step, epoch=saved.epoch, identity=identity, world_size=saved.world_size, keep=1,
        best=saved.best, known=dict(saved.files), bound=saved.bound, continued=continued, milestone=milestone,
    ) as scratch:  # fmt: skip
        links += [_link(saved.path / name, scratch / name) for name in saved.files]
    if not all(links):
        check_intact(list_saved(folder)[0])


def check_intact(saved: TrainingCheckpoint) -> None:
    """Verify the files of a state.

    Raises:
        DataError: A file is damaged. The message names the file.
    """
    if problem := problem_of(saved):
        raise DataError(f"its training checkpoint {saved.path} is damaged: {problem}")


def _copy_records(source: Path, work: Path) -> None:
    for path in sorted(source.iterdir()):
        if path.name in _OF_JOBS or path.name.startswith("."):
            continue
        target = work / path.name
        if path.is_dir():
            shutil.rmtree(
                target, ignore_errors=True
            )  # files of other attempts must not be mixed in
            shutil.copytree(path, target)
        else:
            shutil.copyfile(path, target)


def cut_ledger(folder: Path, step: int) -> None:
    """Remove all that a ledger has of the steps behind a step, if there is a ledger."""
    if not folder.is_dir():
        return
    remove_behind(folder, step)
    for path, _ in files_of(folder):
        lines = [json.dumps(one) + "\n" for one in read_json_lines(path) if one["step"] <= step]
        write_bytes(path, "".join(lines).encode())


def _link(source: Path, target: Path) -> bool:
    target.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    return link_or_copy(source, target)
