"""`config.yaml` as a whole."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from shardline.config.settings.base import Mix, Name, Settings, Text
from shardline.config.settings.datasets import DatasetSettings
from shardline.config.settings.environments import AzureML, Conda, Image
from shardline.config.settings.run import Environment, RunSettings
from shardline.config.settings.runtime import Runtime


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


class Identity(Settings, frozen=True, kw_only=True):
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
    identity: Identity = Identity()
    runtime: Runtime = Runtime()


class ReportSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """What the identity document of a report holds of the config."""

    scaling: dict[str, StudySettings] = {}
