"""Files of a dataset: the manifest, its provenance, and the lists of parts in the store."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field

from shardline.records.base import Record
from shardline.records.identities import IdentityDocument
from shardline.records.jobs import JobRecord
from shardline.records.preprocessing import Preprocessing, RecordedTable
from shardline_io.order.folds import blocks_of

DTYPES = (
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16", "bool",
)  # fmt: skip
Name = Annotated[str, Meta(pattern=r"^[ -~]{1,200}$")]
Count = Annotated[int, Meta(ge=0)]
Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{12}$")]
Dtype = Annotated[str, Meta(pattern=f"^({'|'.join(DTYPES)})$")]
# a published held-out value, as a source states it: `metric`, `value` and `meaning`
Reference = dict[str, Any]
# by block in the order of the rows in a shard, see `shardline_io.order.folds`; without folds, by split
Rows = dict[str, Count]
WITH_FOLDS = 2  # version of the manifest of a dataset with folds


class Shard(Record, frozen=True, kw_only=True):
    """A shard.

    Attributes:
        file: Name of the file.
        rows: Number of rows by split; with folds, by block: `0/train`, `0/validation`, `1/train`, ..., `test`.
        values: Number of values, by column of varying length.
        bytes: Size of the file.
        blake3: BLAKE3 digest of the file.
    """

    file: Name
    rows: Rows
    values: dict[str, Count] | UnsetType = UNSET
    bytes: Count
    blake3: str

    def __post_init__(self) -> None:
        """Reject rows that do not have all three splits, or all blocks."""
        if (*self.rows,) != blocks_of(len(self.rows) // 2 if len(self.rows) > 3 else 0):
            raise ValueError(f"rows of {', '.join(self.rows) or 'no split'}")


class Skipped(Record, frozen=True, kw_only=True):
    """Rows or files that were skipped.

    Attributes:
        count: Number of skipped rows or files.
        first: Sentences about the first ones.
    """

    count: Count = 0
    first: list[str] = field(default_factory=list)


class Call(Record, frozen=True, kw_only=True):
    """A call of a transform that a dataset has, and that is left out while shards are built.

    Attributes:
        attribute: Attribute of the dataset: `transform`, `transforms` or `target_transform`.
        level: Number of the dataset among those with transforms around the sample, 0 for the outermost.
        arguments: Columns of positional arguments and of their results; empty text for the whole sample.
        keywords: Columns of keyword arguments and of their results, by name.
    """

    attribute: Name
    level: Count = 0
    arguments: list[str] = field(default_factory=list)
    keywords: dict[str, str] = field(default_factory=dict)


class SampleForm(Record, frozen=True, kw_only=True):
    """Form of the samples of a torch dataset before they were stored.

    Attributes:
        form: Type of a sample: `tuple`, `dict`, `object` (with named attributes) or `value`.
        kinds: Type of each column's values: `image`, `tensor`, `array` or `value`.
        calls: Calls of transforms to apply when rows are read, by split.
    """

    form: str
    kinds: dict[str, str]
    calls: dict[str, list[Call]] = field(default_factory=dict)


class DatasetSchema(Record, frozen=True, kw_only=True):
    """Schema of a dataset: the features of a table, or the columns.

    Attributes:
        task: Task of the dataset, such as `classification`.
        classes: Names of the classes; a source of your own may give numbers.
        columns: Types of the columns, by name; absent for a table of features.
        feature_shape: Shape of a row's features, for a table.
        feature_dtype: Data type of the features, for a table.
        stored: Types of the columns in the shards, if preprocessing makes the other columns from these.
        categories: Number of indices of each column of `categories`, in order; index 0 is unknown.
        sampled: Types of the columns of a training sample after the transforms of a torch dataset; empty if
            they are unknown, absent if there are none.
        targets: Names of the numbers or flags in a row's labels, if these are several.
        weighted: Whether the column `weight` contains the weights of the rows.
    """

    task: str
    classes: list[Any] = field(default_factory=list)
    columns: dict[str, str] | UnsetType = UNSET
    feature_shape: list[Count] | UnsetType = UNSET
    feature_dtype: Dtype | UnsetType = UNSET
    stored: dict[str, str] | UnsetType = UNSET
    categories: dict[str, Count] | UnsetType = UNSET
    sampled: dict[str, str] | UnsetType = UNSET
    targets: list[str] | UnsetType = UNSET
    weighted: bool | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Reject a table without shape or data type."""
        if self.columns is UNSET and UNSET in (self.feature_shape, self.feature_dtype):
            raise ValueError("neither columns nor feature_shape and feature_dtype")


class Summary(Record, frozen=True, kw_only=True):
    """Statistics of the train rows of a column, by feature; null for NaN and infinity.

    Attributes:
        count: Number of rows.
    """

    count: Count
    mean: list[float | None]
    std: list[float | None]
    min: list[float | None]
    max: list[float | None]


class ShortSummary(Record, frozen=True, kw_only=True):
    """Statistics over all features of a column whose statistics by feature are in a file.

    Attributes:
        count: Number of rows.
        features: Number of features.
    """

    count: Count
    features: Count
    mean: float | None
    std: float | None
    min: float | None
    max: float | None


class FoldStatistics(Record, frozen=True, kw_only=True):
    """Statistics of the train rows of a run that tests on a fold: `features`, `columns` or `summary`.

    Attributes:
        features: Statistics of the features of a table.
        columns: Statistics by column, if the dataset is no table.
        summary: Summary of the file, by column.
    """

    features: Summary | UnsetType = UNSET
    columns: dict[str, Summary] | UnsetType = UNSET
    summary: dict[str, ShortSummary] | UnsetType = UNSET


class DatasetStatistics(Record, frozen=True, kw_only=True):
    """Statistics of a dataset. With very many features, they are in a file beside the shards.

    Attributes:
        summary: Summary of the file, by column.
        class_counts: Number of rows of each class, by split or block; empty without classes.
        features: Statistics of the features of a table.
        columns: Statistics by column, if the dataset is no table.
        folds: With folds, the statistics of a run that tests on fold 0, 1, ...; those above are of the
            train rows of all folds.
        file: Name of the file beside the shards.
        blake3: BLAKE3 digest of the file.
    """

    summary: dict[str, ShortSummary] | UnsetType = UNSET
    class_counts: dict[str, list[Count]]
    features: Summary | UnsetType = UNSET
    columns: dict[str, Summary] | UnsetType = UNSET
    folds: list[FoldStatistics] | UnsetType = UNSET
    file: Name | UnsetType = UNSET
    blake3: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Reject statistics without a column, and a file without digest or summary."""
        given = [value is not UNSET for value in (self.file, self.blake3, self.summary)]
        if any(given) and not all(given):
            raise ValueError("some of file, blake3 and summary, not all")
        if not (self.features or self.columns or self.summary):
            raise ValueError("statistics of neither features nor columns")


class Manifest(Record, frozen=True, kw_only=True):
    """manifest.json: the content of a sealed dataset.

    Attributes:
        dataset: Id of the dataset.
        version: Version of the manifest: absent without folds, 2 with folds.
        folds: Number of folds.
        schema: Features or columns.
        splits: Number of rows, by split; with folds, by block.
        bytes: Size of all shards together.
        statistics: Statistics of the train rows.
        reference: Published held-out value, as the source states it.
        skipped: Skipped rows and files.
        shards: All shards, in order.
        identity: Identity document of the dataset.
        has_labels: For files that a run predicts: whether they have real labels.
        preprocessing: Fitted preprocessing of the columns in `schema.stored`.
        fold_preprocessing: With folds, the preprocessing of a run that tests on fold 0, 1, ...
        samples: Form of the samples of a torch dataset with transforms to apply when rows are read.
    """

    dataset: str
    version: Annotated[int, Meta(ge=2, le=2)] | UnsetType = UNSET
    folds: Count | UnsetType = UNSET
    schema: DatasetSchema
    splits: Rows
    bytes: Count
    statistics: DatasetStatistics
    reference: Reference | None = None
    skipped: Skipped
    shards: list[Shard]
    identity: IdentityDocument
    has_labels: bool | UnsetType = UNSET
    preprocessing: Preprocessing | UnsetType = UNSET
    fold_preprocessing: list[Preprocessing] | UnsetType = UNSET
    samples: SampleForm | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Reject folds without their version or statistics."""
        folds = self.folds or 0
        if (self.version is not UNSET) != bool(folds):
            raise ValueError(f"version {self.version} with {folds} folds")
        if len(self.statistics.folds or ()) != folds:
            raise ValueError(f"statistics of {len(self.statistics.folds or ())} of {folds} folds")


class RecordedMoments(Record, frozen=True, kw_only=True):
    """Moments of the train rows of a column, by feature; see `data.moments.Moments`.

    Attributes:
        count: Number of rows.
        m2: Sum of squared differences from the mean.
        low: Smallest value.
        high: Largest value.
    """

    count: Count
    mean: list[float | None]
    m2: list[float | None]
    low: list[float]
    high: list[float]


class PartStatistics(Record, frozen=True, kw_only=True):
    """Statistics of a range of shards.

    Attributes:
        first: Number of the first shard.
        stop: Number after the last shard.
        class_counts: Number of rows of each class, by split or block.
        features: Moments of the features of a table.
        columns: Moments by column, if the dataset is no table.
        folds: With folds, moments by column of the rows of each fold to train on; the other moments
            are those of all folds.
        table: What preprocessing is fitted on, by split or block.
    """

    first: Count
    stop: Count
    class_counts: dict[str, list[Count]]
    features: RecordedMoments | UnsetType = UNSET
    columns: dict[str, RecordedMoments] | UnsetType = UNSET
    folds: list[dict[str, RecordedMoments]] | UnsetType = UNSET
    table: dict[str, RecordedTable] | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Reject statistics without a column."""
        if not (self.features or self.columns):
            raise ValueError("statistics of neither features nor columns")


class Part(Record, frozen=True, kw_only=True):
    """parts/FIRST-LAST.json in the store: the shards that one job wrote.

    Attributes:
        dataset: Id of the dataset.
        shards: Written shards.
        statistics: Statistics of these shards.
        skipped: Skipped rows, by name of the shard's file.
        rows_of: Digest of the rows that the job found, by split; for torch datasets.
        groups: Keys of the groups in the fixed test set (`test`) and in `folds`, if a dataset has all of these.
        action: Record of the job.
    """

    dataset: str
    shards: list[Shard]
    statistics: list[PartStatistics]
    skipped: dict[str, Skipped] = field(default_factory=dict)
    rows_of: dict[str, str] | UnsetType = UNSET
    groups: dict[str, list[int]] | UnsetType = UNSET
    action: JobRecord | None = None


class Prepared(Record, frozen=True, kw_only=True):
    """prepared.json in the store: the `prepare_data` of a LightningDataModule has run.

    Attributes:
        dataset: Id of the dataset.
        module: Import path of the class.
        action: Record of the job.
    """

    dataset: str
    module: str
    action: JobRecord


class Stratum(Record, frozen=True, kw_only=True):
    """Cuts of the rows of a class, in the order of their hashes or times.

    Attributes:
        key: Key of the class; 0 if all rows are one class.
        edges: First position of each block but the first, rising.
        blocks: Number of each block, in the order of the rows.
    """

    key: int
    edges: list[float]
    blocks: list[Count]


class SplitPlan(Record, frozen=True, kw_only=True):
    """splits.json in the store: the plan of splits that need a pass over all rows.

    Attributes:
        dataset: Id of the dataset.
        rows: Number of rows in the plan.
        strata: Cuts of each class.
        groups: Instead of `strata`, keys of the groups, rising.
        folds: Fold of each group.
        action: Record of the job.
    """

    dataset: str
    rows: Count
    strata: list[Stratum] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    folds: list[Count] = field(default_factory=list)
    action: JobRecord | UnsetType = UNSET


class PlanSeal(Record, frozen=True, kw_only=True):
    """Metadata of a pack plan.

    Attributes:
        dataset: Id of the dataset.
        shards: Digest of the shards' digests.
        column: Packed column.
        length: Length of a pack, in values.
        split: Name of the split.
        version: Version of the format of plans.
        rows: Digest of the places of the split's rows.
        blake3: BLAKE3 digest of the plan's tensors.
    """

    dataset: str
    shards: str
    column: str
    length: int
    split: str
    version: int
    rows: str
    blake3: str = ""


class ExampleRow(Record, frozen=True, kw_only=True):
    """The first row of a dataset.

    Attributes:
        values: Short texts of the values, by column.
        picture: The first image as a PNG data URL; empty without images.
    """

    values: dict[str, str]
    picture: str = ""


class DatasetProvenance(Record, frozen=True, kw_only=True):
    """provenance.json of a dataset.

    Attributes:
        dataset: Id of the dataset.
        identity: Digest of the identity document.
        definitions: Digests of the definitions in the user's code, see `config.documents`.
        inferred: Facts that Shardline inferred from the source's files, see `data.inferred`.
        example: The first row; absent in files of earlier versions, and if it could not be read.
        action: Record of the job that sealed the dataset.
        parts: Records of the jobs that wrote the shards.
        prepared: Record of the job that called `prepare_data` of a data module.
        plan: Record of the job that planned the splits.
        files: SHA-256 of the sealed files, by name.
    """

    dataset: str
    identity: str
    definitions: dict[str, Any]
    inferred: dict[str, Any]
    example: ExampleRow | UnsetType = UNSET
    action: JobRecord
    parts: list[JobRecord]
    prepared: JobRecord | UnsetType = UNSET
    plan: JobRecord | UnsetType = UNSET
    files: dict[Name, str]
