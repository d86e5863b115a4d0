"""What a dataset's files hold: lists of parts in the store, the manifest and its provenance."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field

from shardline.records.base import Record
from shardline.records.identities import IdentityDocument
from shardline.records.jobs import JobRecord

DTYPES = (
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16", "bool",
)  # fmt: skip
Name = Annotated[str, Meta(pattern=r"^[ -~]{1,200}$")]
Count = Annotated[int, Meta(ge=0)]
Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{12}$")]
Dtype = Annotated[str, Meta(pattern=f"^({'|'.join(DTYPES)})$")]
Reference = dict[
    str, Any
]  # held-out values of others, as a source has them: `metric`, `value` and `meaning`
Rows = dict[str, Count]  # by split, all three in the order of a shard's file
_SPLITS = ("train", "validation", "test")


class Shard(Record, frozen=True, kw_only=True):
    """A shard.

    Attributes:
        values: of each varying column, how many values its rows have together.
        bytes: size of the file.
        blake3: digest of the file's bytes.
    """

    file: Name
    rows: Rows
    values: dict[str, Count] | UnsetType = UNSET
    bytes: Count
    blake3: str

    def __post_init__(self) -> None:
        """Refuse rows of fewer splits."""
        if (*self.rows,) != _SPLITS:
            raise ValueError(f"rows of {', '.join(self.rows) or 'no split'}")


class Skipped(Record, frozen=True, kw_only=True):
    """Rows or files that were left out: how many, and sentences about the first."""

    count: Count = 0
    first: list[str] = field(default_factory=list)


class DatasetSchema(Record, frozen=True, kw_only=True):
    """`schema` of a manifest: of a table its features, else the columns by name."""

    task: str
    classes: list[Any] = field(default_factory=list)  # a class of the user's may give numbers
    columns: dict[str, str] | UnsetType = UNSET
    feature_shape: list[Count] | UnsetType = UNSET
    feature_dtype: Dtype | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse a table without a shape or a type of its features."""
        if self.columns is UNSET and UNSET in (self.feature_shape, self.feature_dtype):
            raise ValueError("neither columns nor feature_shape and feature_dtype")


class Summary(Record, frozen=True, kw_only=True):
    """Statistics of a column's train rows, by feature; None is what JSON has no number for."""

    count: Count
    mean: list[float | None]
    std: list[float | None]
    min: list[float | None]
    max: list[float | None]


class ShortSummary(Record, frozen=True, kw_only=True):
    """Statistics over all features of a column whose own lie in a file."""

    count: Count
    features: Count
    mean: float | None
    std: float | None
    min: float | None
    max: float | None


class DatasetStatistics(Record, frozen=True, kw_only=True):
    """`statistics` of a manifest; those of very many features lie in a file, of which it has a summary.

    Attributes:
        summary: by column, of what the file holds.
        class_counts: rows of each class by split; empty where there are no classes.
        features: of a table.
        columns: by column, where the dataset is no table.
        file: beside the shards.
        blake3: digest of the file.
    """

    summary: dict[str, ShortSummary] | UnsetType = UNSET
    class_counts: dict[str, list[Count]]
    features: Summary | UnsetType = UNSET
    columns: dict[str, Summary] | UnsetType = UNSET
    file: Name | UnsetType = UNSET
    blake3: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse statistics of no column, and a file of which only a part is recorded."""
        given = [value is not UNSET for value in (self.file, self.blake3, self.summary)]
        if any(given) and not all(given):
            raise ValueError("some of file, blake3 and summary, not all")
        if not (self.features or self.columns or self.summary):
            raise ValueError("statistics of neither features nor columns")


class Manifest(Record, frozen=True, kw_only=True):
    """manifest.json.

    Attributes:
        dataset: its id.
        bytes: of all shards.
        reference: held-out values of others, as a source names them.
        identity: the identity document of the dataset.
        has_labels: of files that a run predicts, whether their labels stand for something.
    """

    dataset: str
    schema: DatasetSchema
    splits: Rows
    bytes: Count
    statistics: DatasetStatistics
    reference: Reference | None = None
    skipped: Skipped
    shards: list[Shard]
    identity: IdentityDocument
    has_labels: bool | UnsetType = UNSET


class RecordedMoments(Record, frozen=True, kw_only=True):
    """Moments of a column's train rows, by feature; see `data.statistics.Moments`."""

    count: Count
    mean: list[float | None]
    m2: list[float | None]
    low: list[float]
    high: list[float]


class PartStatistics(Record, frozen=True, kw_only=True):
    """Statistics of the shards from `first` to before `stop`."""

    first: Count
    stop: Count
    class_counts: dict[str, list[Count]]
    features: RecordedMoments | UnsetType = UNSET
    columns: dict[str, RecordedMoments] | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse statistics of no column."""
        if not (self.features or self.columns):
            raise ValueError("statistics of neither features nor columns")


class Part(Record, frozen=True, kw_only=True):
    """parts/FIRST-LAST.json in the store: the shards that one job wrote.

    Attributes:
        dataset: its id.
        skipped: by shard's file.
        action: of the job.
    """

    dataset: str
    shards: list[Shard]
    statistics: list[PartStatistics]
    skipped: dict[str, Skipped] = field(default_factory=dict)
    action: JobRecord | None = None


class PlanSeal(Record, frozen=True, kw_only=True):
    """The metadata of a plan of packs.

    Attributes:
        dataset: its id.
        shards: digest of the shards' digests.
        split: its name.
        version: of plans.
        rows: digest of where the split's rows lie.
        blake3: digest of the plan's tensors.
    """

    dataset: str
    shards: str
    column: str
    length: int
    split: str
    version: int
    rows: str
    blake3: str = ""


class DatasetProvenance(Record, frozen=True, kw_only=True):
    """provenance.json of a dataset.

    Attributes:
        dataset: its id.
        identity: digest of its identity document.
        definitions: digests of the definitions of the user's code, see `config.documents`.
        inferred: what was guessed of the source's files, see `data.inferred`.
        action: of the job that sealed it.
        parts: records of the jobs that wrote the parts.
        files: SHA-256 of the sealed files.
    """

    dataset: str
    identity: str
    definitions: dict[str, Any]
    inferred: dict[str, Any]
    action: JobRecord
    parts: list[JobRecord]
    files: dict[Name, str]
