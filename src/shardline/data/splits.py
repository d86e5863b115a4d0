"""Splits of rows into train, validation and test, and into folds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

SPLITS = ("train", "validation", "test")
# allowed values of a column with each row's split
SPLIT_NAMES = {name: SPLITS.index(name) for name in SPLITS} | {"val": 1, "valid": 1, "dev": 1}
_FOLD, _VALIDATION = 1, 2  # purposes of a hash, so that a fold does not decide which rows validate


def assign_splits(ids: np.ndarray, shares: Mapping[str, float], *, seed: int = 0) -> np.ndarray:
    """Return each row's split as an index into `SPLITS` [N] int64.

    A row's split only depends on its id. So the split does not change when rows or shards are added.

    Args:
        ids: row ids, or the keys of the rows' groups [N] int64.
        shares: share of the rows by split, with a sum of 1.
        seed: another number gives other splits.
    """
    edges = np.cumsum([shares[name] for name in SPLITS])[:-1]
    return np.searchsorted(edges, uniform(ids, seed), side="right")


def assign_folds(keys: np.ndarray, fixed: np.ndarray, splits: Mapping[str, Any]) -> np.ndarray:
    """Return each row's block as an index into `shardline_io.order.folds.blocks_of` [N] int64.

    Args:
        keys: row ids, or the keys of the rows' groups [N] int64.
        fixed: whether each row is in the fixed test set [N] bool, and so in no fold.
        splits: the dataset's `splits`: `folds`, `validation`, `seed`.
    """
    folds = splits["folds"]
    numbers = uniform(keys, splits.get("seed", 0), _FOLD)
    fold = np.minimum((numbers * folds).astype(np.int64), folds - 1)
    blocks: np.ndarray = np.where(fixed, 2 * folds, 2 * fold + validates(keys, splits))
    return blocks


def validates(keys: np.ndarray, splits: Mapping[str, Any]) -> np.ndarray:
    """Return whether each row validates when another fold is tested on [N] bool, by its key."""
    found: np.ndarray = uniform(keys, splits.get("seed", 0), _VALIDATION) < share_of_validation(
        splits
    )
    return found


def share_of_validation(splits: Mapping[str, Any]) -> float:
    """Return the share of the rows of a fold that validate when another fold is tested on."""
    by_file = splits.get("files", {}).get("validation")
    return by_file if isinstance(by_file, float) else float(splits["validation"])


def uniform(keys: np.ndarray, seed: int = 0, purpose: int = 0) -> np.ndarray:
    """Return a number in [0, 1] for each key [N] float64, as a hash of key, seed and purpose."""
    words = keys.astype(np.uint64)
    if seed or purpose:
        salt = _mixed(np.array([(seed << 8 | purpose) % 2**64], np.uint64))
        words = words ^ salt
    return _mixed(words) / 2.0**64


def _mixed(words: np.ndarray) -> np.ndarray:
    """Return hashes [N] uint64 (finaliser of SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = words + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
