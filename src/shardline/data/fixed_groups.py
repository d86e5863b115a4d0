"""Groups of a fixed test set, compared with the groups of the folds beside it: no group may be in both."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.records.datasets import Part

_TEST, _FOLDS = "test", "folds"


def are_compared(splits: Mapping[str, Any]) -> bool:
    """Return whether a dataset has groups, folds, and a fixed test set by column or files."""
    return bool(splits.get("group") and splits.get("folds") and splits.keys() & {"column", "files"})


class FixedGroups:
    """Keys of the groups in the shards of one job, in the fixed test set and in the folds."""

    def __init__(self) -> None:
        self._keys: dict[str, set[int]] = {_TEST: set(), _FOLDS: set()}

    def add(self, keys: np.ndarray, is_fixed: np.ndarray) -> None:
        """Add the groups of rows.

        Args:
            keys: Key of each row's group [N] int64.
            is_fixed: Whether each row is in the fixed test set [N] bool.
        """
        self._keys[_TEST].update(np.unique(keys[is_fixed]).tolist())
        self._keys[_FOLDS].update(np.unique(keys[~is_fixed]).tolist())

    def record(self) -> dict[str, list[int]]:
        """Return the keys for the job's part, rising."""
        return {name: sorted(keys) for name, keys in self._keys.items()}


def check_fixed_groups(parts: Iterable[Part], dataset: str, group: str) -> None:
    """Reject groups with rows in the fixed test set and in folds.

    Args:
        parts: Parts of all jobs.
        group: Column of the groups.

    Raises:
        DataError: There are such groups; the message has their number.
    """
    found: dict[str, set[int]] = {_TEST: set(), _FOLDS: set()}
    for part in parts:
        for name, keys in (part.groups or {}).items():
            found[name].update(keys)
    if both := found[_TEST] & found[_FOLDS]:
        raise DataError(
            f"dataset {dataset}: {len(both):,} of {len(found[_TEST]):,} groups of {group} in the fixed test set have "
            f"rows in folds too, expected each group on one side, since splits.group={group}; move their rows to one "
            "side, or drop splits.group"
        )
