"""Checks of the splits of a dataset: what a source supports, and keys that exclude each other."""

from collections.abc import Sequence

from msgspec import UNSET

from shardline.config.settings.config import (
    DatasetSettings,
    Shares,
    SplitColumn,
    SplitFiles,
    SplitFolds,
)
from shardline.config.settings.source_settings import AnySource
from shardline.core.errors import ConfigError

WITH_SPLITS = (
    "csv",
    "delta",
    "hdf5",
    "hf",
    "jsonl",
    "numpy",
    "parquet",
)  # sources that support splits by column
WITH_FILES = (
    "csv", "hdf5", "hf", "idx", "image_folder", "jsonl", "litdata", "mds", "numpy", "parquet", "text", "webdataset",
)  # fmt: skip
# sources whose rows may have a column of groups
WITH_GROUPS = (*WITH_SPLITS, "litdata", "mds", "webdataset")
OWN = "your own class"


def labels_of(source: AnySource) -> list[str]:
    """Return the label columns of a source."""
    given = getattr(source, "label", UNSET) or []
    return given if isinstance(given, list) else [given]


def check_splits(settings: DatasetSettings, where: str) -> None:
    """Reject shares that do not sum to 1, and splits that a source does not support.

    Raises:
        ConfigError: The splits are invalid; the message names the key.
    """
    source, splits = settings.source, settings.splits
    if isinstance(splits, Shares):
        shares = {name: getattr(splits, name) for name in ("train", "validation", "test")}
        total = sum(shares.values())
        if abs(total - 1) > 1e-9:
            raise ConfigError(f"{where}.splits sum to {total:g}, not 1; change one of {shares}")
    elif isinstance(splits, SplitColumn):
        _check_type(source, WITH_SPLITS, "column", where)
        _check_free(source, "column", splits.column, where)
    elif isinstance(splits, SplitFiles):
        _check_type(source, WITH_FILES, "files", where)
    if splits.group is not UNSET:
        by_file = isinstance(splits, SplitFiles) and splits.folds is UNSET
        types = WITH_SPLITS if by_file else (*WITH_GROUPS, OWN)
        _check_type(source, types, "group", where)
        _check_free(source, "group", splits.group, where)
    _check_fixed(splits, where)
    _check_planned(splits, where)


def _check_type(source: AnySource, types: Sequence[str], key: str, where: str) -> None:
    if source.type not in types and not (OWN in types and ":" in source.type):
        raise ConfigError(
            f"{where}.splits.{key} is for sources of type {', '.join(types)}, not {source.type}; "
            + ("leave it out" if key == "group" else "give shares (train, validation, test)")
        )


def _check_free(source: AnySource, key: str, column: str, where: str) -> None:
    if column in _roles(source):
        raise ConfigError(
            f"{where}.splits.{key}={column} is also a feature, the label or the weight; remove it there"
        )


def _check_fixed(splits: Shares | SplitFolds | SplitColumn | SplitFiles, where: str) -> None:
    """Reject keys that have no effect since a column or files decide the splits."""
    by_hash = isinstance(splits, SplitFiles) and isinstance(splits.files.validation, float)
    if isinstance(splits, Shares | SplitFolds):
        return
    if splits.folds is not UNSET:
        if by_hash and splits.validation is not UNSET:
            raise ConfigError(
                f"{where}.splits.validation={splits.validation} has no effect beside a share in "
                "splits.files.validation; drop it"
            )
        return
    key = "column" if isinstance(splits, SplitColumn) else "files"
    if splits.group is not UNSET and not by_hash:
        raise ConfigError(
            f"{where}.splits.group={splits.group} has no effect, since splits.{key} decides each row's split; drop "
            "one, or set splits.folds"
        )
    given = {name: getattr(splits, name) for name in ("seed", "validation", "stratify", "balanced")}
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"{where}.splits.{name}={value} has no effect without splits.folds; drop it, or set splits.folds"
            )


def _roles(source: AnySource) -> list[str]:
    """Return the names of features, labels and weight."""
    features = getattr(source, "features", UNSET) or []
    given = [features] if isinstance(features, str) else features
    return [*given, *labels_of(source), getattr(source, "weight", UNSET) or ""]


def _check_planned(splits: Shares | SplitFolds | SplitColumn | SplitFiles, where: str) -> None:
    """Reject keys of splits of which one has no effect beside the other."""
    if not isinstance(splits, Shares):
        return
    if splits.time is not UNSET:
        for name in ("group", "stratify", "seed"):
            if value := getattr(splits, name):
                raise ConfigError(
                    f"{where}.splits.{name}={value} has no effect, since splits.time={splits.time} decides each row's "
                    "split; drop one"
                )
    if splits.group and splits.stratify:
        raise ConfigError(
            f"{where}.splits.stratify={splits.stratify} is given with splits.group={splits.group}, and whole groups "
            "have no exact shares; drop one, or set splits.folds instead of shares"
        )
