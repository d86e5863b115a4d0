"""Folds of a config: grids of all folds, and checks of the fold of each run."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardline.config.plans import WeightedDataset
from shardline.config.run_table import Row
from shardline.config.settings import Plain
from shardline.config.settings.config import Shares, SplitFolds
from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import ConfigError

ALL = "all"
_VALIDATION = 0.1


def with_share(splits: Plain) -> Plain:
    """Return the splits of a dataset, with the share of the rows that validate if there are folds."""
    by_file = splits.get("files", {}).get("validation")
    if not splits.get("folds") or isinstance(by_file, float):
        return splits
    return {"validation": _VALIDATION, **splits}


def rows_of_folds(row: Row, default: object, datasets: Sequence[Plain]) -> Iterator[Row]:
    """Yield a row for each fold if a row has `fold: all`, else the row.

    Args:
        default: Fold of rows that set no fold.
        datasets: Entries of the row's datasets.

    Raises:
        ConfigError: The datasets have no folds, or several numbers of folds.
    """
    if row.settings.get("fold", default) != ALL or not datasets:
        yield row
        return
    numbers = {int(entry["splits"].get("folds", 0)) for entry in datasets}
    if numbers == {0}:
        raise ConfigError(
            f"{row.where}: fold=all, but dataset={row.dataset} has no folds; set its splits.folds, or leave fold out"
        )
    if len(numbers) > 1:
        raise _differing(row.where, sorted(numbers))
    for fold in range(numbers.pop()):
        yield replace(
            row,
            name=f"{row.name}_fold={fold}",
            settings={**row.settings, "fold": fold},
            varied={**row.varied, "fold": fold},
            folds_of=row.name,
        )


def check_fold(settings: RunSettings, parts: Sequence[WeightedDataset], where: str) -> None:
    """Reject a fold that a dataset of the run does not have, and a run without rows to test on.

    Args:
        where: File and row, the start of messages.

    Raises:
        ConfigError: The fold does not fit the datasets.
    """
    fold = settings.fold
    splits = [part.dataset.settings.splits for part in parts]
    numbers = {0 if isinstance(one, Shares) else one.folds or 0 for one in splits}
    if fold is None:
        tests = settings.evaluation.split == "test"
        if tests and all(isinstance(one, SplitFolds) for one in splits):
            folds = max(numbers)
            raise ConfigError(
                f"{where}: dataset={parts[0].dataset.name} has splits.folds={folds} and no fixed test set, but fold is "
                f"not set; set fold to all or to a number from 0 to {folds - 1}"
            )
        return
    if len(numbers) > 1:
        raise _differing(where, sorted(numbers))
    folds = numbers.pop()
    if not folds:
        raise ConfigError(
            f"{where}: fold={fold}, but dataset={parts[0].dataset.name} has no folds; set its splits.folds, or leave "
            "fold out"
        )
    if not isinstance(fold, int) or fold >= folds:
        raise ConfigError(
            f"{where}: fold={fold}, but dataset={parts[0].dataset.name} has splits.folds={folds}; use all or a number "
            f"from 0 to {folds - 1}"
        )


def _differing(where: str, numbers: Sequence[int]) -> ConfigError:
    listed = " and ".join(map(str, numbers))
    return ConfigError(
        f"{where}: the datasets of the mix have {listed} folds; give all of them the same splits.folds, or leave fold "
        "out"
    )
