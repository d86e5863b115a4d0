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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from shardline.checkpoints.manifest import (
    BEST,
    MANIFEST,
    POINTER,
    Bound,
    Continued,
    Digests,
    Pointer,
    StateFile,
    StateManifest,
    TrainingCheckpoint,
)
from shardline.core.digests import file_blake3
from shardline.core.errors import DataError
from shardline.core.files import sync_file, sync_folder, utc_stamp, write_json, writing
from shardline.core.seals import check_seal, seal


def list_saved(folder: Path) -> list[TrainingCheckpoint]:
    """Return the training checkpoints with a readable manifest, newest first, without verification."""
    return [saved for path in folders_in(folder) if (saved := _read(path)[0])]


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
    for path in folders_in(folder):
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
    for path in folders_in(folder):
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
    chosen = path if (path / MANIFEST).is_file() else next(iter(folders_in(path)), path)
    saved, problem = _read(chosen)
    if saved is None or (problem := problem_of(saved)):
        raise DataError(
            f"training checkpoint {chosen} is damaged: {problem}; train its run again, or name another state"
        )
    return saved


def folders_in(folder: Path) -> list[Path]:
    """Return the folders of training checkpoints, newest first."""
    found = (path for path in folder.glob("step-*") if path.is_dir() and step_of(path) >= 0)
    return sorted(found, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """Return the step in the name of a folder; -1 if the name has none."""
    digits = path.name.removeprefix("step-")
    return int(digits) if digits.isdecimal() else -1


def _missing_newest(folder: Path) -> list[str]:
    """Return a sentence if the pointer is unreadable, or names a missing folder."""
    pointer = folder / POINTER
    try:
        newest = msgspec.json.decode(pointer.read_bytes(), type=Pointer).newest
    except FileNotFoundError:
        # after a kill between the first checkpoint and its pointer, nothing is damaged
        many = len(folders_in(folder)) > 1
        return [f"{pointer} is missing; using the folders beside it"] if many else []
    except (OSError, ValueError):
        return [f"{pointer} is not readable; using the folders beside it"]
    # after a kill before the update, the pointer names the previous checkpoint
    if folder / newest in folders_in(folder)[:2]:
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
            remove_folder(scratch)
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
            point_to(folder, path)
            _prune(folder, newest=path, keep=keep)
    finally:
        remove_folder(scratch)


def point_to(folder: Path, newest: Path) -> None:
    """Make the pointer name a training checkpoint."""
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
        remove_folder(aside)
        path.rename(aside)
    scratch.rename(path)
    sync_folder(path.parent)
    remove_folder(aside)


def _prune(folder: Path, *, newest: Path, keep: int) -> None:
    """Remove old checkpoints, later ones from before a rollback, and best weights that no manifest lists.

    Earlier milestones stay.

    `newest` was just written, so at least one intact checkpoint always remains.
    """
    found = folders_in(folder)
    later = sum(step_of(path) > step_of(newest) for path in found)
    stay = {saved.path for saved in list_saved(folder) if saved.milestone}
    for path in (*found[:later], *(one for one in found[later + keep :] if one not in stay)):
        remove_folder(path)
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


def remove_scratch(folder: Path) -> None:
    """Remove temporary files of killed writers. No writer may be running."""
    for aside in folder.glob(".step-*.old"):
        path = folder / aside.name.removeprefix(".").removesuffix(".old")
        if not path.exists():
            aside.rename(path)  # restore it: the kill came before its replacement was renamed
    for path in folder.glob(".*"):
        remove_folder(path) if path.is_dir() else path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder, ignoring errors."""
    shutil.rmtree(path, ignore_errors=True)
