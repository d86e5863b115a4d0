"""The lists of a dataset's shards that its jobs leave in the store: sealed, and verified when they are read.

A list of a version that did not seal them is accepted if the shards that it describes have its
digests, and if their rows give its statistics.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardline.config.dataset import shards_of_part
from shardline.core.digests import file_blake3
from shardline.core.errors import DataError
from shardline.core.files import read_object
from shardline.core.seals import check_seal
from shardline.data.shard_format import Layout
from shardline.data.statistics import Moments, Statistics, merge_siblings

# Sums over float32 values depend on how the rows were cut into tables, by far less than this.
_RELATIVE = 1e-5


def read_part(
    path: Path, dataset: str, schema: Mapping[str, Any] | None = None, *, remedy: str
) -> dict[str, Any]:
    """Read the list of one part's shards.

    Args:
        path: `parts/{part}.json` in the dataset's folder of the store.
        dataset: the dataset's id.
        schema: the dataset's; an unsealed list is verified against its shards, which is left out if None.
        remedy: ends the message.

    Raises:
        DataError: it cannot be read, is not what was written, or is of another dataset or part.
    """
    part = read_object(path, remedy=remedy)
    try:
        problem = _problem(path, part, dataset)
        if not problem and "sha256" not in part and schema is not None:
            problem = _problem_of_rows(path.parents[1], part, schema)
        _restore_nan(part)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"{path} has not the form that the pipeline writes ({error!r})"
    if problem:
        raise DataError(f"{problem}; {remedy}")
    return part


def _restore_nan(part: Mapping[str, Any]) -> None:
    """Read null, which seals have for what JSON cannot hold: sums of squares beyond float64."""
    for item in part["statistics"]:
        features = item.get("features", {})
        for key in features.keys() & {"mean", "m2"}:
            features[key] = [math.nan if value is None else value for value in features[key]]


def _problem(path: Path, part: Mapping[str, Any], dataset: str) -> str | None:
    if "sha256" in part and (problem := check_seal(path, part)):
        return problem
    if part["dataset"] != dataset:
        return f"{path} is of the dataset {part['dataset']}, expected {dataset}"
    numbers, wanted = range(0), shards_of_part(path.stem)
    if part["statistics"]:
        numbers = range(part["statistics"][0]["first"], part["statistics"][-1]["stop"])
    if numbers != wanted or len(part["shards"]) != len(wanted):
        return f"{path} is of {len(part['shards'])} shards from {numbers.start} on, expected {path.stem}"
    return None


def _problem_of_rows(folder: Path, part: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    for record in part["shards"]:
        path = folder / record["file"]
        try:
            found = path.stat().st_size, file_blake3(path)
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
        if found != (record["bytes"], record["blake3"]):
            return f"{path} is not the file that the list of its part describes"
    numbers = range(part["statistics"][0]["first"], part["statistics"][-1]["stop"])
    counted = count_rows(folder, zip(numbers, part["shards"], strict=True), schema)
    described = [Statistics.from_json(item) for item in part["statistics"]]
    same = len(counted) == len(described) and all(
        (a.first, a.stop, a.class_counts) == (b.first, b.stop, b.class_counts)
        and not differing(a.features.summary(), b.features.summary())
        for a, b in zip(counted, described, strict=True)
    )
    return (
        ""
        if same
        else f"{folder}: the rows of the part's shards give other statistics than its list"
    )


def count_rows(
    folder: Path, shards: Iterable[tuple[int, Mapping[str, Any]]], schema: Mapping[str, Any]
) -> list[Statistics]:
    """Return the statistics of consecutive shards, from their files.

    Args:
        folder: of the shards.
        shards: number and record of each.
        schema: a manifest's `schema`.
    """
    return merge_siblings(_count(folder, *shard, schema) for shard in shards)


def _count(
    folder: Path, number: int, record: Mapping[str, Any], schema: Mapping[str, Any]
) -> Statistics:
    rows: dict[str, int] = record["rows"]
    layout = Layout.of(schema, sum(rows.values()))

    def column(name: str) -> np.ndarray:
        dtype, shape = layout.dtypes[name], layout.shapes[name]
        path, offset = folder / record["file"], layout.offsets[name]
        return np.memmap(path, dtype, "r", offset, shape) if all(shape) else np.empty(shape, dtype)

    ends = np.cumsum([*rows.values()])
    begins = dict(zip(rows, ends - [*rows.values()], strict=True))
    train = column("features")[begins["train"] : begins["train"] + rows["train"]]
    classes = len(schema["classes"]) if schema["task"] == "classification" else 0
    by_split = np.split(np.asarray(column("labels")), ends[:-1]) if classes else []
    return Statistics(
        first=number,
        stop=number + 1,
        features=Moments.of(train.reshape(len(train), math.prod(schema["feature_shape"]))),
        class_counts={
            split: np.bincount(labels, minlength=classes).tolist()
            for split, labels in zip(rows, by_split, strict=False)
        },
    )


def differing(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return in which values two summaries of moments differ by more than rounding."""
    if found["count"] != expected["count"]:
        return ["count"]
    low, high = (np.asarray(found[key], float) for key in ("min", "max"))
    scale = np.maximum(np.abs(low), np.abs(high))
    return [
        key
        for key in ("mean", "std", "min", "max")
        if not _is_near(found[key], expected[key], scale)
    ]


def _is_near(found: Sequence[float], expected: Sequence[float], scale: np.ndarray) -> bool:
    mine, other = np.asarray(found, float), np.asarray(expected, float)
    return mine.shape == other.shape and np.allclose(
        mine, other, rtol=0, atol=_RELATIVE * scale, equal_nan=True
    )
