"""Settings of sources, one class for each type."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from shardline.config.settings import Count, Natural, Plain, Positive, Settings, Text

Task = Literal["classification", "regression", "multilabel"]
Labels = Text | Annotated[list[Text], Meta(min_length=1, extra={"unique": True})]
OnBad = Literal["fail", "skip"]
ColumnType = Annotated[
    str,
    Meta(
        pattern=r"^(bytes|text|[a-z]+[0-9]*(\[(\*|[1-9][0-9]*)(, *[1-9][0-9]*)*\])?)\??$",
        extra={
            "words": "a type such as int64, float32[3], int32[*], float32[*,4], bytes or text",
            "remedy": "see docs/how-to/read-tables.md",
        },
    ),
]
TypedColumns = Annotated[dict[Text, ColumnType], Meta(min_length=1)]
Renamed = dict[Text, Text]


class RemoteFile(Settings, frozen=True, kw_only=True):
    """A file behind a URL, as `shardline digest URL` prints it."""

    url: Text
    sha256: str
    bytes: Natural
    path: Text | UnsetType = UNSET


Files = Annotated[
    list[str | RemoteFile],
    Meta(
        description="Files to read. A text is a file or glob pattern (for `hf`, `image_folder`, `litdata`, `mds` and "
        "`webdataset` also a folder). "
        "A table `{url, sha256, bytes}` is a remote file, as `shardline digest URL` prints it."
    ),
]


class SourceSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A source of a type that is not known; a later check rejects it."""

    named: ClassVar[str] = ""

    type: str
    """`csv`, `delta`, `digits`, `hdf5`, `hf`, `idx`, `image_folder`, `jsonl`, `litdata`, `mds`, `numpy`,
    `parquet`, `synthetic`, `text`, `webdataset`, or the import path of a source class, torch dataset,
    function that returns one, or LightningDataModule (`mypkg.sources:Rings`)."""

    @classmethod
    def fits(cls, table: Plain) -> bool:
        """Return whether the source has the type of this class."""
        return table.get("type") == cls.named or not cls.named


class _ColumnsInFiles(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    files: Files
    columns: TypedColumns | UnsetType = UNSET
    """Types of the columns to keep, by name. Default: all columns of the files."""
    rename: Renamed | UnsetType = UNSET
    """Names of columns in the files, if they differ from the names in `columns`."""


class SamplesSettings(_ColumnsInFiles, frozen=True, kw_only=True):
    """Keys of the formats of other libraries."""

    num_classes: Annotated[int, Meta(ge=2)] | UnsetType = UNSET
    """Number of classes of an integer column `labels`. Instead of it, list `classes`, or set neither."""
    classes: list[str | int] = []
    """Names of the classes of an integer column `labels`."""
    on_bad: OnBad = "fail"
    """For unusable rows: `fail` ends the build with an error that names the row; `skip` skips and counts
    them."""


class LitDataSettings(SamplesSettings, frozen=True, kw_only=True):
    """Folders that LitData wrote."""

    named: ClassVar[str] = "litdata"


class MdsSettings(SamplesSettings, frozen=True, kw_only=True):
    """Folders that MosaicML Streaming wrote."""

    named: ClassVar[str] = "mds"


class WebDatasetSettings(SamplesSettings, frozen=True, kw_only=True):
    """Tar files of samples."""

    named: ClassVar[str] = "webdataset"


class HfSettings(_ColumnsInFiles, frozen=True, kw_only=True):
    """Folders that `datasets` of Hugging Face saved."""

    named: ClassVar[str] = "hf"

    label: Labels | UnsetType = UNSET
    """Column of the label, or a list of columns. It becomes the column `labels`."""
    id_column: Text | UnsetType = UNSET
    """Column of the row id, whole numbers or text. Default: name of the file and position in the file."""
    task: Task = "classification"
    """Task that the label is for."""
    weight: Text | UnsetType = UNSET
    """Column of the rows' weights in the loss, at least 0."""
    num_classes: Annotated[int, Meta(ge=2)] | UnsetType = UNSET
    """Number of classes, if labels are 0, 1, ... Default without `classes`: the classes in the files."""
    classes: list[str | int] = []
    """Values of the labels, in label order."""
    on_bad: OnBad = "fail"
    """For unusable rows: `fail` ends the build with an error that names the row; `skip` skips and counts
    them."""


class ArraysSettings(_ColumnsInFiles, frozen=True, kw_only=True):
    """Keys of sources of arrays."""

    label: Text | UnsetType = UNSET
    """Array of the labels. Without `label` and `columns`, every array becomes a column."""
    features: Text | UnsetType = UNSET
    """Array of the features. Default: the only array besides label, id and split."""
    id_column: Text | UnsetType = UNSET
    """Array of the row ids, whole numbers or text. Default: name of the file and position in the file."""
    task: Literal["classification", "regression"] = "classification"
    """Task that the label is for."""
    num_classes: Annotated[int, Meta(ge=2)] | UnsetType = UNSET
    """Number of classes, if labels are 0, 1, ... Default without `classes`: up to the largest label."""
    classes: list[str | int] = []
    """Values of the labels, in label order. Default for text: all, in alphabetical order."""
    on_bad: OnBad = "fail"
    """For unusable rows: `fail` ends the build with an error that names the row; `skip` skips and counts
    them."""


class NumpySettings(ArraysSettings, frozen=True, kw_only=True):
    """NumPy files."""

    named: ClassVar[str] = "numpy"


class Hdf5Settings(ArraysSettings, frozen=True, kw_only=True):
    """HDF5 files."""

    named: ClassVar[str] = "hdf5"


Impute = Literal["mean", "median", "constant", "flag"]
Encode = Literal["onehot", "index"]
Scale = Literal["standard", "minmax", "log", "quantile", "none"]
Clip = Annotated[
    list[float | None],
    Meta(
        min_length=2, max_length=2, extra={"words": "[smallest, largest], with null for no limit"}
    ),
]


class ColumnTreatment(Settings, frozen=True, kw_only=True):
    """How preprocessing treats one column. Default: as `preprocess` says for all."""

    type: Literal["number", "category", "date"] | UnsetType = UNSET
    """What the column contains. Default: a category for text or if `encode` is set, a date for dates or if
    `date` is set, else a number."""
    impute: Impute | UnsetType = UNSET
    """How gaps are filled."""
    fill: float | UnsetType = UNSET
    """Value for gaps with `impute: constant`."""
    clip: Clip | UnsetType = UNSET
    """Smallest and largest value, with `null` for no limit."""
    scale: Scale | UnsetType = UNSET
    """How numbers are scaled."""
    encode: Encode | UnsetType = UNSET
    """How categories are encoded."""
    date: (
        Annotated[list[Literal["year", "month", "weekday", "seconds"]], Meta(min_length=1)]
        | UnsetType
    ) = UNSET
    """Numbers to take from a date: `year`, `month` (1 to 12), `weekday` (0 for Monday), `seconds` since
    1970. Default: year, month and weekday."""


class Preprocess(Settings, frozen=True, kw_only=True):
    """Features of any type: numbers with gaps, booleans, categories and dates, fitted on the train split."""

    impute: Impute = "mean"
    """How gaps in numbers are filled: by the `mean` or `median` of the train split, or by `fill`
    (`constant`). `flag` fills the mean and adds a feature that is 1 for a gap."""
    fill: float = 0.0
    """Value for gaps with `impute: constant`."""
    clip: Clip | UnsetType = UNSET
    """Smallest and largest value of numbers, `[0, 120]` or `[0, null]`. Applied before all other steps."""
    scale: Scale = "standard"
    """How numbers are scaled after gaps are filled: to mean 0 and deviation 1 (`standard`), to 0 to 1
    (`minmax`), by sign(x) log(1 + abs(x)) (`log`), to their rank from 0 to 1 (`quantile`), or not."""
    encode: Encode = "onehot"
    """`onehot`: a feature for each category. `index`: an integer in the column `categories`, for an
    embedding; 0 is unknown."""
    columns: dict[Text, ColumnTreatment] = {}
    """Other treatment of single columns, by name."""


class ColumnsSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of all sources of columns."""

    label: Labels | UnsetType = UNSET
    """Column of the label. Required without `columns`. With `columns` it becomes the column `labels`. A
    list of columns for `task: multilabel`, or for `task: regression` of several numbers."""
    features: list[Text] = []
    """Feature columns in order, or one column of lists. Default: all columns of numbers that are not
    label, id or split; with `preprocess` all usable columns."""
    preprocess: Annotated[Preprocess | None, Meta(extra={"legacy_value": None})] = None
    """Take features of any type, and fill, encode and scale them as fitted on the train split. Without it,
    features are numbers without gaps."""
    columns: TypedColumns | UnsetType = UNSET
    """Instead of `features`: type of each column by name, such as `{tokens: "int32[*]", caption:
    "text?"}`. For `csv` only numbers and text."""
    rename: Renamed | UnsetType = UNSET
    """Names of columns in the files, if they differ from the names in `columns`."""
    id_column: Text | UnsetType = UNSET
    """Column of the row id, whole numbers or text. Default: name of the file and position in the file."""
    task: Task = "classification"
    """Task that the label is for. `multilabel`: label columns, or one column of lists, of 0 and 1."""
    weight: Text | UnsetType = UNSET
    """Column of the rows' weights in the loss, at least 0. It becomes the column `weight`."""
    num_classes: Annotated[int, Meta(ge=2)] | UnsetType = UNSET
    """Number of classes, if labels are 0, 1, ... For other labels, list `classes`."""
    dtype: Literal["float32", "float64", "int32", "uint8"] = "float32"
    """Type in which features are stored."""
    classes: list[str | int] = []
    """Values of the labels, in label order."""
    on_bad: OnBad = "fail"
    """For unusable rows: `fail` ends the build with an error that names the row; `skip` skips and counts
    them."""


class ParquetSettings(ColumnsSettings, frozen=True, kw_only=True):
    """Parquet files."""

    named: ClassVar[str] = "parquet"

    files: Files


class CsvSettings(ColumnsSettings, frozen=True, kw_only=True):
    """CSV files."""

    named: ClassVar[str] = "csv"

    files: Files
    delimiter: str = ","
    """Separator of the fields."""
    decimal: Literal[".", ","] = "."
    """Decimal mark of numbers."""
    thousands: Annotated[Literal["", ".", ",", " ", "'"], Meta(extra={"legacy_value": ""})] = ""
    """Mark between groups of three digits, such as `"."` for `1.234,5`. Default: none."""
    percent: Annotated[list[Text], Meta(extra={"legacy_value": []})] = []
    """Columns of percentages: `5%` and `5` become 0.05."""
    missing: Annotated[list[Text], Meta(extra={"legacy_value": []})] = []
    """Texts that mean a missing value in every column, such as `["-", "unknown"]`, besides empty fields. Among
    numbers, `NA`, `N/A`, `NaN` and `null` are always missing."""
    line_breaks: Annotated[bool, Meta(extra={"legacy_value": False})] = False
    """Allow line breaks in quoted fields. Each job then reads the files up to its shards to count quotes."""


class DeltaSettings(ColumnsSettings, frozen=True, kw_only=True):
    """A version of a Delta table."""

    named: ClassVar[str] = "delta"

    table: Text
    """Folder or URL of the table. The id of the table counts in the identity, not its place."""
    version: Natural
    """Version of the table."""
    table_id: Text | UnsetType = UNSET
    """Expected id of the table. Required if `table` is a URL."""


class IdxSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files in the IDX format of MNIST."""

    named: ClassVar[str] = "idx"

    files: Files
    classes: list[str | int] = []
    """Names of the classes. Default: the numbers up to the largest label."""


class ImageFolderSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Images in folders, one folder for each class."""

    named: ClassVar[str] = "image_folder"

    files: Files
    classes: list[str | int] = []
    """Names of the folders in label order. Default: all, in alphabetical order."""
    on_bad: OnBad = "fail"
    """For unusable images: `fail` ends the build with an error that names the image; `skip` skips and
    counts them."""
    size: list[Count] | UnsetType = UNSET
    """[height, width] in pixels to which every image is resized. Required with `decode: at_build`."""
    mode: Literal["RGB", "L"] = "RGB"
    """`RGB` for colours, `L` for grayscale."""
    fit: Literal["crop", "stretch"] = "crop"
    """`crop` scales an image until it covers `size`, and crops the rest. `stretch` changes the
    proportions."""
    decode: Literal["at_build", "at_read"] = "at_build"
    """`at_build` stores pixels. `at_read` stores the bytes of the files as a column `image`, which
    training decodes; `size`, `mode` and `fit` then have no effect."""
    decode_threads: Natural = 0
    """Number of threads with which a job decodes images; 0 uses one thread per core."""


class DigitsSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The handwritten digits that come with scikit-learn."""

    named: ClassVar[str] = "digits"


class SyntheticSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Random rows."""

    named: ClassVar[str] = "synthetic"

    rows_per_shard: Count = 10000
    """Number of rows in each shard."""
    features: Count = 1000
    """Number of float32 features of a row."""
    seed: Natural = 0
    """Seed of the features and of the model that draws the labels."""
    signal: Positive = 3.0
    """Length of the true weight vector. With a larger value, labels are easier to predict."""


class OwnSourceSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source class, torch dataset or LightningDataModule of the user."""

    named: ClassVar[str] = "own class"

    options: dict[str, Any] = {}
    """Keyword arguments of the constructor or function."""
    files: Files = []
    columns: TypedColumns | UnsetType = UNSET
    """Columns of a dataset that is no `Source`: types by name. For tuples, one for each value in order.
    Default: as found in the first rows."""
    classes: Annotated[list[str | int], Meta(min_length=1)] | UnsetType = UNSET
    """Names of the classes of the labels of a dataset that is no `Source`. Default: its `classes`."""
    num_classes: Annotated[int, Meta(ge=2)] | UnsetType = UNSET
    """Instead of `classes`: number of classes."""
    workers: Natural | UnsetType = UNSET
    """Number of processes with which a job reads a dataset that is no `Source`; 0 reads in the job itself.
    Default: all cores that Snakemake has on this machine, 1 on a cluster."""

    @classmethod
    def fits(cls, table: Plain) -> bool:
        """Return whether the type is an import path."""
        return ":" in str(table.get("type"))


class TokenizedSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of all sources that tokenize texts."""

    files: Files
    tokenizer: Text = "bytes"
    """`bytes` for the UTF-8 bytes of the texts, or the path of a `tokenizer.json` of the library
    `tokenizers`, whose content counts in the identity."""
    special_tokens: bool = False
    """Add the special tokens of the template of the tokenizer, such as a start token."""
    end: Text | Natural | UnsetType = UNSET
    """Token to append to each text, such as `</s>`, or its number. For `bytes`: any text, or the number
    of a byte."""
    on_bad: OnBad = "fail"
    """For unusable texts: `fail` ends the build with an error that names the place; `skip` skips and
    counts them."""


class TextFilesSettings(TokenizedSettings, frozen=True, kw_only=True):
    """Text files."""

    named: ClassVar[str] = "text"

    unit: Literal["line", "paragraph", "file"] = "line"
    """Unit of text that becomes a row. Empty lines end paragraphs, and are no rows themselves."""
    keep_text: bool = False
    """Keep the text as a column `text` beside `tokens`."""


class JsonLinesSettings(TokenizedSettings, frozen=True, kw_only=True):
    """JSON Lines files."""

    named: ClassVar[str] = "jsonl"

    columns: TypedColumns | UnsetType = UNSET
    """Type of each column by name, such as `{caption: text, boxes: "float32[*,4]", score:
    "float32?"}`. Bytes are decoded from base64."""
    rename: Renamed | UnsetType = UNSET
    """Keys of columns, if they differ from the names in `columns`. `meta.url` is key `url` of `meta`."""
    tokenize: dict[Text, Text] = {}
    """Columns of tokens, each with the key of its text: `{tokens: text}`."""
    id_column: Text | UnsetType = UNSET
    """Key of the row id, whole numbers or text. Default: name of the file and position in the file."""
    label: Text | UnsetType = UNSET
    """Key of the label. It becomes the column `labels`."""
    classes: list[str | int] = []
    """Values of the labels, in label order."""
    num_classes: Annotated[int, Meta(ge=2)] | UnsetType = UNSET
    """Number of classes, if labels are 0, 1, ... For other labels, list `classes`."""


AnySource = (
    CsvSettings | DeltaSettings | DigitsSettings | Hdf5Settings | HfSettings | IdxSettings | ImageFolderSettings
    | JsonLinesSettings | LitDataSettings | MdsSettings | NumpySettings | ParquetSettings | SyntheticSettings
    | TextFilesSettings | WebDatasetSettings | OwnSourceSettings | SourceSettings
)  # fmt: skip
