"""What the settings of all sources have: where files lie, types of columns."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from shardline.config.settings import Count, Natural, Positive, Settings, Text

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
        description="What is read. Text is a file or glob pattern (for `hf`, `image_folder`, `litdata`, `mds` and "
        "`webdataset` also a folder); "
        "a table `{url, sha256, bytes}` is a remote file, as `shardline digest URL` prints it."
    ),
]


class SourceSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A source whose type is not known, which is found out later."""

    named: ClassVar[str] = ""

    type: str
    """`csv`, `delta`, `digits`, `hf`, `idx`, `image_folder`, `jsonl`, `litdata`, `mds`, `parquet`,
    `synthetic`, `text`, `webdataset`, or a source class by import path (`mypkg.sources:Rings`)."""

    @classmethod
    def fits(cls, table: Mapping[str, Any]) -> bool:
        """Return whether a source has this class's type."""
        return table.get("type") == cls.named or not cls.named


class _ColumnsInFiles(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    files: Files
    columns: TypedColumns | UnsetType = UNSET
    """Type of each column that is kept, by name; left out, all that the files hold."""
    rename: Renamed | UnsetType = UNSET
    """What columns are called in the files, where not by their name in `columns`."""


class SamplesSettings(_ColumnsInFiles, frozen=True, kw_only=True):
    """What the formats of other libraries have."""

    num_classes: Annotated[int, Meta(ge=2)] | UnsetType = UNSET
    """Number of classes of an integer column `labels`; else list `classes`, or neither."""
    classes: list[str | int] = []
    """Names of the classes of an integer column `labels`."""
    on_bad: OnBad = "fail"
    """Whether a row that cannot be used ends the build by name, or is left out and counted."""


class LitDataSettings(SamplesSettings, frozen=True, kw_only=True):
    """Folders that LitData optimised."""

    named: ClassVar[str] = "litdata"


class MdsSettings(SamplesSettings, frozen=True, kw_only=True):
    """Folders of MosaicML Streaming."""

    named: ClassVar[str] = "mds"


class WebDatasetSettings(SamplesSettings, frozen=True, kw_only=True):
    """Tar files of samples."""

    named: ClassVar[str] = "webdataset"


class HfSettings(_ColumnsInFiles, frozen=True, kw_only=True):
    """Folders that Hugging Face's `datasets` saved."""

    named: ClassVar[str] = "hf"

    label: Text | UnsetType = UNSET
    """Column of the label, which becomes the column `labels`."""
    id_column: Text | UnsetType = UNSET
    """Column of the row's id, whole numbers or text; left out, a row is known by its file's name
    and its place in it."""
    task: Literal["classification", "regression"] = "classification"
    """What the label is."""
    num_classes: Annotated[int, Meta(ge=2)] | UnsetType = UNSET
    """Number of classes where labels are 0, 1, ...; without it and `classes`, those that the files
    name."""
    classes: list[str | int] = []
    """The labels' values in label order."""
    on_bad: OnBad = "fail"
    """Whether a row that cannot be used ends the build by name, or is left out and counted."""


class ColumnsSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all tables of columns have."""

    label: Text | UnsetType = UNSET
    """Column of the label; required where there are no `columns`, beside which it becomes the
    column `labels`."""
    features: list[Text] = []
    """Columns of the features in their order, or one column of lists; left out, all columns of
    numbers that are not label, id or split."""
    columns: TypedColumns | UnsetType = UNSET
    """In place of `features`: type of each column by name, such as `{tokens: "int32[*]", caption:
    "text?"}`; those of `csv` are numbers and text."""
    rename: Renamed | UnsetType = UNSET
    """What columns are called in the files, where not by their name in `columns`."""
    id_column: Text | UnsetType = UNSET
    """Column of the row's id, whole numbers or text; left out, a row is known by its file's name
    and its place in it."""
    task: Literal["classification", "regression"] = "classification"
    """What the label is."""
    num_classes: Annotated[int, Meta(ge=2)] | UnsetType = UNSET
    """Number of classes where labels are 0, 1, ...; else list `classes`."""
    dtype: Literal["float32", "float64", "int32", "uint8"] = "float32"
    """Type of the features, as stored."""
    classes: list[str | int] = []
    """The labels' values in label order."""
    on_bad: OnBad = "fail"
    """Whether a row that cannot be used ends the build by name, or is left out and counted."""


class ParquetSettings(ColumnsSettings, frozen=True, kw_only=True):
    """Parquet files."""

    named: ClassVar[str] = "parquet"

    files: Files


class CsvSettings(ColumnsSettings, frozen=True, kw_only=True):
    """CSV files."""

    named: ClassVar[str] = "csv"

    files: Files
    delimiter: str = ","
    """What separates the fields."""
    decimal: Literal[".", ","] = "."
    """Mark of decimals in numbers, a point or a comma."""


class DeltaSettings(ColumnsSettings, frozen=True, kw_only=True):
    """A version of a Delta table."""

    named: ClassVar[str] = "delta"

    table: Text
    """The table's folder or URL. Not it but the table's id counts."""
    version: Natural
    """Version of the table."""
    table_id: Text | UnsetType = UNSET
    """Id that the table must have; required where `table` is a URL."""


class IdxSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files of the MNIST family's format."""

    named: ClassVar[str] = "idx"

    files: Files
    classes: list[str | int] = []
    """Names of the classes; left out, the numbers up to the largest label."""


class ImageFolderSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Images in folders that are named by class."""

    named: ClassVar[str] = "image_folder"

    files: Files
    classes: list[str | int] = []
    """Names of the folders in label order; left out, all in alphabetical order."""
    on_bad: OnBad = "fail"
    """Whether an image that cannot be used ends the build by name, or is left out and counted."""
    size: list[Count] | UnsetType = UNSET
    """[height, width] in pixels that every image is brought to; required where images are decoded
    `at_build`."""
    mode: Literal["RGB", "L"] = "RGB"
    """Colours, or `L` for grey."""
    fit: Literal["crop", "stretch"] = "crop"
    """`crop` scales an image until it covers the size and cuts off what stands over; `stretch`
    changes its proportions."""
    decode: Literal["at_build", "at_read"] = "at_build"
    """`at_build` stores the pixels; `at_read` stores the files' own bytes as a column `image`, which
    training decodes: `size`, `mode` and `fit` say nothing then."""
    decode_threads: Natural = 0
    """Images decoded at a time by one job; 0 takes one thread per core."""


class DigitsSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The handwritten digits that come with scikit-learn."""

    named: ClassVar[str] = "digits"


class SyntheticSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows that are drawn."""

    named: ClassVar[str] = "synthetic"

    rows_per_shard: Count = 10000
    """Rows in each shard."""
    features: Count = 1000
    """Float32 features of a row."""
    seed: Natural = 0
    """Seed of the features and of the model that draws the labels."""
    signal: Positive = 3.0
    """Length of the true weight vector; larger makes labels easier to predict."""


class OwnSourceSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of the user's."""

    named: ClassVar[str] = "own class"

    options: dict[str, Any] = {}
    """Keyword arguments of its constructor."""
    files: Files = []

    @classmethod
    def fits(cls, table: Mapping[str, Any]) -> bool:
        """Return whether the type is an import path."""
        return ":" in str(table.get("type"))


class TokenizedSettings(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all sources have that make tokens of texts."""

    files: Files
    tokenizer: Text = "bytes"
    """`bytes` for the texts' UTF-8 bytes, or the path of a tokenizer.json of the library tokenizers,
    whose content counts."""
    special_tokens: bool = False
    """Whether the tokenizer adds the special tokens of its template, such as one to begin with."""
    end: Text | Natural | UnsetType = UNSET
    """Token behind each text, such as `</s>`, or its number; for bytes any text, or a
    byte's number."""
    on_bad: OnBad = "fail"
    """Whether what cannot be used ends the build by name, or is left out and counted."""


class TextFilesSettings(TokenizedSettings, frozen=True, kw_only=True):
    """Text files."""

    named: ClassVar[str] = "text"

    unit: Literal["line", "paragraph", "file"] = "line"
    """What is a row; empty lines end paragraphs, and are in no row of lines."""
    keep_text: bool = False
    """Whether rows have a column `text` beside `tokens`."""


class JsonLinesSettings(TokenizedSettings, frozen=True, kw_only=True):
    """JSON Lines files."""

    named: ClassVar[str] = "jsonl"

    columns: TypedColumns | UnsetType = UNSET
    """Type of each column by name, such as `{caption: text, boxes: "float32[*,4]", score:
    "float32?"}`; bytes are read from base64."""
    rename: Renamed | UnsetType = UNSET
    """Keys of columns, where not their name in `columns`; `meta.url` is `url` of the object `meta`."""
    tokenize: dict[Text, Text] = {}
    """Columns of tokens, and the key of the text of each: `{tokens: text}`."""
    id_column: Text | UnsetType = UNSET
    """Key of the row's id, whole numbers or text; left out, a row is known by its file's name and
    its place in it."""
    label: Text | UnsetType = UNSET
    """Key of the label, which becomes the column `labels`."""
    classes: list[str | int] = []
    """The labels' values in label order."""
    num_classes: Annotated[int, Meta(ge=2)] | UnsetType = UNSET
    """Number of classes where labels are 0, 1, ...; else list `classes`."""


AnySource = (
    CsvSettings | DeltaSettings | DigitsSettings | HfSettings | IdxSettings | ImageFolderSettings | JsonLinesSettings
    | LitDataSettings | MdsSettings | ParquetSettings | SyntheticSettings | TextFilesSettings | WebDatasetSettings
    | OwnSourceSettings | SourceSettings
)  # fmt: skip
