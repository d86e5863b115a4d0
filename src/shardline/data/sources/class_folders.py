"""Folders whose names are classes: which of several above an image that would be is no guess of ours."""

from collections.abc import Iterable, Set
from pathlib import Path

from shardline.core.errors import DataError

_SPLITS = {
    "train", "training", "val", "valid", "validation", "dev", "eval", "evaluation", "test", "testing",
}  # fmt: skip
_SHOWN = 5


def check_folders(folders: Set[Path], *, has_splits: bool) -> None:
    """Refuse folders of which some other than the last above an image may name its class.

    Args:
        folders: those that images lie in.
        has_splits: whether folders above them are of splits.

    Raises:
        DataError: one lies in another, or two of one name in several others; names both.
    """
    by_name: dict[str, Path] = {}
    outermost = [folder for folder in folders if not folders & {*folder.parents}]
    for folder in sorted(folders):
        if folder not in outermost:
            outer = next(above for above in folder.parents if above in folders)
            raise DataError(
                f"{folder}: images lie in this folder and in {outer.name} above it, so that either may be their class; "
                f"list the classes in source.classes, such as [{_listed(outermost)}] or [{_listed(folders)}]"
            )
        twin = by_name.setdefault(folder.name, folder)
        of_splits = has_splits or {twin.parent.name.lower(), folder.parent.name.lower()} <= _SPLITS
        if twin is not folder and not of_splits:
            raise DataError(
                f"{folder}: a folder {folder.name} lies in {twin.parent.name} as well, so that either folder above an "
                "image may be its class; list the classes in source.classes, such as "
                f"[{_listed(one.parent for one in folders)}] or [{_listed(folders)}]"
            )


def _listed(folders: Iterable[Path]) -> str:
    names = sorted({folder.name for folder in folders})
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
