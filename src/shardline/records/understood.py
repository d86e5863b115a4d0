"""What was understood of a dataset: rows by split, columns, classes with counts, ranges, and what a source inferred.

The check, the log of sealing, the report and `shardline data show` print it by `block`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import UNSET

from shardline.records.datasets import DatasetSchema, DatasetStatistics, Manifest, Skipped

_NOT_READ = "not read"
_MOST_VALUES = 8


def understood(
    inferred: Mapping[str, Any], source: Mapping[str, Any], schema: DatasetSchema, *, num_rows: int | None = None,
    skipped: Skipped | None = None, manifest: Manifest | None = None, example: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return what is known of a dataset, by the names under which it is printed.

    Args:
        inferred: What the source inferred, see `data.inferred`.
        source: Settings of the source.
        num_rows: Number of rows of a dataset that is not built, if they are counted.
        skipped: Rows that were skipped while they were counted.
        manifest: The manifest, if the dataset is built.
        example: Texts of a row's values, by column.
    """
    found: dict[str, Any] = {}
    if manifest:
        found["rows"] = dict(manifest.splits)
    elif num_rows is not None:
        found["rows"] = num_rows
    classes = _classes(inferred, source, schema, manifest)
    found |= {k: of for k, of in inferred.items() if k != _NOT_READ and not _is_classes(k)}
    found |= classes
    found["a row has"] = columns_in(schema)
    if manifest:
        found |= _ranges(manifest, feature_names(inferred, source))
    if example:
        found["a row"] = dict(example)
    skipped = manifest.skipped if manifest else skipped
    if skipped and skipped.count:
        first = f" (the first: {skipped.first[0]})" if skipped.first else ""
        found["rows skipped"] = f"{skipped.count:,}{first}"
    return found | {k: of for k, of in inferred.items() if k == _NOT_READ}


def feature_names(inferred: Mapping[str, Any], source: Mapping[str, Any]) -> list[str]:
    """Return the names of a table's feature columns in order, inferred or as listed; empty if unknown."""
    listed = next((of for key, of in inferred.items() if key.startswith("features")), None)
    names = listed or source.get("features") or ()
    return [*names] if not isinstance(names, str) else []


def columns_in(schema: DatasetSchema) -> dict[str, str]:
    """Return the types of all columns by name, as a schema spells them."""
    if schema.columns is not UNSET:
        return dict(schema.columns)
    shape = ",".join(map(str, schema.feature_shape or ()))
    features = f"{schema.feature_dtype}{f'[{shape}]' if shape else ''}"
    labels = "int64" if schema.task == "classification" else "float32"
    return {"features": features, "labels": labels}


def _is_classes(key: str) -> bool:
    return key == "classes" or key.startswith("classes,")


def _classes(
    inferred: Mapping[str, Any], source: Mapping[str, Any], schema: DatasetSchema, manifest: Manifest | None
) -> dict[str, Any]:  # fmt: skip
    """Return the classes under a key that names their origin, with counts if these are known."""
    if not schema.classes:
        return {}
    key = next((key for key in inferred if _is_classes(key)), "")
    if not key:
        given = next((one for one in ("classes", "num_classes") if source.get(one)), "")
        key = f"classes, by source.{given}" if given else "classes, by the source"
    counts = manifest.statistics.class_counts if manifest else {}
    if not counts:
        return {key: inferred.get(key, list(map(str, schema.classes)))}
    rows = [sum(of) for of in zip(*counts.values(), strict=True)]
    return {key: dict(zip(map(str, schema.classes), rows, strict=True))}


def _ranges(manifest: Manifest, names: Sequence[str]) -> dict[str, Any]:
    columns, found = columns_in(manifest.schema), dict[str, str]()
    for name, (low, high) in _limits(manifest.statistics).items():
        if columns.get(name, "").startswith(("text", "bytes")) or "[*" in columns.get(name, ""):
            found[f"length of {name}"] = _range(low, high)
        elif name == "features" and len(names) == len(low):
            found |= {one: _range([a], [b]) for one, a, b in zip(names, low, high, strict=True)}
        else:
            found[name] = _range(low, high)
    return {"range in train rows": {name: text for name, text in found.items() if text}}


def _limits(statistics: DatasetStatistics) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return the smallest and largest values of each column, by feature or over all of them."""
    if statistics.features is not UNSET:
        return {"features": (statistics.features.min, statistics.features.max)}
    if statistics.columns is not UNSET:
        return {name: (of.min, of.max) for name, of in statistics.columns.items()}
    summary = statistics.summary or {}
    return {name: ([of.min], [of.max]) for name, of in summary.items()}


def _range(low: Sequence[float | None], high: Sequence[float | None]) -> str:
    lows, highs = ([one for one in of if one is not None] for of in (low, high))
    return f"{min(lows):.5g} to {max(highs):.5g}" if lows and highs else ""


def block(name: str, found: Mapping[str, Any]) -> str:
    """Return the printed lines on what was understood of a dataset; empty if there is nothing."""
    shown = "\n".join(f"  {key}: {text}" for key, text in lines_on(found))
    return f"dataset {name} is read as\n{shown}" if shown else ""


def lines_on(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what was understood of a dataset as pairs of a name and a text."""
    given = dict(found)
    not_read = given.pop(_NOT_READ, {})
    return [*((key, _shown(value)) for key, value in given.items()), *_not_read(not_read)]


def _not_read(not_read: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for reason, one in not_read.items():
        more = ", ..." if one["count"] > len(one["first"]) else ""
        yield f"not read, {reason}", f"{one['count']:,} ({', '.join(one['first'])}{more})"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{key} ({_number(of)})" for key, of in value.items()]
    if not isinstance(value, list | tuple):
        is_text = isinstance(value, str) and not (value[:1].isalnum() and "\n" not in value)
        return json.dumps(value, ensure_ascii=False) if is_text else _number(value)
    more = len(value) - _MOST_VALUES
    return ", ".join(map(str, value[:_MOST_VALUES])) + (f" and {more:,} more" if more > 0 else "")


def _number(value: Any) -> str:
    return f"{value:,}" if type(value) is int else str(value)
