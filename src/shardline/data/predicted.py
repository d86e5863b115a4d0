"""Rows to predict: files that are read like the run's dataset, with or without labels."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType, structs

from shardline.core.errors import DataError
from shardline.data.build import import_source, make_source, seal
from shardline.data.columns import columns_of, stored_columns
from shardline.data.sources import Source
from shardline.data.sources.prepared_columns import written_of
from shardline.data.sources.table_columns import TableColumns
from shardline.records.datasets import DatasetSchema, Manifest, Part
from shardline.records.identities import IdentityDocument
from shardline.records.preprocessing import Preprocessing
from shardline_io.column_names import WEIGHT

# all rows of the files are predicted, as the test split
SPLITS = {"train": 0.0, "validation": 0.0, "test": 1.0}


def open_files(
    source_class: str, settings: Mapping[str, Any], *, files: Sequence[Path], num_shards: int,
    schema: DatasetSchema, features: Sequence[str] = (), plan: Preprocessing | UnsetType = UNSET,
) -> Source:  # fmt: skip
    """Open files with the source of the dataset that a run was trained on.

    Args:
        source_class: import path of the source.
        settings: the dataset's `source` settings, adapted to these files.
        schema: schema in that dataset's manifest.
        features: feature columns of that dataset, if its settings do not list them.
        plan: preprocessing of that dataset.

    Returns:
        A source whose rows have labels of 0 if the files have no labels.

    Raises:
        DataError: the files have other columns or shapes than that dataset; names a file.
    """
    pinned = _pinned(import_source(source_class), settings, schema, features)
    if plan:
        pinned |= written_of(plan)
    source = make_source(
        source_class, pinned, num_shards=num_shards, files=files, labels_optional=True
    )
    if isinstance(source, TableColumns):
        _check_names(source, pinned.get("features", ()))
    if problem := _problem_of_schema(source, schema):
        raise DataError(
            f"{files[0]}: {problem} as in the dataset that the run was trained on; use files with the same columns "
            "and shapes"
        )
    return source


def _pinned(
    cls: type[Source],
    settings: Mapping[str, Any],
    schema: DatasetSchema,
    features: Sequence[str],
) -> dict[str, Any]:
    """Return settings with the trained dataset's classes and columns, so that none are inferred."""
    pinned, takes = dict(settings), inspect.signature(cls).parameters
    if schema.classes and "classes" in takes and not issubclass(cls, TableColumns):
        pinned["classes"] = schema.classes
    if schema.targets and issubclass(cls, TableColumns):
        pinned["classes"] = schema.targets  # names of the values of a list, which files may lack
    if features:
        pinned["features"] = list(features)
    if getattr(cls, "infers_columns", False) and "columns" not in pinned:
        pinned["columns"] = {
            name: column
            for name, column in (schema.columns or {}).items()
            if name != "labels" and not (name == WEIGHT and schema.weighted)
        }
    return pinned


def _check_names(source: TableColumns, features: Sequence[str]) -> None:
    """Reject a table that lacks a column of the model's inputs."""
    wanted = [*features, *map(source.in_file, source.named)]
    if missing := [name for name in wanted if name not in source.columns.names]:
        raise DataError(
            f"{source.table_name}: no column {missing[0]}, its columns are {', '.join(source.columns.names[:20])}, "
            f"expected {', '.join(wanted[:20])} as in the data that the run was trained on; add it"
        )


def found_features(
    source_class: str, settings: Mapping[str, Any], files: Sequence[Path]
) -> tuple[str, ...]:
    """Return the feature columns found in a dataset's tables; empty if its settings name them.

    Args:
        source_class: import path of the source.
        settings: the dataset's `source` settings.
        files: the dataset's files.
    """
    if settings.get("features") or "columns" in settings or not settings.get("label"):
        return ()
    cls = import_source(source_class)
    if not issubclass(cls, TableColumns) or cls.infers_columns:
        return ()
    source = make_source(source_class, settings, num_shards=1, files=files)
    assert isinstance(source, TableColumns)
    return tuple(source.features)


def _problem_of_schema(source: Source, expected: DatasetSchema) -> str | None:
    found = source.schema.record()
    have, want = columns_of(found), stored_columns(expected)
    for name in want.keys() | have.keys():
        if name not in have:
            return f"no column {name}, expected one of type {want[name]}"
        if name not in want:
            return f"an additional column {name}, expected only {', '.join(want)}"
        if have[name] != want[name]:
            return f"column {name} is {have[name]}, expected {want[name]}"
    if source.has_labels and found.classes != expected.classes:
        return f"classes {_shown(found.classes)}, expected {_shown(expected.classes)}"
    return None


def _shown(classes: Sequence[object]) -> str:
    more = ", ..." if len(classes) > 5 else ""
    return ", ".join(map(str, classes[:5])) + more or "none"


def seal_files(
    parts: Iterable[Part], *, dataset: str, source: Source,
    schema: DatasetSchema, document: IdentityDocument,
) -> Manifest:  # fmt: skip
    """Merge the parts of rows to predict into a manifest, which needs no train rows.

    Args:
        schema: schema of the dataset that the run was trained on.

    Raises:
        DataError: a shard is missing, or the files changed while they were read.
    """
    merged = seal(parts, dataset=dataset, source=source, document=document, is_trained_on=False)
    has_labels = source.has_labels and "labels" in columns_of(schema)
    return structs.replace(merged, schema=schema, has_labels=has_labels)
