"""Guesses of a table's notation, label, id and features, and of the roles of arrays."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardline.config.checked_sources import SHIPPED_SOURCES, locate
from shardline.config.resolved import as_plain, as_type
from shardline.config.settings.config import DatasetSettings
from shardline.core.digests import FileDigests
from shardline.data.build import make_source
from shardline.data.sources import arrow_columns
from shardline.data.sources.arrays import ArrayFiles
from shardline.data.sources.csv_header import first_rows_of, read_header
from shardline.data.sources.notation import remedy_of
from shardline.data.sources.table_columns import TableColumns
from shardline.results.data_init.written import Entry

_LABELS = (
    "label",
    "labels",
    "target",
    "class",
    "y",
    "outcome",
    "category",
    "survived",
    "species",
    "diagnosis",
    "churn",
)
_GAPS = ("-", "--", "?", ".", "none", "None", "unknown", "Unknown", "missing", "n.a.", "k.A.")
_MOST_CLASSES = 50
_LISTED = 12
Columns = dict[str, pa.Array]


def _open(entry: Entry, workdir: Path, **more: Any) -> Any:
    settings = as_type({"source": {**entry.source, **more}, "shards": 1}, DatasetSettings)
    found = locate(
        as_plain(settings), workdir, workdir, FileDigests(Path("/nonexistent/x")), "datasets"
    )
    return make_source(
        SHIPPED_SOURCES[entry.source["type"]], found.source, num_shards=1, files=found.files
    )


def guess_table(entry: Entry, workdir: Path) -> None:
    """Add notation, label, id and features of a table to an entry.

    Raises:
        DataError: The table cannot be read. The message names the file.
    """
    any_column = {"columns": {"x": "text"}}  # only the first rows are read
    if entry.source["type"] == "csv":
        _guess_csv(entry, _open(entry, workdir, **any_column).files[0])
    source = _open(entry, workdir, **any_column)
    assert isinstance(source, TableColumns)
    if entry.source["type"] == "csv":
        _guess_notation(entry, source)
        source = _open(entry, workdir, **any_column)
    _guess_roles(
        entry, source.first_texts(_names(source)), arrow_columns.index_columns(source.columns)
    )


def _names(source: TableColumns) -> list[str]:
    """Return the columns whose name is unique."""
    names = source.columns.names
    return [name for name in names if names.count(name) == 1]


def _guess_csv(entry: Entry, path: Path) -> None:
    """Guess the delimiter, and whether fields contain line breaks."""
    names, start = read_header(path, ",")
    head = first_rows_of(path, start)
    text = ",".join(names)
    rows = head.decode(errors="replace").splitlines()[:50]
    counts = {mark: sum(mark in row for row in rows) for mark in (",", ";", "\t", "|")}
    best = max(counts, key=lambda mark: (text.count(mark), counts[mark], mark == ","))
    if best != "," and best in text:
        entry.source["delimiter"] = best
    quotes = np.flatnonzero(np.frombuffer(head, np.uint8) == ord('"'))
    ends = np.flatnonzero(np.frombuffer(head, np.uint8) == ord("\n"))
    if (np.searchsorted(quotes, ends) % 2).any():
        entry.source["line_breaks"] = True
        entry.comments["line_breaks"] = "quoted fields contain line breaks"


def _guess_notation(entry: Entry, source: TableColumns) -> None:
    """Guess decimal and thousands marks, percentages, and names of missing values."""
    percent: list[str] = []
    missing: Counter[str] = Counter()
    marks: Counter[tuple[str, str]] = Counter()
    for name, column in source.first_texts(_names(source)).items():
        if not arrow_columns.is_text(column.type):
            continue
        given = arrow_columns.without_missing(column).drop_null()
        texts = [text.strip() for text in given.to_pylist() if text.strip()]
        kept = [text for text in texts if text not in _GAPS]
        if not kept or not all(map(arrow_columns.is_marked, kept)):
            continue
        missing.update(set(texts) - set(kept))
        percent += [name] if any("%" in text for text in kept) else []
        remedy = remedy_of(kept, ".", name)
        decimal = "," if 'source.decimal: ","' in remedy and " or " not in remedy else "."
        found = re.search(r'source.thousands: "(.)"', remedy)
        marks[decimal, found[1] if found else ""] += 1
    decimal = "," if any(mark[0] == "," for mark in marks) else "."
    thousands = next((mark[1] for mark in marks if mark[1] and mark[1] != decimal), "")
    for key, value, default in (("decimal", decimal, "."), ("thousands", thousands, "")):
        if value != default:
            entry.source[key] = value
            entry.comments[key] = "by the numbers of the first rows"
    if percent:
        entry.source["percent"] = percent
        entry.comments["percent"] = "5% becomes 0.05"
    if missing:
        entry.source["missing"] = sorted(missing)
        entry.comments["missing"] = "texts among numbers that mean a missing value"


def _guess_roles(entry: Entry, columns: Columns, indexes: Sequence[str]) -> None:
    index = [name for name in columns if arrow_columns.is_index(name) or name in indexes]
    free = {name: of for name, of in columns.items() if name not in index}
    ids = next((name for name, of in free.items() if _is_id(name, of)), None)
    label = _label_of({name: of for name, of in free.items() if name != ids})
    if label is None:
        entry.notes.append("label: COLUMN # no column of few values was found")
        return
    entry.source["label"] = label
    others = [n for n in free if n not in (label, ids)]
    entry.comments["label"] = f"a guess; the other columns are {_some(others)}"
    _add_classes(entry, free[label])
    if ids:
        entry.source["id_column"] = ids
        entry.comments["id_column"] = "its values are distinct; the id decides the split of a row"
    numbers = [name for name in others if _is_feature(free[name])]
    texts = [name for name in others if name not in numbers]
    if not numbers:
        kinds = {name: "text" for name in texts if arrow_columns.is_text(free[name].type)}
        entry.source["columns"] = kinds
        entry.comments["columns"] = "there is no column of numbers"
        return
    _add_preprocessing(entry, free, numbers, others, index)


def _add_preprocessing(
    entry: Entry, columns: Columns, numbers: Sequence[str], others: Sequence[str], index: Sequence[str]
) -> None:  # fmt: skip
    """Take all columns as features, with preprocessing if these are not only numbers without gaps."""
    gaps = {name: columns[name].null_count for name in numbers if columns[name].null_count}
    further = [name for name in others if name not in numbers]
    if index:
        entry.source["features"] = [*others]
        entry.comments["features"] = f"without {_some(index)}"
    else:
        entry.notes.append(f"features: [{_some(others)}] # the default: all usable columns")
    if not (gaps or further):
        return
    entry.source["preprocess"] = {}
    why = [f"encodes {_some(further)}"] if further else []
    if gaps:
        shown = _some([f"{name} ({number:,})" for name, number in gaps.items()])
        why.append(f"fills gaps: {shown} in the first {len(columns[numbers[0]]):,} rows")
    entry.comments["preprocess"] = (
        "; ".join(why) + "; without it, features are numbers without gaps"
    )


def _is_id(name: str, column: pa.Array) -> bool:
    is_named = re.fullmatch(r"(?i)(.*[_ ])?(id|uuid|guid|key)|\w+Id", name) is not None
    kind = column.type
    fits = pa.types.is_integer(kind) or arrow_columns.is_text(kind)
    return (
        is_named
        and fits
        and not column.null_count
        and pc.count_distinct(column).as_py() == len(column)
    )


def _label_of(columns: Columns) -> str | None:
    named = [n for word in _LABELS for n in columns if n.lower() == word]
    few = [n for n in reversed(columns) if _is_class(columns[n])]
    last = [n for n in reversed(columns) if arrow_columns.is_number(columns[n].type)][:1]
    last_named = next(reversed(columns), None)
    # the last column, if it may be a class, before other columns of few values
    ordered = [*named, *(few if few[:1] == [last_named] else [*last, *few])]
    return ordered[0] if ordered else None


def _is_class(column: pa.Array) -> bool:
    number = pc.count_distinct(column, mode="only_valid").as_py()
    is_number = pa.types.is_floating(column.type) or arrow_columns.is_list(column.type)
    most = min(_MOST_CLASSES, max(2, len(column) // 2))
    return not is_number and 2 <= number <= most and column.null_count < len(column) / 2


def _is_feature(column: pa.Array) -> bool:
    return arrow_columns.is_number(column.type)


def _add_classes(entry: Entry, column: pa.Array) -> None:
    if not _is_class(column):
        entry.source["task"] = "regression"
        entry.comments["task"] = "a guess, by its many values; for classes, list them in classes"
        return
    found = pc.value_counts(column.drop_null()).to_pylist()
    counts = {str(one["values"]): int(one["counts"]) for one in found}
    counts = {key.lower() if key in ("True", "False") else key: of for key, of in counts.items()}
    shown = _some([f"{name} ({number:,})" for name, number in sorted(counts.items())])
    rows = f"rows by class in the first {len(column):,}: {shown}"
    if sorted(counts) == sorted(map(str, range(len(counts)))):
        entry.source["num_classes"] = len(counts)
        entry.comments["num_classes"] = f"{rows}; for numbers to predict, task: regression"
    else:
        entry.source["classes"] = sorted(counts)
        entry.comments["classes"] = f"{rows}; add any class that these rows lack"


def guess_arrays(entry: Entry, workdir: Path) -> None:
    """Add label and features of NumPy or HDF5 files to an entry.

    Raises:
        DataError: The files cannot be read. The message names the file.
    """
    source = _open(entry, workdir)
    assert isinstance(source, ArrayFiles)
    arrays = source.open_tables()[0].arrays
    single = [name for name, array in arrays.items() if len(array.shape) == 1]
    label = next((n for word in _LABELS for n in single if n.lower() == word), None)
    label = label or (single[0] if len(single) == 1 and len(arrays) > 1 else None)
    shown = _some([f"{name} {array.dtype}{[*array.shape]}" for name, array in arrays.items()])
    if label is None:
        entry.notes.append(f"without label, every array is a column: {shown}")
        entry.notes.append("label: ARRAY # if an array is the label")
        return
    entry.source["label"] = label
    entry.comments["label"] = f"a guess; the arrays are {shown}"
    if arrays[label].dtype.kind == "f":
        entry.source["task"] = "regression"
    others = [name for name in arrays if name != label]
    if len(others) > 1:
        wide = max(others, key=lambda name: len(arrays[name].shape))
        entry.source["features"] = wide
        entry.comments["features"] = "a guess; or list several arrays in columns"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "") or "none"
