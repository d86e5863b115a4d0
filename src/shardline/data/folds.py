"""Datasets with folds: the splits of a run, and the checks that each run has rows in them."""

from collections.abc import Mapping, Sequence

from msgspec import UNSET, structs

from shardline.core.errors import DataError
from shardline.records.datasets import Manifest
from shardline_io.order.folds import SPLITS, by_split, counts_by_split

_SHOWN = 5


def of_fold(manifest: Manifest, fold: int | None) -> Manifest:
    """Return a manifest with the rows and statistics of a run's splits; its shards keep their rows by block.

    Args:
        manifest: the sealed manifest.
        fold: fold that the run tests on. None: the run trains on all folds.

    Raises:
        DataError: the dataset has no such fold.
    """
    if not manifest.folds:
        if fold is not None:
            raise DataError(
                f"dataset {manifest.dataset} has no folds, expected fold {fold}; set splits.folds of the dataset, or "
                "leave `fold` of the run out"
            )
        return manifest
    if fold is not None and fold >= manifest.folds:
        raise DataError(
            f"dataset {manifest.dataset} has folds 0 to {manifest.folds - 1}, expected fold {fold}; correct `fold` of "
            "the run"
        )
    recorded = manifest.statistics
    statistics = structs.replace(
        recorded, class_counts=counts_by_split(recorded.class_counts, fold), folds=UNSET
    )
    if fold is not None and recorded.folds:
        own = recorded.folds[fold]
        statistics = structs.replace(
            statistics, features=own.features, columns=own.columns, summary=own.summary
        )
    fitted = manifest.preprocessing
    if fold is not None and manifest.fold_preprocessing:
        fitted = manifest.fold_preprocessing[fold]
    return structs.replace(
        manifest,
        version=UNSET,
        folds=UNSET,
        preprocessing=fitted,
        fold_preprocessing=UNSET,
        splits=by_split(manifest.splits, fold),
        statistics=statistics,
    )


def check_folds(
    rows: Mapping[str, int], counts: Mapping[str, Sequence[int]], classes: Sequence[str], dataset: str
) -> None:  # fmt: skip
    """Reject a dataset on which a run could not train, or, with folds, not validate or test.

    Args:
        rows: number of rows by block.
        counts: number of rows of each class, by block; empty without classes.
        classes: names of the classes.
        dataset: the dataset's id.

    Raises:
        DataError: a split has no rows, or a class of held-out rows has no train rows.
    """
    folds = range(len(rows) // 2) if len(rows) > len(SPLITS) else (None,)
    for fold in folds:
        of_fold, splits = "" if fold is None else f" with fold={fold}", by_split(rows, fold)
        empty = [name for name in SPLITS if not splits[name]]
        if fold is None and not splits["train"]:
            raise DataError(
                f"dataset {dataset}: no row fell into the train split, expected at least one; "
                "give it a larger share in `splits`"
            )
        if fold is not None and empty:
            raise DataError(
                f"dataset {dataset}: no row fell into the {empty[0]} split{of_fold}, expected at least one; set "
                f"splits.folds to less than {len(folds)}, raise splits.validation, or add rows"
            )
        _check_classes(counts_by_split(counts, fold), classes, f"{dataset}{of_fold}")


def _check_classes(
    counts: Mapping[str, Sequence[int]], classes: Sequence[str], dataset: str
) -> None:
    """Reject classes with held-out rows but no train rows."""
    unlearnt = []
    for index, name in enumerate(classes if counts else ()):
        rows = {split: counts[split][index] for split in SPLITS}
        if any(rows.values()) and not rows["train"]:
            unlearnt.append(f'"{name}" ({", ".join(f"{rows[split]} {split}" for split in SPLITS)})')
    if unlearnt:
        raise DataError(
            f"dataset {dataset}: class {shown_names(unlearnt)} has no train row, expected at least one so that a "
            "training can learn it; move some of its rows to the train split (`splits`), add rows, or leave the class "
            "out"
        )


def shown_names(classes: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = len(classes) - _SHOWN
    return ", ".join(classes[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
