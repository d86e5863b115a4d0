"""How numbers and missing values are written in text files."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from shardline.data.sources import arrow_columns
from shardline.data.sources.arrow_columns import is_marked, is_text

_SPACES = ("\u00a0", "\u202f")  # written as thousands marks in place of a space
_PERCENT = r"^([+-]?(?:\d+\.?\d*|\.\d+))\s?%?$"


@dataclass(frozen=True, kw_only=True)
class Notation:
    """How numbers and missing values are written.

    Attributes:
        decimal: Decimal mark.
        thousands: Mark between groups of three digits; empty if there is none.
        missing: Texts that mean a missing value, besides an empty one.
    """

    decimal: str = "."
    thousands: str = ""
    missing: tuple[str, ...] = ()

    def plain(self, column: pa.Array, *, is_percent: bool = False) -> pa.Array:
        """Return text with numbers as Python writes them. Other text is no number afterwards.

        Args:
            column: Text; other columns are returned as they are.
            is_percent: Whether the numbers are percentages, with or without a sign: `5%` becomes `5e-2`.
        """
        if not is_text(column.type):
            return column
        column = self.without_missing(column.cast(pa.string()))
        if self.thousands:
            column = self._ungrouped(column)
        if self.decimal == ",":
            column = arrow_columns.with_point(column)
        if is_percent:
            column = pc.replace_substring_regex(pc.utf8_trim_whitespace(column), _PERCENT, r"\1e-2")
        return column

    def without_missing(self, column: pa.Array) -> pa.Array:
        """Replace the texts of `missing` by null."""
        if not self.missing or not is_text(column.type):
            return column
        is_missing = pc.is_in(pc.utf8_trim_whitespace(column), pa.array(self.missing, column.type))
        return pc.if_else(is_missing, pa.scalar(None, column.type), column)

    def _ungrouped(self, column: pa.Array) -> pa.Array:
        """Remove the thousands marks of whole groups; text with other marks stays as it is."""
        column = pc.utf8_trim_whitespace(column)
        if self.thousands == " ":
            for space in _SPACES:
                column = pc.replace_substring(column, space, " ")
        mark, point = re.escape(self.thousands), re.escape(self.decimal)
        grouped = rf"^[+-]?\d{{1,3}}(?:{mark}\d{{3}})+(?:{point}\d*)?\s?%?$"
        whole = pc.match_substring_regex(column, grouped)
        return pc.if_else(whole, pc.replace_substring(column, self.thousands, ""), column)


def remedy_of(texts: Sequence[str], decimal: str, column: str) -> str:
    """Return a remedy for texts that may be numbers, or an empty text if they are not numbers.

    Args:
        texts: Texts of a column.
        decimal: Decimal mark of the source; empty if the source does not parse text as numbers.
        column: Name of the column.
    """
    if not all(map(is_marked, texts)):
        return ""
    if not decimal:
        if all(map(arrow_columns.is_plain, texts)):
            return "convert the column to a type of numbers"
        return "write plain numbers, such as 1000.5"
    percent = any("%" in text for text in texts)
    found = [
        one
        for mark in dict.fromkeys((decimal, ","))
        if (one := _fitting(texts, mark, is_percent=percent))
    ]
    if found and not (found[0].thousands and "," in "".join(texts)):
        found = found[:1]
    remedies = [_settings(notation, decimal, column if percent else "") for notation in found]
    if not any(remedies):
        return f"write plain numbers, such as 1000{decimal}5"
    return f"set {' or '.join(remedies)}{f', whichever {texts[0]} means' if remedies[1:] else ''}"


def _fitting(texts: Sequence[str], decimal: str, *, is_percent: bool) -> Notation | None:
    """Return the first notation with a decimal mark in which all texts are numbers."""
    column = pa.array(list(texts))
    for thousands in ("", ".", ",", " ", "'"):
        if thousands != decimal:
            notation = Notation(decimal=decimal, thousands=thousands)
            plain = notation.plain(column, is_percent=is_percent)
            if not arrow_columns.numbers(plain, "float64")[1].any():
                return notation
    return None


def _settings(notation: Notation, decimal: str, percent: str) -> str:
    """Return the settings of a notation that a source must add."""
    found = {
        "decimal": notation.decimal if notation.decimal != decimal else "",
        "thousands": notation.thousands,
        "percent": [percent] if percent else [],
    }
    return " and ".join(
        f"source.{key}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in found.items()
        if value
    )
