"""Settings of the sources that read what other libraries wrote."""

from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from shardline.config.settings.base import Text
from shardline.config.settings.source_base import Files, OnBad, Renamed, Source, TypedColumns


class Samples(Source, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the formats of other libraries have."""

    files: Files
    columns: TypedColumns | UnsetType = UNSET
    """Type of each column that is kept, by name; left out, all that the files hold."""
    rename: Renamed | UnsetType = UNSET
    """What columns are called in the files, where not by their name in `columns`."""
    num_classes: Annotated[int, Meta(ge=2)] | UnsetType = UNSET
    """Number of classes of an integer column `labels`; else list `classes`, or neither."""
    classes: list[str | int] = []
    """Names of the classes of an integer column `labels`."""
    on_bad: OnBad = "fail"
    """Whether a row that cannot be used ends the build by name, or is left out and counted."""


class LitData(Samples, frozen=True, kw_only=True):
    """Folders that LitData optimised."""

    named: ClassVar[str] = "litdata"


class Mds(Samples, frozen=True, kw_only=True):
    """Folders of MosaicML Streaming."""

    named: ClassVar[str] = "mds"


class WebDataset(Samples, frozen=True, kw_only=True):
    """Tar files of samples."""

    named: ClassVar[str] = "webdataset"


class Hf(Source, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Folders that Hugging Face's `datasets` saved."""

    named: ClassVar[str] = "hf"

    files: Files
    columns: TypedColumns | UnsetType = UNSET
    """Type of each column that is kept, by name; left out, all that the files hold."""
    rename: Renamed | UnsetType = UNSET
    """What columns are called in the files, where not by their name in `columns`."""
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
