"""Settings of a dataset."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from shardline.config.settings.run_settings import Environment, RunSettings
from shardline.config.settings.runtime import AzureML, Conda, Image, Runtime
from shardline.config.settings.settings_table import Count, Mix, Name, Settings, Share, Text
from shardline.config.settings.source_settings import AnySource


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


class StudySettings(Settings, frozen=True, kw_only=True):
    """An entry of `scaling`."""

    run: Text
    """Name of the run that is trained at each size."""
    sizes: list[str]
    """Nodes x devices of each, `[1x1, 1x2, 2x4]`; two or more."""
    mode: Literal["strong", "weak"] = "strong"
    """`strong`: `global_batch` is the run's own at every size. `weak`: it grows with the number of
    ranks, from the run's own at the first size."""


class PredictionSettings(Settings, frozen=True, kw_only=True):
    """An entry of `predictions`."""

    run: Text
    """Name of the run whose model predicts."""
    dataset: Text | UnsetType = UNSET
    """Name of the dataset whose rows are predicted."""
    split: Literal["train", "validation", "test"] = "test"
    """Which rows of the dataset."""
    files: list[Text] | UnsetType = UNSET
    """In place of `dataset`, files or patterns, read as the run's dataset is; they need no labels."""


class IdentitySettings(Settings, frozen=True, kw_only=True):
    """How closely an earlier result must fit to be taken over by itself; changes no digest."""

    environment: Literal["exact", "minor", "off"] = "exact"
    """Where locked packages alone differ: `exact` makes the result again; `minor` takes the earlier
    one over if Python is the same and no package differs by more than its patch level; `off`
    whatever they are. What is taken over is recorded as by `shardline accept`."""


class Config(Settings, frozen=True, kw_only=True):
    """What is computed. Where it is computed stands in profiles/."""

    runs: str
    """Path of the run table, from the working directory."""
    lock: str | UnsetType = UNSET
    """Lock whose pins make the environment digest; left out, Shardline's own requirements.lock."""
    defaults: RunSettings
    """Every setting; a cell of the run table overrides it for that run."""
    scaling: dict[Name, StudySettings] = {}
    """Name to scaling study."""
    datasets: Annotated[dict[Name, DatasetSettings], Meta(min_length=1)]
    """Name to source and shard settings."""
    mixes: dict[Name, Mix] = {}
    """Name to the weights of a mix of datasets, `{web: 0.7, books: 0.3}`, for cells of the run
    table."""
    predictions: dict[Name, PredictionSettings] = {}
    """Name to the rows that a run's model predicts; `results/predictions/NAME.parquet` holds them."""
    environments: dict[Name, Environment] = {}
    """Name to an environment for training scripts, for the setting `environment` of a run."""
    conda: Conda = Conda()
    azureml: AzureML = AzureML()
    image: Image = Image()
    identity: IdentitySettings = IdentitySettings()
    runtime: Runtime = Runtime()


class ReportSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """What the identity document of a report holds of the config."""

    scaling: dict[str, StudySettings] = {}
