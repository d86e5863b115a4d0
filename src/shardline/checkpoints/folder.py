"""Folders of training checkpoints: each whole or not there, and checked before it is trusted.

    checkpoints/
      latest.json                 {"newest": "step-00000120"}
      step-00000120/              state.pt and whatever a strategy adds
        manifest.json             written last: identity, step, size and digest of each file
      best-*.safetensors          the best weights, each named by the manifests of the states
                                  that know it

A checkpoint is written beside its place, every file and folder is brought to disk, then it takes
its name and the pointer is moved. A kill at any moment leaves the earlier ones as they were.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec

from shardline.core.digests import file_blake3
from shardline.core.errors import DataError
from shardline.core.files import sync_file, sync_folder, utc_stamp, write_json, writing
from shardline.core.seals import check_seal, seal

MANIFEST = "manifest.json"
POINTER = "latest.json"
BEST = "best-*.safetensors"

AfterSealing = Literal["none", "last", "all"]  # of `runtime.checkpoint.after_sealing`


class StateFile(msgspec.Struct, frozen=True):
    """Size and BLAKE3 digest of a file."""

    bytes: int
    blake3: str


Digests = dict[str, StateFile]


class Pointer(msgspec.Struct, frozen=True):
    """latest.json: the folder of the newest training checkpoint."""

    newest: str


class StateManifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json of a training checkpoint.

    Attributes:
        identity: of the run.
        step: optimiser steps done.
        epoch: the epoch that was going on, from 0.
        world_size: ranks that wrote it.
        best: the best weights that the state knows, which lie beside the folder.
        written: when, UTC.
        files: those of the folder.
    """

    identity: str
    step: int
    epoch: int
    world_size: int
    best: Digests
    written: str
    files: Digests


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings under `runtime.checkpoint`. None of them changes a result.

    Attributes:
        every_steps: optimiser steps between two training checkpoints; 0 for never.
        every_min: minutes between two training checkpoints; 0 for never.
        keep: training checkpoints that stay.
        keep_best: best weights that stay; the best of them is sealed.
        asynchronous: write beside the training; else each save waits for the disk.
    """

    every_steps: int = 0
    every_min: float = 0.0
    keep: int = 2
    keep_best: int = 1
    asynchronous: bool = True


class TrainingCheckpoint(StateManifest, frozen=True, kw_only=True):
    """A training checkpoint in its folder, as its manifest describes it."""

    path: Path

    @property
    def bytes(self) -> int:
        """Size of its files together."""
        return sum(of.bytes for of in self.files.values())


def list_saved(folder: Path) -> list[TrainingCheckpoint]:
    """Return the training checkpoints with a readable manifest, the newest first, not verified."""
    return [saved for path in _folders(folder) if (saved := _read(path)[0])]


def last_step(folder: Path) -> int:
    """Return the step of the newest training checkpoint, 0 where there is none."""
    return next((saved.step for saved in list_saved(folder)), 0)


def newest_good(folder: Path, identity: str) -> tuple[TrainingCheckpoint | None, list[str]]:
    """Return the newest training checkpoint whose files match its manifest.

    Args:
        folder: `checkpoints/` of a run's folder in the store.
        identity: of the run; 64 hex digits.

    Returns:
        The checkpoint, None if there is no good one; and a sentence for each that was passed over.

    Raises:
        DataError: one is of another run; names both identities.
    """
    passed = _missing_newest(folder)
    for path in _folders(folder):
        saved, problem = _read(path)
        if saved:
            if saved.identity != identity:
                raise DataError(
                    f"training checkpoint {path} is of another run (identity {saved.identity[:12]}, this one has "
                    f"{identity[:12]}); move {folder} away to train from the start"
                )
            if not (problem := _problem(saved)):
                return saved, passed
        passed.append(f"training checkpoint {path} is damaged: {problem}")
    return None, passed


def find_damage(folder: Path, identity: str) -> tuple[int, list[str]]:
    """Verify every training checkpoint.

    Args:
        folder: `checkpoints/` of a run's folder in the store.
        identity: of the run; 64 hex digits.

    Returns:
        How many are good, and a sentence for each that is not.
    """
    good, problems = 0, _missing_newest(folder)
    for path in _folders(folder):
        saved, problem = _read(path)
        if saved and saved.identity != identity:
            problem = f"it is of another run (identity {saved.identity[:12]})"
        elif saved:
            problem = _problem(saved)
        if not problem:
            good += 1
        elif path.exists():  # a running training removes old ones
            problems.append(f"training checkpoint {path} is damaged: {problem}")
    return good, problems


def _folders(folder: Path) -> list[Path]:
    """Return the folders of training checkpoints, the newest first."""
    found = (path for path in folder.glob("step-*") if path.is_dir() and _step_of(path) >= 0)
    return sorted(found, key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    digits = path.name.removeprefix("step-")
    return int(digits) if digits.isdecimal() else -1


def _missing_newest(folder: Path) -> list[str]:
    """Return a sentence if the pointer is unreadable, or names a folder that is not there."""
    pointer = folder / POINTER
    try:
        newest = msgspec.json.decode(pointer.read_bytes(), type=Pointer).newest
    except FileNotFoundError:
        # a kill between the first checkpoint and its pointer is no damage
        many = len(_folders(folder)) > 1
        return [f"{pointer} is missing; the folders beside it are looked at"] if many else []
    except (OSError, ValueError):
        return [f"{pointer} is not readable; the folders beside it are looked at"]
    # a kill before the pointer was moved leaves it at the one before
    if folder / newest in _folders(folder)[:2]:
        return []
    return [f"training checkpoint {folder / newest} is missing, though {POINTER} names it"]


def _read(path: Path) -> tuple[TrainingCheckpoint | None, str]:
    """Return what a manifest describes, or else what is wrong with it."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if check_seal(path / MANIFEST, manifest):
            return None, f"its {MANIFEST} is not what was written"
        return msgspec.convert({**manifest, "path": path}, TrainingCheckpoint), ""
    except FileNotFoundError:
        return None, f"it has no {MANIFEST}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None, f"its {MANIFEST} is not readable"


def _problem(saved: TrainingCheckpoint) -> str:
    """Return what is wrong with a checkpoint's files, empty if nothing is."""
    if saved.path.name != folder_name(saved.step):
        return f"its {MANIFEST} is of step {saved.step}"
    if not saved.files:
        return f"its {MANIFEST} names no files"
    for folder, records in ((saved.path, saved.files), (saved.path.parent, saved.best)):
        for name, record in records.items():
            if problem := _problem_of(folder / name, record):
                return f"{name} {problem}"
    return ""


def _problem_of(path: Path, record: StateFile) -> str:
    try:
        size = path.stat().st_size
        if size != record.bytes:
            return f"has {size:,} bytes, not {record.bytes:,}"
        found = file_blake3(path)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if found != record.blake3:
        return f"has BLAKE3 digest {found[:12]}..., not {record.blake3[:12]}..."
    return ""


def describe(path: Path) -> StateFile:
    """Return size and BLAKE3 digest of a file, as manifests hold them."""
    return StateFile(path.stat().st_size, file_blake3(path))


def folder_name(step: int) -> str:
    """Return the name of a training checkpoint's folder."""
    return f"step-{step:08d}"


@contextmanager
def saving(
    folder: Path, *, step: int, epoch: int, identity: str, world_size: int, keep: int,
    best: Digests | None = None, known: Digests | None = None,
) -> Iterator[Path]:  # fmt: skip
    """Give a folder to write one training checkpoint into; on leaving, bring it to disk and name it.

    Entered by one process; the other ranks may write into the same folder meanwhile.

    Args:
        folder: `checkpoints/` of a run's folder in the store.
        keep: training checkpoints that stay, this one among them.
        best: size and digest of the best weights that the state knows.
        known: size and digest of files that the writer has digested; filled within the block.

    Raises:
        DataError: it could not be written; what was there before is untouched.
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
                written=utc_stamp(timespec="seconds"),
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
    """Return where a training checkpoint is written before it takes its name."""
    return folder / f".{folder_name(step)}.tmp"


def _synced(scratch: Path, known: Digests) -> Digests:
    """Bring every file to disk, and return what the manifest holds of them."""
    files = {str(path.relative_to(scratch)): path for path in scratch.rglob("*") if path.is_file()}
    files |= {name: scratch / name for name in known}  # NFS may list what others wrote later
    for path in files.values():
        sync_file(path)
    return {name: known.get(name) or describe(path) for name, path in sorted(files.items())}


def _take_name(scratch: Path, path: Path) -> None:
    """Rename; one of the same step was passed over or rolled back, and makes room."""
    aside = scratch.with_suffix(".old")
    if path.exists():
        _remove(aside)
        path.rename(aside)
    scratch.rename(path)
    sync_folder(path.parent)
    _remove(aside)


def _prune(folder: Path, *, newest: Path, keep: int) -> None:
    """Remove what is no longer kept: old ones, later ones that were left behind, unnamed best weights.

    `newest` was written just now and is good, so that a good one always stays.
    """
    found = _folders(folder)
    later = sum(_step_of(path) > _step_of(newest) for path in found)
    for path in (*found[:later], *found[later + keep :]):
        _remove(path)
    kept = {name for saved in list_saved(folder) for name in saved.best}
    for path in folder.glob(BEST):
        if path.name not in kept:
            path.unlink(missing_ok=True)


def discard_from(folder: Path, step: int) -> None:
    """Remove the training checkpoints of a step and of all later ones, whole or not.

    Called where no writer is at work. A kill at any moment leaves the earlier ones as they were.
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
    """Return what the training checkpoints of a sealed run hold beyond what is to stay.

    A script's own checkpoints have no manifest: only `none` concerns them.

    Args:
        folder: `checkpoints/` of the run's folder in the store.
    """
    if keep == "all" or folder.is_symlink() or not folder.is_dir():
        return []
    if keep == "none":
        return [folder]
    newest = next(iter(list_saved(folder)), None)
    if newest is None:
        return []
    kept = {newest.path.name, *newest.best}
    found = (path for pattern in ("step-*", BEST) for path in folder.glob(pattern))
    return sorted(path for path in found if path.name not in kept)


def prune_sealed(folder: Path, keep: AfterSealing) -> None:
    """Remove what need not stay of a run whose results are sealed; a kill leaves no half that counts."""
    for path in superfluous(folder, keep):
        if not path.is_dir():
            path.unlink(missing_ok=True)
            continue
        doomed = path.with_name(f".{path.name}.old")
        with suppress(OSError):
            path.rename(doomed)
            _remove(doomed)


def remove_scratch(folder: Path) -> None:
    """Remove what writers that were killed have left behind; called before there is a writer."""
    for aside in folder.glob(".step-*.old"):
        path = folder / aside.name.removeprefix(".").removesuffix(".old")
        if not path.exists():
            aside.rename(path)  # the one that was to replace it has not come
    for path in folder.glob(".*"):
        _remove(path) if path.is_dir() else path.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """Remove a folder; what cannot be removed is no reason to fail."""
    shutil.rmtree(path, ignore_errors=True)
