"""Shards: cutting a source into files, describing them in parts, sealing a manifest.

A shard is one safetensors file with `features` [N, *shape], `labels` [N] and
`ids` [N], its rows ordered train, validation, test, so that each split is one
contiguous block of a file that any safetensors reader can map.
"""

import hashlib
import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from shardline.errors import DataError
from shardline.files import atomic_writer
from shardline.sources import SPLITS, Schema, Source
from shardline.statistics import Moments


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """What a manifest says of one shard.

    Attributes:
        rows: number of rows by split, in the order of the file.
        bytes: size of the file.
        sha256: digest of the file's bytes.
    """

    file: str
    rows: dict[str, int]
    bytes: int
    sha256: str


def make_source(
    source_class: str, settings: Mapping[str, Any], *, num_shards: int, files: Sequence[Path]
) -> Source:
    """Import a source class and create it.

    Args:
        source_class: import path, `module:Class`.
        settings: the dataset's `source` settings.

    Raises:
        DataError: it is no Source, or refuses its options; carries its message.
    """
    module, _, name = source_class.partition(":")
    cls = getattr(importlib.import_module(module), name)
    if not (isinstance(cls, type) and issubclass(cls, Source)):
        raise DataError(
            f"source {source_class} is not a subclass of shardline.sources.Source; derive it"
        )
    named = {
        key: value for key, value in settings.items() if key not in ("type", "options", "files")
    }
    options = {**named, **settings.get("options", {})}
    try:
        return cls(num_shards=num_shards, **({"files": files} if files else {}), **options)
    except TypeError as error:
        raise DataError(f"source {source_class} refused its options {options}: {error}") from None


def assign_splits(ids: np.ndarray, shares: Mapping[str, float]) -> np.ndarray:
    """Return each row's split, as an index into SPLITS, [N] int64.

    A row's split depends on its id alone (the finaliser of SplitMix64, Steele
    et al. 2014), so it stays the same when rows or shards are added.
    """
    with np.errstate(over="ignore"):
        x = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    edges = np.cumsum([shares[name] for name in SPLITS])[:-1]
    return np.searchsorted(edges, x / 2.0**64, side="right")


def build_shard(
    source: Source, shard: int, shares: Mapping[str, float], folder: Path
) -> tuple[ShardRecord, dict[str, Any]]:
    """Write one shard and return its record and the statistics of its train rows.

    Raises:
        DataError: the source gave rows that do not match its schema, or the
            shard could not be written; no half-written file stays.
    """
    columns = _read(source, shard)
    split = assign_splits(columns["ids"], shares)
    order = np.argsort(split, kind="stable")
    columns = {name: np.ascontiguousarray(column[order]) for name, column in columns.items()}
    counts = np.bincount(split, minlength=len(SPLITS))
    # one key of metadata: safetensors writes several in no fixed order
    content = save(columns, metadata={"shard": str(shard)})
    name = f"shard-{shard:05d}.safetensors"
    with atomic_writer(folder / name) as file:
        file.write(content)
    record = ShardRecord(
        file=name,
        rows=dict(zip(SPLITS, map(int, counts), strict=True)),
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    return record, _statistics(columns, split[order], source.schema)


def _read(source: Source, shard: int) -> dict[str, np.ndarray]:
    schema = source.schema
    tables = list(source.iter_tables(shard))
    if not tables:
        raise DataError(
            f"source {type(source).__name__}: shard {shard} has no rows; use fewer shards"
        )
    for table in tables:
        found = table.features.shape[1:]
        if found != schema.feature_shape or not len(table.ids) == len(table.labels) == len(
            table.features
        ):
            raise DataError(
                f"source {type(source).__name__}: shard {shard} gave features {table.features.shape} with "
                f"{len(table.labels)} labels and {len(table.ids)} ids; its schema says {schema.feature_shape} a row"
            )
    columns = {
        "features": np.concatenate([t.features for t in tables]).astype(
            schema.feature_dtype, copy=False
        ),
        "labels": np.concatenate([t.labels for t in tables]).astype(schema.label_dtype, copy=False),
        "ids": np.concatenate([t.ids for t in tables]).astype(np.int64, copy=False),
    }
    _check_values(columns, schema, f"source {type(source).__name__}: shard {shard}")
    return columns


def _check_values(columns: Mapping[str, np.ndarray], schema: Schema, where: str) -> None:
    if not np.isfinite(columns["features"]).all():
        bad = np.argwhere(~np.isfinite(columns["features"]))[0]
        raise DataError(
            f"{where}: row id {columns['ids'][bad[0]]} holds a missing or infinite feature; clean the source"
        )
    ids, counts = np.unique(columns["ids"], return_counts=True)
    if (counts > 1).any():
        raise DataError(
            f"{where}: row id {ids[counts > 1][0]} stands twice; ids decide the split and must be unique"
        )
    if not np.isfinite(columns["labels"]).all():
        bad_row = columns["ids"][~np.isfinite(columns["labels"])][0]
        raise DataError(
            f"{where}: row id {bad_row} has a missing or infinite label; clean the source"
        )
    if schema.task == "classification":
        labels = columns["labels"]
        outside = labels[(labels < 0) | (labels >= len(schema.classes))]
        if outside.size:
            raise DataError(
                f"{where}: label {outside[0]} is outside 0..{len(schema.classes) - 1}; mend the labels or the schema"
            )


def _statistics(
    columns: Mapping[str, np.ndarray], split: np.ndarray, schema: Schema
) -> dict[str, Any]:
    statistics = asdict(
        Moments.of(columns["features"][split == 0].reshape(-1, int(np.prod(schema.feature_shape))))
    )
    counts: dict[str, list[int]] = {}
    if schema.task == "classification":
        for index, name in enumerate(SPLITS):
            labels = columns["labels"][split == index]
            counts[name] = np.bincount(labels, minlength=len(schema.classes)).tolist()
    return {"features": statistics, "class_counts": counts}


def seal(
    parts: Iterable[Mapping[str, Any]],
    *,
    dataset: str,
    name: str,
    source: Source,
    document: Mapping[str, Any],
) -> dict[str, Any]:
    """Merge the parts that the jobs wrote into a manifest.

    Args:
        parts: documents with `shards` (records) and `statistics` (one per shard).
        document: the dataset's identity document, kept in the manifest.

    Raises:
        DataError: a shard is missing or described twice, or a split is empty.
    """
    records, statistics = [], []
    for part in parts:
        records.extend(part["shards"])
        statistics.extend(part["statistics"])
    order = sorted(range(len(records)), key=lambda i: records[i]["file"])
    wanted = [f"shard-{shard:05d}.safetensors" for shard in range(source.num_shards)]
    if [records[i]["file"] for i in order] != wanted:
        raise DataError(
            f"dataset {dataset}: the parts describe {len(records)} shards, not each of {len(wanted)} once"
        )
    records = [records[i] for i in order]
    splits = {split: sum(record["rows"][split] for record in records) for split in SPLITS}
    for split, rows in splits.items():
        if not rows:
            raise DataError(
                f"dataset {dataset}: no row fell into the {split} split; give it a larger share"
            )
    return {
        "dataset": dataset,
        "name": name,
        "schema": asdict(source.schema),
        "splits": splits,
        "bytes": sum(record["bytes"] for record in records),
        "statistics": _merge([statistics[i] for i in order]),
        "reference": source.reference,
        "shards": records,
        "identity": document,
    }


def _merge(statistics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    moments = Moments.merge([Moments(**part["features"]) for part in statistics])
    counts = {
        split: np.sum([part["class_counts"][split] for part in statistics], axis=0).tolist()
        for split in statistics[0]["class_counts"]
    }
    return {"features": moments.summary(), "class_counts": counts}
