"""Preprocessed tables: which columns are taken as numbers, categories or dates, and what is stored of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardline.core.errors import DataError
from shardline.core.suggest import suggest
from shardline.data.sources import arrow_columns
from shardline.data.sources.from_files import text_id
from shardline.records.preprocessing import (
    CODES,
    GAPS,
    NUMBERS,
    SAMPLED_ROWS,
    PreparedCategory,
    PreparedNumber,
    Preprocessing,
)

Kind = Literal["number", "category", "date"]
_DATE_PARTS = ("year", "month", "weekday")  # unless others are asked for
_OF_NUMBERS = ("impute", "fill", "clip", "scale")
_DEFAULTS = {"impute": "mean", "encode": "onehot", "scale": "standard", "fill": 0.0}


def is_date(kind: pa.DataType) -> bool:
    """Return whether a type is a type of dates."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


class Treatments:
    """Settings of `source.preprocess`.

    Args:
        written: The settings.
    """

    def __init__(self, written: Mapping[str, Any]) -> None:
        self._all = {key: of for key, of in written.items() if key != "columns" and of is not None}
        self.columns: Mapping[str, Mapping[str, Any]] = written.get("columns") or {}

    def check_names(self, features: Sequence[str], table: str) -> None:
        """Reject settings of columns that are no features."""
        for name in self.columns:
            if name not in features:
                raise DataError(
                    f"{table}: source.preprocess.columns.{name} is not a feature; {suggest(name, features)}, or list "
                    "the column in source.features"
                )

    def kind_of(self, name: str, kind: pa.DataType, table: str) -> Kind:
        """Return what a column contains, by its settings, else by its type.

        Raises:
            DataError: The column cannot be a feature. The message names it, its type and the remedy.
        """
        own, found = self.columns.get(name, {}), kind_of_type(kind)
        written: Kind | None = own.get("type") or (
            "date" if "date" in own else "category" if "encode" in own else None
        )
        if written is None and found is None and pa.types.is_null(kind):
            return "number"
        if written is None and found == "category" and any(key in own for key in _OF_NUMBERS):
            return "number"  # each value is checked when it is read
        chosen = written or found
        is_possible = pa.types.is_null(kind) or {
            "date": found in ("date", "category"),
            "category": found in ("number", "category"),
            "number": found in ("number", "category"),
        }.get(chosen or "", False)
        if chosen is None or not is_possible:
            raise DataError(
                f"{table}: column {name} is of type {kind}, expected {chosen or 'number, text or date'}; "
                "list the features without it in source.features, or convert it"
            )
        return chosen

    def plan(self, kinds: Mapping[str, Kind]) -> Preprocessing:
        """Return the preprocessing of features by what they contain, in order."""
        numbers: list[PreparedNumber] = []
        categories: list[PreparedCategory] = []
        for name, kind in kinds.items():
            own = {**_DEFAULTS, **self._all, **self.columns.get(name, {})}
            if kind == "category":
                categories.append(PreparedCategory(column=name, encode=own["encode"]))
                continue
            low, high = own.get("clip") or (None, None)
            given = {key: own[key] for key in ("impute", "fill", "scale")}
            parts: Sequence[Any] = (None,)
            if kind == "date":
                parts = own.get("date") or _DATE_PARTS
            numbers += [
                PreparedNumber(column=name, part=part, clip=(low, high), **given) for part in parts
            ]
        return Preprocessing(numbers=numbers, categories=categories)


def written_of(plan: Preprocessing) -> dict[str, Any]:
    """Return the settings `features` and `preprocess` that give the same columns without looking at types."""
    columns: dict[str, dict[str, Any]] = {}
    for number in plan.numbers:
        given = {key: getattr(number, key) for key in ("impute", "fill", "scale")}
        of = columns.setdefault(number.column, {"type": "number", "clip": number.clip, **given})
        if number.part:
            of |= {"type": "date", "date": [*of.get("date", ()), number.part]}
    columns |= {one.column: {"type": "category", "encode": one.encode} for one in plan.categories}
    return {"features": [*columns], "preprocess": {"columns": columns}}


def kind_of_type(kind: pa.DataType) -> Kind | None:
    """Return what a column of an Arrow type contains; None if it cannot be a feature."""
    if arrow_columns.is_number(kind):
        return "number"
    if is_date(kind):
        return "date"
    return "category" if arrow_columns.is_text(kind) else None


def unusable_columns(
    fields: Sequence[pa.Field], first_texts: Mapping[str, pa.Array]
) -> dict[str, str]:
    """Return the columns that are not taken as features unless they are listed, with the reason.

    Args:
        fields: Columns that may be features.
        first_texts: First values of the columns of texts.
    """
    found = {}
    for one in fields:
        texts = first_texts.get(one.name, pa.nulls(0)).drop_null()
        if pa.types.is_null(one.type):
            found[one.name] = "its first values are empty"
        elif not kind_of_type(one.type):
            found[one.name] = str(one.type)
        elif len(texts) > 2 and 2 * len(pc.unique(texts)) > len(texts):  # names, identifiers
            found[one.name] = "most of its first texts differ"
    return found


def described(plan: Preprocessing) -> dict[str, str]:
    """Return the treatment of each feature column in words."""
    found, sampled = {}, f" of at most {SAMPLED_ROWS:,} train rows"
    for one in plan.numbers:
        words = [f"impute {one.impute}" + (f" {one.fill:g}" if one.impute == "constant" else "")]
        if one.clip != (None, None):
            words.append(
                "clip " + " to ".join("no limit" if of is None else f"{of:g}" for of in one.clip)
            )
        words[0] += sampled if one.impute == "median" else ""
        words.append(f"scale {one.scale}" + (sampled if one.scale == "quantile" else ""))
        found[one.name] = ", ".join(["date" if one.part else "number", *words])
    return found | {one.column: f"category, encode {one.encode}" for one in plan.categories}


def number_type(plan: Preprocessing, dtype: str) -> str:
    """Return the type in which numbers are stored, which differs from `source.dtype` with seconds of dates."""
    # a float32 has steps of two minutes in the seconds since 1970
    return "float64" if any(one.part == "seconds" for one in plan.numbers) else dtype


def stored_columns(plan: Preprocessing, dtype: str) -> dict[str, str]:
    """Return the types of the stored columns."""
    numbers, found = len(plan.numbers), {}
    if numbers:
        found[NUMBERS] = f"{number_type(plan, dtype)}[{numbers}]"
        found[GAPS] = f"uint8[{_gap_bytes(numbers)}]"
    if plan.categories:
        found[CODES] = f"int64[{len(plan.categories)}]"
    return found


def bits_of(is_gap: np.ndarray) -> np.ndarray:
    """Return a mask [N, n] bool as bits [N, bytes] uint8, padded with zeros."""
    bits = np.packbits(is_gap, axis=1, bitorder="little")
    return np.pad(bits, ((0, 0), (0, _gap_bytes(is_gap.shape[1]) - bits.shape[1])))


def _gap_bytes(numbers: int) -> int:
    """Return the bytes of a row's gaps: a power of two up to 32, which NumPy gathers faster, or whole words."""
    needed = -(-numbers // 8)
    return 1 << (needed - 1).bit_length() if needed <= 32 else -(-needed // 8) * 8


def with_gaps(column: pa.Array, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a column as numbers [N], a mask of missing values, and a mask of bad ones.

    Args:
        column: Numbers, or text to parse as numbers.
        dtype: NumPy name of the type.
    """
    if arrow_columns.is_text(column.type):
        column = arrow_columns.without_missing(column)
    is_gap = np.asarray(column.is_null(nan_is_null=True))
    values, bad = arrow_columns.numbers(column, dtype)
    return np.where(is_gap, 0, values), is_gap, bad & ~is_gap


def dates_of(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return a column as timestamps, with null for missing values, and a mask of values that are no dates."""
    if not is_date(column.type):
        column = arrow_columns.without_missing(column)
    kind = column.type if pa.types.is_timestamp(column.type) else pa.timestamp("us")
    found = arrow_columns.cast(column, kind)
    return found, np.asarray(found.is_null()) & ~np.asarray(column.is_null())


def part_of(dates: pa.Array, part: str) -> np.ndarray:
    """Return a part of dates [N] float64, such as the year; 0 for a missing date."""
    if part == "seconds":
        found = pc.divide(
            dates.cast(pa.timestamp("us", dates.type.tz), safe=False).cast(pa.int64()).cast(pa.float64()), 1e6
        )  # fmt: skip
    else:
        take = {"year": pc.year, "month": pc.month, "weekday": pc.day_of_week}[part]
        found = take(dates).cast(pa.float64())
    values: np.ndarray = found.fill_null(0).to_numpy(zero_copy_only=False)
    return values


def codes_of(column: pa.Array) -> tuple[np.ndarray, dict[int, str], np.ndarray]:
    """Return a code for each category [N] int64, the texts of the codes, and a mask of bad values.

    A missing value is the empty text. A fraction is bad, since 1 and 1.0 would be two categories.
    """
    bad = np.zeros(len(column), dtype=bool)
    if pa.types.is_floating(column.type):
        whole = arrow_columns.cast(column, pa.int64())
        bad = np.asarray(whole.is_null()) & ~np.asarray(column.is_null(nan_is_null=True))
        column = whole
    texts = column.cast(pa.string()).fill_null("").dictionary_encode()
    names = texts.dictionary.to_pylist()
    codes = np.array([text_id(name) for name in names], dtype=np.int64)
    return codes[texts.indices.to_numpy()], dict(zip(codes.tolist(), names, strict=True)), bad
