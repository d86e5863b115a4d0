"""Splits of rows into train, validation and test."""

from collections.abc import Mapping

import numpy as np

SPLITS = ("train", "validation", "test")
# allowed values of a column with each row's split
SPLIT_NAMES = {name: SPLITS.index(name) for name in SPLITS} | {"val": 1, "valid": 1, "dev": 1}


def assign_splits(ids: np.ndarray, shares: Mapping[str, float]) -> np.ndarray:
    """Return each row's split as an index into `SPLITS` [N] int64.

    A row's split only depends on its id (finaliser of SplitMix64, Steele et al. 2014). So the split
    does not change when rows or shards are added.

    Args:
        ids: row ids [N] int64.
        shares: share of the rows by split, with a sum of 1.
    """
    with np.errstate(over="ignore"):
        x = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    edges = np.cumsum([shares[name] for name in SPLITS])[:-1]
    return np.searchsorted(edges, x / 2.0**64, side="right")
