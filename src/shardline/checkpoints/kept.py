"""Which training checkpoints stay after a run is sealed or goes back, and removal of the others."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from shardline.checkpoints.folder import folders_in, list_saved, point_to, remove_folder, step_of
from shardline.checkpoints.manifest import BEST, POINTER
from shardline.core.files import sync_folder

AfterSealing = Literal["none", "last", "all"]  # values of `runtime.checkpoint.after_sealing`


def kept_after_sealing(profile: AfterSealing, *, keep_last: bool) -> AfterSealing:
    """Return which training checkpoints of a run stay.

    Args:
        profile: `runtime.checkpoint.after_sealing`.
        keep_last: `checkpoint.keep_last` of the run.
    """
    return "last" if keep_last and profile == "none" else profile


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
        point_to(folder, left[0].path)


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
        point_to(folder, left[0].path)
    for path in (*paths, *doomed) if left else (folder,):
        _discard(path)


def discard_from(folder: Path, step: int) -> None:
    """Remove the training checkpoints from a step on, intact or not.

    No writer may be running. A kill at any moment leaves earlier checkpoints intact.
    """
    found = folders_in(folder)
    earlier = [path for path in found if step_of(path) < step]
    for path in found[: len(found) - len(earlier)]:
        remove_folder(path)
    if earlier:
        point_to(folder, earlier[0])
    else:
        (folder / POINTER).unlink(missing_ok=True)
    if folder.exists():
        sync_folder(folder)


def _discard(path: Path) -> None:
    """Remove a file or folder, so that a kill leaves no part of it."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    doomed = path.with_name(f".{path.name}.old")
    with suppress(OSError):
        path.rename(doomed)
        remove_folder(doomed)
