"""Settings of a dataset."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from shardline.config.settings.base import Count, Settings, Share, Text
from shardline.config.settings.sources import AnySource


class Shares(Settings, frozen=True, kw_only=True):
    """Splits by shares of the rows."""

    others: ClassVar[frozenset[str]] = frozenset({"column", "files"})

    train: Share
    """Share to train on. Shares of the rows, decided by a hash of each row's id; they sum to 1."""
    validation: Share
    """Share to choose training checkpoints by."""
    test: Share
    """Share held out for the evaluation."""

    @classmethod
    def fits(cls, table: Mapping[str, Any]) -> bool:
        """Return whether neither a column is named nor files are listed."""
        return table.keys().isdisjoint(cls.others)


class SplitColumn(Settings, frozen=True, kw_only=True):
    """Splits by a column."""

    column: Text
    """In place of shares, `csv`, `delta`, `hf`, `jsonl`, `parquet`: column that holds train,
    validation (val, valid, dev) or test."""

    @classmethod
    def fits(cls, table: Mapping[str, Any]) -> bool:
        """Return whether a column is named."""
        return "column" in table


class FilesOfSplits(Settings, frozen=True, kw_only=True):
    """The files of each split."""

    train: list[str]
    """In place of shares, of all types that have `files` but your own: patterns of the files to
    train on. Each file is in one split."""
    validation: list[str] | Annotated[float, Meta(gt=0, lt=1)]
    """Patterns, or the share of the train files' rows to take in their place, by a hash of the
    row's id."""
    test: list[str]
    """Patterns of the files held out."""


class SplitFiles(Settings, frozen=True, kw_only=True):
    """Splits by file."""

    files: FilesOfSplits

    @classmethod
    def fits(cls, table: Mapping[str, Any]) -> bool:
        """Return whether files are listed."""
        return "files" in table


class DatasetSettings(Settings, frozen=True, kw_only=True):
    """An entry of `datasets`."""

    source: AnySource
    """Where the rows come from."""
    shards: Count | Literal["auto"]
    """Files that the dataset is cut into; `auto` takes as many as make files of about 64 MB. The
    number counts, however it is found."""
    shards_per_job: Count = 64
    """Shards that one job writes; does not change the dataset."""
    splits: Shares | SplitColumn | SplitFiles = Shares(train=0.8, validation=0.1, test=0.1)
    """What is trained on, what chooses training checkpoints and what is held out."""
