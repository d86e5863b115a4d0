"""Preprocessing of a table's columns: what is stored, how it is treated, and what was fitted on train rows."""

from typing import Annotated, Literal

from msgspec import Meta, field

from shardline.records.base import Record

Impute = Literal["mean", "median", "constant", "flag"]
Scale = Literal["standard", "minmax", "log", "quantile", "none"]
Encode = Literal["onehot", "index"]
DatePart = Literal["year", "month", "weekday", "seconds"]
Count = Annotated[int, Meta(ge=0)]

# columns of a preprocessed table in its shards
NUMBERS, GAPS, CODES = "numbers", "gaps", "codes"
SAMPLED_ROWS = 100_000  # medians and quantiles of more train rows are those of a sample


class PreparedNumber(Record, frozen=True, kw_only=True):
    """A stored number and its treatment: clip, impute, scale, in this order.

    Attributes:
        column: Column in the files.
        part: Part of a date; null for a number.
        impute: How gaps are filled; `flag` also adds a feature that is 1 for a gap.
        fill: Value for gaps; fitted unless `impute` is `constant`.
        clip: Smallest and largest value; null for no limit.
        scale: Kind of scaling.
        shift: Fitted shift of `(x - shift) / divisor`.
        divisor: Fitted divisor.
        quantiles: Fitted quantiles of the train rows, for `scale: quantile`.
        gaps: Number of train rows without a value.
    """

    column: str
    part: DatePart | None = None
    impute: Impute = "mean"
    fill: float = 0.0
    clip: tuple[float | None, float | None] = (None, None)
    scale: Scale = "standard"
    shift: float = 0.0
    divisor: float = 1.0
    quantiles: list[float] = field(default_factory=list)
    gaps: Count = 0

    @property
    def name(self) -> str:
        """Name of the feature."""
        return f"{self.column}.{self.part}" if self.part else self.column


class PreparedCategory(Record, frozen=True, kw_only=True):
    """A column of categories and its treatment.

    Attributes:
        column: Column in the files.
        encode: `onehot` for one feature per category, `index` for an integer.
        codes: Code in the shards of each category of the whole dataset. The first one has index 1.
        values: Text of each category; a missing value is the empty text.
        train_rows: Number of train rows of each category. A category without one is unknown, with index 0.
    """

    column: str
    encode: Encode = "onehot"
    codes: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    train_rows: list[Count] = field(default_factory=list)


class Preprocessing(Record, frozen=True, kw_only=True):
    """Preprocessing of a table, in the order of the stored columns.

    Attributes:
        numbers: Stored numbers, the columns of `numbers`.
        categories: Stored categories, the columns of `codes`.
        sampled_rows: Number of train rows in the sample for medians and quantiles; 0 if none was needed.
        train_rows: Number of train rows; 0 before the preprocessing is fitted.
    """

    numbers: list[PreparedNumber] = field(default_factory=list)
    categories: list[PreparedCategory] = field(default_factory=list)
    sampled_rows: Count = 0
    train_rows: Count = 0

    @property
    def features(self) -> list[str]:
        """Names of the columns of `features`: numbers, flags of gaps, one-hot categories."""
        flags = [f"{one.name} is missing" for one in self.numbers if one.impute == "flag"]
        one_hot = [one for one in self.categories if one.encode == "onehot"]
        encoded = [f"{one.column}={value}" for one in one_hot for value in one.values]
        return [*(one.name for one in self.numbers), *flags, *encoded]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of indices of each column of `categories`, with index 0 for unknown values."""
        indexed = [one for one in self.categories if one.encode == "index"]
        return {one.column: len(one.values) + 1 for one in indexed}


class RecordedNumbers(Record, frozen=True, kw_only=True):
    """Moments of stored numbers, by number, without gaps; see `data.table_summary`.

    Attributes:
        count: Number of rows with a value.
        m2: Sum of squared differences from the mean.
        low: Smallest value; null without values.
        high: Largest value; null without values.
    """

    count: list[Count]
    mean: list[float]
    m2: list[float]
    low: list[float | None]
    high: list[float | None]


class RecordedCategories(Record, frozen=True, kw_only=True):
    """Categories of one column.

    Attributes:
        codes: Code of each category, ascending.
        values: Text of each category.
        rows: Number of rows of each category.
    """

    codes: list[int]
    values: list[str]
    rows: list[Count]


class RecordedTable(Record, frozen=True, kw_only=True):
    """What preprocessing is fitted on: numbers and categories of some rows.

    Attributes:
        rows: Number of rows.
        numbers: Moments of the numbers.
        categories: Categories, by column.
    """

    rows: Count
    numbers: RecordedNumbers
    categories: list[RecordedCategories]
