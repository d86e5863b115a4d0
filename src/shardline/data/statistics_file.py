"""File with the full statistics of a dataset of many features; the manifest only has a summary.

It is a safetensors file of float64 tensors [F], `{column}.mean`, `{column}.std`, `{column}.min` and
`{column}.max`, which keep all bits. With folds, the names of the tensors of a run that tests on a fold
begin with `{fold}/`. It is in the store next to the shards, since ranks normalise
features and only have access to the shards.
"""

import math
from pathlib import Path

import numpy as np
from blake3 import blake3
from msgspec import UNSET, structs

from shardline.core.errors import DataError
from shardline.core.files import write_bytes
from shardline.data.moments import KEYS, FeatureSummary
from shardline.data.shard_map import rebuild_command
from shardline.data.statistics import ByColumn, of_columns
from shardline.records.datasets import DatasetStatistics, FoldStatistics, Manifest, ShortSummary
from shardline_io.shards import header_of, tensors_of

STATISTICS_FILE = "statistics.safetensors"
MOST_INSIDE = 4096  # features of all columns; these take about 350 KB in a manifest


def set_aside(manifest: Manifest, folder: Path) -> Manifest:
    """Move the statistics of more than `MOST_INSIDE` features from a manifest into a file.

    Args:
        manifest: manifest with full statistics, lists [F] for each column.
        folder: folder of the shards in the store.

    Returns:
        The same manifest if it has fewer features, else with `summary`, `file` and `blake3` in its
        `statistics` instead of the lists.

    Raises:
        DataError: the file cannot be written.
    """
    recorded = manifest.statistics
    by_fold = {"": of_columns(recorded)}
    by_fold |= {f"{fold}/": of_columns(of) for fold, of in enumerate(recorded.folds or ())}
    if sum(len(of.mean) for columns in by_fold.values() for of in columns.values()) <= MOST_INSIDE:
        return manifest
    tensors = {
        f"{fold}{name}.{key}": getattr(of, key)
        for fold, columns in by_fold.items()
        for name, of in columns.items()
        for key in KEYS
    }
    content = b"".join([header_of(tensors), *(tensor.tobytes() for tensor in tensors.values())])
    write_bytes(folder / STATISTICS_FILE, content)
    summary, *folds = (
        {name: _summary(of) for name, of in columns.items()} for columns in by_fold.values()
    )
    described = DatasetStatistics(
        summary=summary,
        class_counts=recorded.class_counts,
        folds=[FoldStatistics(summary=of) for of in folds] or UNSET,
        file=STATISTICS_FILE,
        blake3=blake3(content).hexdigest(),
    )
    return structs.replace(manifest, statistics=described)


def read_statistics(manifest: Manifest, folder: Path, fold: int | None = None) -> ByColumn:
    """Return a dataset's full statistics by column.

    Args:
        manifest: the sealed manifest, or that of a fold, see `data.folds.of_fold`; without a
            `summary`, it has the full statistics.
        folder: folder of the shards in the store.
        fold: fold of the manifest.

    Raises:
        DataError: the file is missing or damaged; names the file and the remedy.
    """
    if not (summary := manifest.statistics.summary):
        return of_columns(manifest.statistics)
    if problem := problem_of_statistics(manifest, folder):
        raise DataError(f"{problem}; {rebuild_command(manifest)}")
    prefix = "" if fold is None else f"{fold}/"
    try:
        tensors = tensors_of(np.fromfile(folder / STATISTICS_FILE, np.uint8))
        return {
            name: FeatureSummary(of.count, *(tensors[f"{prefix}{name}.{key}"] for key in KEYS))
            for name, of in summary.items()
        }
    # the file was altered together with its digest in the manifest
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise DataError(
            f"{folder / STATISTICS_FILE} lacks mean, std, min and max of {', '.join(summary)}, "
            f"expected the statistics that the manifest summarises; {rebuild_command(manifest)}"
        ) from None


def problem_of_statistics(manifest: Manifest, folder: Path) -> str | None:
    """Return what is wrong with a dataset's file of statistics, as a sentence; None if nothing is.

    Args:
        manifest: the sealed manifest.
        folder: folder of the shards in the store.
    """
    if not (expected := manifest.statistics.blake3):
        return None
    path = folder / STATISTICS_FILE
    try:
        found = blake3(path.read_bytes()).hexdigest()
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}), expected the statistics that the manifest summarises"
    if found != expected:
        return (
            f"{path} has BLAKE3 digest {found[:12]}..., expected {expected[:12]}... by the manifest"
        )
    return None


def _summary(statistics: FeatureSummary) -> ShortSummary:
    """Return statistics over all features of a column; a number is None if undefined or not finite."""
    mean, std = statistics.mean, statistics.std
    numbers: dict[str, float | None] = dict.fromkeys(KEYS)
    if len(mean):
        with np.errstate(over="ignore", invalid="ignore"):
            # mean of the variances plus variance of the means
            overall = np.sqrt((std**2).mean() + mean.var())
            found = mean.mean(), overall, statistics.min.min(), statistics.max.max()
        for key, value in zip(KEYS, found, strict=True):
            numbers[key] = float(value) if math.isfinite(value) else None
    return ShortSummary(count=statistics.count, features=len(mean), **numbers)
