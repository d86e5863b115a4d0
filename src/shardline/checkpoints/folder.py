"""Folders of training checkpoints: written atomically, and verified before a training resumes.

    checkpoints/
      latest.json                 {"newest": "step-00000120"}
      step-00000120/              state.pt, and shards if the model is sharded
        manifest.json             written last: identity, step, size and digest of each file
      best-*.safetensors          best weights, each listed in the manifests that need it

A checkpoint is written to a temporary folder and synced to disk. Then the folder is renamed and
the pointer updated. A kill at any moment leaves earlier checkpoints intact.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from shardline.core.digests import file_blake3
from shardline.core.errors import DataError
from shardline.core.files import sync_file, sync_folder, utc_stamp, write_json, writing
from shardline.core.seals import check_seal, seal

MANIFEST = "manifest.json"
POINTER = "latest.json"
BEST = "best-*.safetensors"

AfterSealing = Literal["none", "last", "all"]  # values of `runtime.checkpoint.after_sealing`


class StateFile(msgspec.Struct, frozen=True):
    """Size and BLAKE3 digest of a file."""

    bytes: int
    blake3: str


Digests = dict[str, StateFile]


class Pointer(msgspec.Struct, frozen=True):
    """Content of latest.json: the folder name of the newest training checkpoint."""

    newest: str


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """How far the state of a training depends on the training's length.

    Attributes:
        reasons: Reasons why a longer training does not pass through this state, a clause each.
        is_within: Whether the state is within an epoch, and not between two.
        epoch_end: Optimizer steps at the end of this epoch, if the training does not end before.
        planned: Optimizer steps of the whole training.
        is_validated: Whether a validation of the present weights was the last thing before the state.
        of_cut: Reasons why a training that ends within this epoch does not pass through the state, a clause each; None
            if unknown.
    """

    reasons: list[str]
    is_within: bool
    epoch_end: int
    planned: int
    is_validated: bool = False
    of_cut: list[str] | None = None


class Continued(msgspec.Struct, frozen=True, kw_only=True):
    """The shorter run whose state a training began with.

    Attributes:
        run: Id of the shorter run.
        identity: Identity of the shorter run.
        step: Optimizer steps in its state.
        seconds: Seconds of training up to its state.
        ranks: Number of ranks that trained up to its state.
        settings: Tables `trainer` and `schedule` of its settings.
    """

    run: str
    identity: str
    step: int
    seconds: float
    ranks: int
    settings: dict[str, Any] = {}

    @property
    def device_hours(self) -> float:
        """Hours of all devices that need not be trained again."""
        return self.seconds * self.ranks / 3600


class StateManifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content of a training checkpoint's manifest.json.

    Attributes:
        identity: Identity of the run.
        step: Number of completed optimizer steps.
        epoch: Number of the current epoch, starting at 0.
        world_size: Number of ranks that wrote the checkpoint.
        best: Files of the best weights at this step, which are beside the folder.
        written: Time of writing (UTC).
        files: Files in the folder.
        bound: How far the state depends on the training's length; None if unknown, for a state of an earlier
            Shardline.
        continued: The shorter run that the training began with; None if it began at step 0.
        milestone: Whether the checkpoint stays when others are removed, see `checkpoint.milestones`.
    """

    identity: str
    step: int
    epoch: int
    world_size: int
    best: Digests
    written: str
    files: Digests
    bound: Bound | None = None
    continued: Continued | None = None
    milestone: bool = False


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings under `runtime.checkpoint`, which do not change results.

    Attributes:
        every_steps: Optimizer steps between two training checkpoints; 0 for never.
        every_min: Minutes between two training checkpoints; 0 for never.
        keep: Number of training checkpoints to keep.
        keep_best: Number of best weights to keep. The best of them are sealed.
        asynchronous: Whether to write while the training continues. Otherwise each save waits for the disk.
    """

    every_steps: int = 0
    every_min: float = 0.0
    keep: int = 2
    keep_best: int = 1
    asynchronous: bool = True


class TrainingCheckpoint(StateManifest, frozen=True, kw_only=True):
    """A training checkpoint: its manifest and the path of its folder."""

    path: Path

    @property
    def bytes(self) -> int:
        """Total size of the files in the folder."""
        return sum(of.bytes for of in self.files.values())


def list_saved(folder: Path) -> list[TrainingCheckpoint]:
    """Return the training checkpoints with a readable manifest, newest first, without verification."""
    return [saved for path in _folders(folder) if (saved := _read(path)[0])]


def last_step(folder: Path) -> int:
    """Return the step of the newest training checkpoint, or 0 if there is none."""
    return next((saved.step for saved in list_saved(folder)), 0)


def newest_good(folder: Path, identity: str) -> tuple[TrainingCheckpoint | None, list[str]]:
    """Return the newest training checkpoint whose files match its manifest.

    Args:
        folder: `checkpoints/` in the run's folder of the store.
        identity: Identity of the run (64 hex digits).

    Returns:
        The checkpoint, or None if there is no intact one; and a sentence for each damaged one.

    Raises:
        DataError: A checkpoint belongs to another run. The message has both identities.
    """
    passed = _missing_newest(folder)
    for path in _folders(folder):
        saved, problem = _read(path)
        if saved:
            if saved.identity != identity:
                raise DataError(
                    f"training checkpoint {path} belongs to another run (identity {saved.identity[:12]}), expected "
                    f"identity {identity[:12]}; move {folder} away to train from the start"
                )
            if not (problem := problem_of(saved)):
                return saved, passed
        passed.append(f"training checkpoint {path} is damaged: {problem}")
    return None, passed


def find_damage(folder: Path, identity: str) -> tuple[int, list[str]]:
    """Verify every training checkpoint.

    Args:
        folder: `checkpoints/` in the run's folder of the store.
        identity: Identity of the run (64 hex digits).

    Returns:
        Number of intact checkpoints, and a sentence for each damaged one.
    """
    good, problems = 0, _missing_newest(folder)
    for path in _folders(folder):
        saved, problem = _read(path)
        if saved and saved.identity != identity:
            problem = f"it belongs to another run (identity {saved.identity[:12]})"
        elif saved:
            problem = problem_of(saved)
        if not problem:
            good += 1
        elif path.exists():  # a running training removes old checkpoints
            problems.append(f"training checkpoint {path} is damaged: {problem}")
    return good, problems


def read_good(path: Path) -> TrainingCheckpoint:
    """Return the training checkpoint in a folder, or the newest one below it, verified against its manifest.

    Args:
        path: Folder of one training checkpoint, or `checkpoints/` of a run.

    Raises:
        DataError: There is none, or its files do not match its manifest.
    """
    chosen = path if (path / MANIFEST).is_file() else next(iter(_folders(path)), path)
    saved, problem = _read(chosen)
    if saved is None or (problem := problem_of(saved)):
        raise DataError(
            f"training checkpoint {chosen} is damaged: {problem}; train its run again, or name another state"
        )
    return saved


def _folders(folder: Path) -> list[Path]:
    """Return the folders of training checkpoints, newest first."""
    found = (path for path in folder.glob("step-*") if path.is_dir() and _step_of(path) >= 0)
    return sorted(found, key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    digits = path.name.removeprefix("step-")
    return int(digits) if digits.isdecimal() else -1


def _missing_newest(folder: Path) -> list[str]:
    """Return a sentence if the pointer is unreadable, or names a missing folder."""
    pointer = folder / POINTER
    try:
        newest = msgspec.json.decode(pointer.read_bytes(), type=Pointer).newest
    except FileNotFoundError:
        # after a kill between the first checkpoint and its pointer, nothing is damaged
        many = len(_folders(folder)) > 1
        return [f"{pointer} is missing; using the folders beside it"] if many else []
    except (OSError, ValueError):
        return [f"{pointer} is not readable; using the folders beside it"]
    # after a kill before the update, the pointer names the previous checkpoint
    if folder / newest in _folders(folder)[:2]:
        return []
    return [f"training checkpoint {folder / newest} is missing, though {POINTER} names it"]


def _read(path: Path) -> tuple[TrainingCheckpoint | None, str]:
    """Return the checkpoint described by a manifest, or else the problem with the manifest."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if check_seal(path / MANIFEST, manifest):
            return None, f"its {MANIFEST} was changed after it was written"
        return msgspec.convert({**manifest, "path": path}, TrainingCheckpoint), ""
    except FileNotFoundError:
        return None, f"it has no {MANIFEST}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None, f"its {MANIFEST} is not readable"


def problem_of(saved: TrainingCheckpoint) -> str:
    """Return the first problem with the files of a checkpoint, empty if they are intact."""
    if saved.path.name != folder_name(saved.step):
        return f"its {MANIFEST} is of step {saved.step}"
    if not saved.files:
        return f"its {MANIFEST} lists no files"
    for folder, records in ((saved.path, saved.files), (saved.path.parent, saved.best)):
        for name, record in records.items():
            if problem := _problem_of(folder / name, record):
                return f"{name} {problem}"
    return ""


def _problem_of(path: Path, record: StateFile) -> str:
    try:
        size = path.stat().st_size
        if size != record.bytes:
            return f"has {size:,} bytes, expected {record.bytes:,}"
        found = file_blake3(path)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if found != record.blake3:
        return f"has BLAKE3 digest {found[:12]}..., expected {record.blake3[:12]}..."
    return ""


def describe(path: Path) -> StateFile:
    """Return size and BLAKE3 digest of a file, for a manifest."""
    return StateFile(path.stat().st_size, file_blake3(path))


def folder_name(step: int) -> str:
    """Return the name of a training checkpoint's folder."""
    return f"step-{step:08d}"


@contextmanager
def saving(
    folder: Path, *, step: int, epoch: int, identity: str, world_size: int, keep: int,
    best: Digests | None = None, known: Digests | None = None, milestone: bool = False,
    bound: Bound | None = None, continued: Continued | None = None,
) -> Iterator[Path]:  # fmt: skip
    """Yield a temporary folder for one training checkpoint, then sync and rename it at the end of the block.

    One process enters the block. Other ranks may write into the same folder meanwhile.

    Args:
        folder: `checkpoints/` in the run's folder of the store.
        keep: Number of training checkpoints to keep, including this one.
        best: Size and digest of the best weights at this step.
        known: Size and digest of files with known digests; may be filled within the block.
        bound, continued: See `StateManifest`.
        milestone: Whether the checkpoint stays when others are removed.

    Raises:
        DataError: The checkpoint could not be written. Earlier checkpoints are unchanged.
    """
    scratch, path = scratch_folder(folder, step), folder / folder_name(step)
    try:
        with writing(f"training checkpoint {path}"):
            _remove(scratch)
            scratch.mkdir(parents=True)
            yield scratch
            files = _synced(scratch, known or {})
            manifest = StateManifest(
                identity=identity, step=step, epoch=epoch, world_size=world_size, best=best or {}, files=files,
                written=utc_stamp(timespec="seconds"), milestone=milestone, bound=bound, continued=continued,
            )  # fmt: skip
            write_json(scratch / MANIFEST, seal(msgspec.to_builtins(manifest)))
            for inner in scratch.rglob("*"):
                if inner.is_dir():
                    sync_folder(inner)
            _take_name(scratch, path)
            _point(folder, path)
            _prune(folder, newest=path, keep=keep)
    finally:
        _remove(scratch)


def _point(folder: Path, newest: Path) -> None:
    write_json(folder / POINTER, msgspec.to_builtins(Pointer(newest.name)))


def scratch_folder(folder: Path, step: int) -> Path:
    """Return the temporary folder in which a training checkpoint is written."""
    return folder / f".{folder_name(step)}.tmp"


def _synced(scratch: Path, known: Digests) -> Digests:
    """Sync every file to disk, and return the sizes and digests for the manifest."""
    files = {str(path.relative_to(scratch)): path for path in scratch.rglob("*") if path.is_file()}
    files |= {name: scratch / name for name in known}  # NFS may list files of other ranks late
    for path in files.values():
        sync_file(path)
    return {name: known.get(name) or describe(path) for name, path in sorted(files.items())}


def _take_name(scratch: Path, path: Path) -> None:
    """Rename a temporary folder, and replace a damaged or rolled back checkpoint of the same step."""
    aside = scratch.with_suffix(".old")
    if path.exists():
        _remove(aside)
        path.rename(aside)
    scratch.rename(path)
    sync_folder(path.parent)
    _remove(aside)


def _prune(folder: Path, *, newest: Path, keep: int) -> None:
    """Remove old checkpoints, later ones from before a rollback, and best weights that no manifest lists.

    Earlier milestones stay.

    `newest` was just written, so at least one intact checkpoint always remains.
    """
    found = _folders(folder)
    later = sum(_step_of(path) > _step_of(newest) for path in found)
    stay = {saved.path for saved in list_saved(folder) if saved.milestone}
    for path in (*found[:later], *(one for one in found[later + keep :] if one not in stay)):
        _remove(path)
    kept = {name for saved in list_saved(folder) for name in saved.best}
    for path in folder.glob(BEST):
        if path.name not in kept:
            path.unlink(missing_ok=True)


def mark_milestone(folder: Path) -> None:
    """Make a training checkpoint stay that was saved before its step was named as a milestone.

    Args:
        folder: Folder of the training checkpoint.
    """
    saved, _ = _read(folder)
    if saved and not saved.milestone:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        write_json(folder / MANIFEST, seal({**manifest, "milestone": True}))


def discard_from(folder: Path, step: int) -> None:
    """Remove the training checkpoints from a step on, intact or not.

    No writer may be running. A kill at any moment leaves earlier checkpoints intact.
    """
    found = _folders(folder)
    earlier = [path for path in found if _step_of(path) < step]
    for path in found[: len(found) - len(earlier)]:
        _remove(path)
    if earlier:
        _point(folder, earlier[0])
    else:
        (folder / POINTER).unlink(missing_ok=True)
    if folder.exists():
        sync_folder(folder)


def superfluous(folder: Path, keep: AfterSealing) -> list[Path]:
    """Return the files and folders of training checkpoints to remove after a run is sealed.

    Milestones stay. Checkpoints that a script wrote have no manifest, so only `none` removes them.

    Args:
        folder: `checkpoints/` in the run's folder of the store.
        keep: Which training checkpoints to keep: `runtime.checkpoint.after_sealing`.
    """
    if keep == "all" or folder.is_symlink() or not folder.is_dir():
        return []
    saved = list_saved(folder)
    stay = [one for one in saved if one.milestone]
    if keep == "none" and not stay:
        return [folder]
    if keep == "last" and saved:
        # a longer run can continue from an earlier state if the training's end is not a part of its own
        longest = next((one for one in saved if one.bound and not one.bound.reasons), saved[0])
        stay += [saved[0], longest]
    if not stay:
        return []
    kept = {name for one in stay for name in (one.path.name, *one.best)}
    found = (path for pattern in ("step-*", BEST) for path in folder.glob(pattern))
    return sorted(path for path in found if path.name not in kept)


def prune_sealed(folder: Path, keep: AfterSealing) -> None:
    """Remove the superfluous training checkpoints of a sealed run. A kill leaves no partial checkpoint."""
    for path in superfluous(folder, keep):
        _discard(path)
    if keep == "none" and (left := list_saved(folder)):
        _point(folder, left[0].path)


def _discard(path: Path) -> None:
    """Remove a file or folder, so that a kill leaves no part of it."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    doomed = path.with_name(f".{path.name}.old")
    with suppress(OSError):
        path.rename(doomed)
        _remove(doomed)


def remove_states(folder: Path, paths: Sequence[Path]) -> None:
    """Remove training checkpoints of a sealed run, and best weights that no other one lists.

    Args:
        folder: `checkpoints/` in the run's folder of the store. Removed if no training checkpoint is left.
        paths: Folders of the training checkpoints.
    """
    left = [saved for saved in list_saved(folder) if saved.path not in paths]
    kept = {name for saved in left for name in saved.best}
    doomed = [path for path in folder.glob(BEST) if path.name not in kept]
    if left:
        _point(folder, left[0].path)
    for path in (*paths, *doomed) if left else (folder,):
        _discard(path)


def kept_after_sealing(profile: AfterSealing, *, keep_last: bool) -> AfterSealing:
    """Return which training checkpoints of a run stay.

    Args:
        profile: `runtime.checkpoint.after_sealing`.
        keep_last: `checkpoint.keep_last` of the run.
    """
    return "last" if keep_last and profile == "none" else profile


def remove_scratch(folder: Path) -> None:
    """Remove temporary files of killed writers. No writer may be running."""
    for aside in folder.glob(".step-*.old"):
        path = folder / aside.name.removeprefix(".").removesuffix(".old")
        if not path.exists():
            aside.rename(path)  # restore it: the kill came before its replacement was renamed
    for path in folder.glob(".*"):
        _remove(path) if path.is_dir() else path.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """Remove a folder, ignoring errors."""
    shutil.rmtree(path, ignore_errors=True)
