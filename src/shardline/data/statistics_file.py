"""Full statistics of a dataset of many features: a file beside its shards, of which the manifest has a summary.

The file is a safetensors file of float64 tensors [F], `{column}.mean`, `{column}.std`,
`{column}.min` and `{column}.max`, so that what is read has the bits that were computed.
It lies in the store: whoever normalises has the shards, and no more than these.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from shardline.core.errors import DataError
from shardline.core.files import write_bytes
from shardline.data.shard_map import rebuild_command
from shardline.data.statistics import of_columns
from shardline_io.shards import header_of, tensors_of

STATISTICS_FILE = "statistics.safetensors"
MOST_INSIDE = 4096  # features of all columns: some 350 KB of a manifest
_KEYS = ("mean", "std", "min", "max")


def set_aside(manifest: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a manifest as it is sealed; statistics of more than `MOST_INSIDE` features go into a file.

    Args:
        manifest: with full statistics, of which each column has lists [F].
        folder: folder of the shards in the store.

    Returns:
        The manifest as given, or with `summary`, `file` and `blake3` in its
        `statistics` in place of what the file holds.

    Raises:
        DataError: the file cannot be written.
    """
    statistics = manifest["statistics"]
    columns = of_columns(statistics)
    if _are_few(columns):
        return dict(manifest)
    tensors = {
        f"{name}.{key}": np.array(of[key], dtype=np.float64)
        for name, of in columns.items()
        for key in _KEYS
    }
    content = b"".join([header_of(tensors), *(tensor.tobytes() for tensor in tensors.values())])
    write_bytes(folder / STATISTICS_FILE, content)
    described = {
        "summary": {name: _summary(of) for name, of in columns.items()},
        "class_counts": statistics["class_counts"],
        "file": STATISTICS_FILE,
        "blake3": blake3(content).hexdigest(),
    }
    return {**manifest, "statistics": described}


def _are_few(columns: Mapping[str, Any]) -> bool:
    return sum(len(of["mean"]) for of in columns.values()) <= MOST_INSIDE


def read_statistics(manifest: Mapping[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """Return a dataset's full statistics by column: its count, and mean, std, min and max [F] each.

    Args:
        manifest: the sealed manifest; one that holds the statistics itself needs no file.
        folder: folder of the shards in the store.

    Raises:
        DataError: the file is missing or damaged; the message names it and the remedy.
    """
    statistics = manifest["statistics"]
    if "file" not in statistics:
        return of_columns(statistics)
    if problem := problem_of_statistics(manifest, folder):
        raise DataError(f"{problem}; {rebuild_command(manifest)}")
    try:
        tensors = tensors_of(np.fromfile(folder / STATISTICS_FILE, np.uint8))
        return {
            name: {"count": of["count"], **{key: tensors[f"{name}.{key}"] for key in _KEYS}}
            for name, of in statistics["summary"].items()
        }
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
    ):  # altered together with its digest
        raise DataError(
            f"{folder / STATISTICS_FILE} does not hold mean, std, min and max of {', '.join(statistics['summary'])}, "
            f"expected the statistics that the manifest summarises; {rebuild_command(manifest)}"
        ) from None


def problem_of_statistics(manifest: Mapping[str, Any], folder: Path) -> str | None:
    """Return what is wrong with the file of a dataset's statistics, as a sentence; None if nothing is.

    Args:
        manifest: the sealed manifest.
        folder: folder of the shards in the store.
    """
    recorded = manifest.get("statistics", {})
    if "file" not in recorded:
        return None
    path, expected = folder / STATISTICS_FILE, recorded["blake3"]
    try:
        found = blake3(path.read_bytes()).hexdigest()
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}), expected the statistics that the manifest summarises"
    if found != expected:
        return (
            f"{path} has BLAKE3 digest {found[:12]}..., expected {expected[:12]}... by the manifest"
        )
    return None


def _summary(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Return statistics over all features of a column; None where there are none, or none that JSON holds."""
    mean, std = np.array(statistics["mean"], float), np.array(statistics["std"], float)
    numbers: dict[str, float | None] = dict.fromkeys(_KEYS)
    if len(mean):
        with np.errstate(over="ignore", invalid="ignore"):
            # the mean of the variances and the variance of the means
            overall = np.sqrt((std**2).mean() + mean.var())
            found = mean.mean(), overall, min(statistics["min"]), max(statistics["max"])
        for key, value in zip(_KEYS, found, strict=True):
            numbers[key] = float(value) if math.isfinite(value) else None
    return {"count": statistics["count"], "features": len(mean), **numbers}
