"""Columns of a torch dataset: their types, found in some samples, and blocks of rows in these types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.core.suggest import suggest
from shardline.data.columns import Column, parse_columns
from shardline.data.python.samples import (
    form_of,
    is_image,
    kind_of_value,
    places_of,
    size_of_image,
    stored,
)
from shardline.data.sources.source import Masked, Ragged
from shardline.records.datasets import DTYPES

_WIDER = {"uint32": "int64", "uint64": "int64"}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How samples become rows.

    Attributes:
        form: form of the samples, see `form_of`.
        names: names of the values of a tuple or of a single value.
        columns: stored columns.
        kinds: kind of each column's values, see `kind_of_value`.
        left_out: names of values that are not stored, since `source.columns` does not list them.
        row_bytes: mean size of a row.
    """

    form: str
    names: tuple[str, ...]
    columns: dict[str, Column]
    kinds: dict[str, str]
    left_out: tuple[str, ...] = ()
    row_bytes: int = 1

    def values(self, sample: Any) -> dict[str, Any]:
        """Return the values of a sample by column, with None for missing values.

        Raises:
            DataError: the sample has a column that the first samples lack.
        """
        found = {name: of for name, of, is_column in places_of(sample, self.names) if is_column}
        if more := found.keys() - self.columns.keys() - {*self.left_out}:
            raise DataError(
                f"a value {min(more)} that the first rows lack; return the same values for each row, or list "
                "the ones to store in source.columns"
            )
        return {name: found.get(name) for name in self.columns}

    def block(self, samples: Sequence[Any], places: Sequence[str]) -> dict[str, Any]:
        """Return samples as columns of a `Table`.

        Args:
            places: description of each sample, such as "row 7 of train".

        Raises:
            DataError: a sample does not fit the columns; names the sample, the column and the remedy.
        """
        rows = []
        for sample, place in zip(samples, places, strict=True):
            try:
                rows.append(self.values(sample))
            except DataError as error:
                raise DataError(f"{place} has {error}") from None
        return {
            name: _column(name, column, [row[name] for row in rows], places)
            for name, column in self.columns.items()
        }


def _column(name: str, column: Column, values: Sequence[Any], places: Sequence[str]) -> Any:
    present = np.array([value is not None for value in values])
    arrays = []
    for value, place in zip(values, places, strict=True):
        try:
            arrays.append(_fitting(column, value))
        except DataError as error:
            raise DataError(
                f"{place} has in column {name} {error}, expected {column} as in the first rows; return this for each "
                f"row, or set source.columns.{name}"
            ) from None
    found: Any
    if column.varies:
        lengths = [len(one) for one in arrays]
        found = Ragged(
            values=np.concatenate(arrays), offsets=np.cumsum([0, *lengths], dtype=np.int64)
        )
    else:
        found = np.stack(arrays)
    return Masked(values=found, present=present) if column.optional else found


def _fitting(column: Column, value: Any) -> np.ndarray:
    """Return a value as an array that fits its column; a varying column gets its first dimension."""
    if value is None:
        if not column.optional:
            raise DataError("no value")
        return np.zeros((0, *column.shape) if column.varies else column.shape, column.dtype)
    found = stored(value, as_file=column.kind == "bytes")
    if column.kind != "array":
        if isinstance(found, str) != (column.kind == "text") or isinstance(found, np.ndarray):
            raise DataError(_described(found))
        content = found.encode() if isinstance(found, str) else found
        return np.frombuffer(content, np.uint8)  # type: ignore[arg-type]
    if not isinstance(found, np.ndarray):
        raise DataError(_described(found))
    if column.varies and not found.size:
        return np.zeros((0, *column.shape), column.dtype)
    is_of_shape = found.ndim == column.varies + len(column.shape)
    if not is_of_shape or found.shape[int(column.varies) :] != column.shape:
        raise DataError(_described(found))
    dtype = np.dtype(column.dtype)
    if found.dtype == dtype:
        return found
    if dtype.kind == "f" or np.can_cast(found.dtype, dtype, "safe") or _holds(dtype, found):
        return found.astype(dtype)
    raise DataError(_described(found))


def _holds(dtype: np.dtype[Any], found: np.ndarray) -> bool:
    if dtype.kind not in "iu" or found.dtype.kind not in "iu":
        return False
    limits = np.iinfo(dtype)
    return not found.size or bool(limits.min <= found.min() and found.max() <= limits.max)


def _described(found: Any) -> str:
    if isinstance(found, np.ndarray):
        return f"{found.dtype}{list(found.shape) if found.ndim else ''}"
    return "a text" if isinstance(found, str) else "bytes"


@dataclass(kw_only=True)
class _Seen:
    """What the values of a column were."""

    kinds: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)  # `text`, `bytes` or `array`
    dtypes: set[np.dtype[Any]] = field(default_factory=set)
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    images: set[tuple[int, int, int] | None] = field(default_factory=set)
    number: int = 0
    num_bytes: int = 0
    is_python_float: bool = True

    def add(self, value: Any) -> None:
        self.number += 1
        self.kinds.add(kind_of_value(value))
        if is_image(value):
            self.images.add(size_of_image(value))
        found = stored(value, as_file=is_image(value) and None in self.images)
        self.types.add(
            "text" if isinstance(found, str) else "bytes" if isinstance(found, bytes) else "array"
        )
        self.num_bytes += found.nbytes if isinstance(found, np.ndarray) else len(found or "")
        if isinstance(found, np.ndarray):
            self.dtypes.add(found.dtype)
            self.shapes.add(found.shape)
            self.is_python_float &= isinstance(value, float) and not isinstance(value, np.generic)

    def column(self, name: str, is_optional: bool) -> Column:
        """Return the type of the column.

        Raises:
            DataError: the values have no common type.
        """
        if self.images and (len(self.images) > 1 or None in self.images):
            self.types, self.kinds = {"bytes"}, {"image"}
        if len(self.types) > 1:
            raise DataError(
                f"column {name} has {' and '.join(sorted(self.types))}, expected values of one type; convert them in "
                "the class"
            )
        if self.types != {"array"}:
            (kind,) = self.types
            return Column(dtype="uint8", varies=True, kind=kind, optional=is_optional)  # type: ignore[arg-type]
        shape, varies = self._shape(name)
        return Column(
            dtype=self._dtype(name, shape), shape=shape, varies=varies, optional=is_optional
        )

    def _shape(self, name: str) -> tuple[tuple[int, ...], bool]:
        shapes = {one[1:] for one in self.shapes if one and 0 not in one} or {(1,)}
        if len(self.shapes) == 1 and 0 not in (shape := next(iter(self.shapes))):
            return shape, False
        if len(shapes) > 1 or () in self.shapes:
            listed = " and ".join(str(list(one)) for one in sorted(self.shapes)[:3])
            raise DataError(
                f"column {name} has arrays of shape {listed}, expected one shape, or one that varies in its first "
                "dimension; pad or resize them in the class, or return images of Pillow, which may have any size"
            )
        (rest,) = shapes
        return (rest if any(one and 0 not in one for one in self.shapes) else ()), True

    def _dtype(self, name: str, shape: tuple[int, ...]) -> str:
        dtype = str(np.result_type(*self.dtypes))
        dtype = _WIDER.get(dtype, dtype)
        if name == "labels" and not shape:  # what losses of torch take
            is_integer = np.dtype(dtype).kind in "iu"
            return "int64" if is_integer else "float32" if self.is_python_float else dtype
        if dtype not in DTYPES:
            raise DataError(
                f"column {name} has numbers of type {dtype}, expected one of {', '.join(DTYPES)}; convert them in the "
                "class"
            )
        return dtype


def look(samples: Sequence[Any], given: Mapping[str, str] | None, what: str) -> Layout:
    """Return the layout of samples.

    Args:
        samples: some samples of each split.
        given: `source.columns`, if it is set.
        what: start of messages.

    Raises:
        DataError: the samples have no common columns, or none fits; names the column.
    """
    if not samples:
        raise DataError(f"{what} has no rows, expected at least one; check its options and files")
    forms = {form_of(sample) for sample in samples}
    if len(forms) > 1:
        raise DataError(
            f"{what} returns {' and '.join(sorted(forms))} as samples, expected one form; return the same for each row"
        )
    (form,) = forms
    found = [name for name, _, is_column in places_of(samples[0]) if is_column]
    names = _names(found, given, form, what)
    seen: dict[str, _Seen] = {}
    for sample in samples:
        for name, value, is_column in places_of(sample, names):
            if is_column:
                of = seen.setdefault(name, _Seen())
                if value is not None:
                    of.add(value)
    for name in given or ():
        if name not in seen:
            raise DataError(
                f"{what}: source.columns.{name} is not a value of a sample; {suggest(name, seen)}"
            )
    wanted = [name for name in seen if given is None or name in given]
    typed = parse_columns(given) if given else {}
    columns = {}
    for name in wanted:
        of = seen[name]
        if name not in typed and not of.number:
            raise DataError(
                f"{what}: value {name} is missing in all of the first {len(samples)} rows, so its type is unknown; "
                f"list the columns in source.columns, with or without {name}"
            )
        columns[name] = typed.get(name) or of.column(name, of.number < len(samples))
    return Layout(
        form=form,
        names=names,
        columns=parse_columns(columns),
        kinds={name: _kind(seen[name]) for name in wanted},
        left_out=tuple(name for name in seen if name not in columns),
        row_bytes=sum(seen[name].num_bytes for name in wanted) // len(samples) + 1,
    )


def _kind(seen: _Seen) -> str:
    kinds = seen.kinds or {"value"}
    return next(iter(kinds)) if len(kinds) == 1 else "array"


def _names(
    found: Sequence[str], given: Mapping[str, str] | None, form: str, what: str
) -> tuple[str, ...]:
    """Return the names of the values of a tuple, which `source.columns` gives in order."""
    if form not in ("tuple", "value"):
        return ()
    if given is None or {*given} <= {*found}:
        return tuple(dict.fromkeys(name.partition(".")[0] for name in found))
    if len(given) != len(found):
        raise DataError(
            f"{what} returns samples of {len(found)} values, but source.columns lists {len(given)}; list one column "
            "for each value, in order"
        )
    return tuple(given)
