"""What the readers of a dataset's documents rely on. Whatever else a file holds is damage, and no bug of theirs.

Keys that no reader needs are not named. A key that some version did not write has a default.
"""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from shardline.data.columns import DTYPES

Name = Annotated[str, Meta(pattern=r"^[ -~]{1,200}$")]
Count = Annotated[int, Meta(ge=0)]


class Rows(Struct):
    """Rows of a shard by split."""

    train: Count
    validation: Count
    test: Count


class Shard(Struct):
    """A shard in a manifest or in the list of a part."""

    file: Name
    bytes: int
    blake3: str


class CountedShard(Struct):
    """A shard whose rows are read."""

    rows: Rows
    values: dict[str, Count] = {}


class Schema(Struct):
    """`schema` of a manifest."""

    task: str
    classes: list[Any] | None = None
    columns: dict[str, str] | UnsetType = UNSET
    feature_shape: list[Count] | UnsetType = UNSET
    feature_dtype: Annotated[str, Meta(pattern=f"^({'|'.join(DTYPES)})$")] | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse a table without a shape or a type of its features."""
        if self.columns is UNSET and UNSET in (self.feature_shape, self.feature_dtype):
            raise ValueError("neither columns nor feature_shape and feature_dtype")


class Summary(Struct):
    """Statistics of a column in a manifest, by feature."""

    count: int
    mean: list[float | None]
    std: list[float | None]
    min: list[float | None]
    max: list[float | None]


class ShortSummary(Struct):
    """What a manifest records of a column whose statistics lie in a file."""

    count: Count


class StatisticsFile(Struct):
    """`statistics` of a manifest, which may lie in a file."""

    file: Name | UnsetType = UNSET
    blake3: str | UnsetType = UNSET
    summary: dict[str, ShortSummary] | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse a file of which only a part is recorded."""
        given = [value is not UNSET for value in (self.file, self.blake3, self.summary)]
        if any(given) and not all(given):
            raise ValueError("some of file, blake3 and summary, not all")


class Statistics(StatisticsFile, kw_only=True):
    """`statistics` of a manifest."""

    class_counts: dict[str, list[int]]
    features: Summary | UnsetType = UNSET
    columns: dict[str, Summary] | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse statistics of no column."""
        super().__post_init__()
        if not (self.features or self.columns or self.summary):
            raise ValueError("statistics of neither features nor columns")


class CountedManifest(Struct):
    """manifest.json, where its statistics are compared with the rows."""

    shards: list[CountedShard]
    schema: Schema
    statistics: Statistics


class Moments(Struct):
    """Moments of a column in the list of a part, by feature."""

    count: Count
    mean: list[float | None]
    m2: list[float | None]
    low: list[float]
    high: list[float]


class PartStatistics(Struct):
    """Statistics of consecutive shards in the list of a part."""

    first: Count
    stop: Count
    class_counts: dict[str, list[Count]]
    features: Moments | UnsetType = UNSET
    columns: dict[str, Moments] | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse statistics of no column."""
        if not (self.features or self.columns):
            raise ValueError("statistics of neither features nor columns")


class PartShard(Shard):
    """A shard in the list of a part, whose rows are counted."""

    rows: Rows
    values: dict[str, Count] = {}


class Part(Struct):
    """The list of a part's shards in the store."""

    dataset: str
    shards: list[PartShard]
    statistics: list[PartStatistics]
    action: dict[str, Any] | None = None
