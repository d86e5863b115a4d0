"""Loaders of a LightningDataModule: the rows that they read, and what of them Shardline does not use."""

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from shardline.core.errors import DataError

LOADERS = {"train": "train_dataloader", "validation": "val_dataloader", "test": "test_dataloader"}
LIGHTNING = ("pytorch_lightning", "lightning", "lightning_fabric")
_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class StubTrainer:
    """Trainer of a data module while datasets are built: one process, no devices."""

    world_size = num_nodes = num_devices = 1
    global_rank = local_rank = node_rank = current_epoch = global_step = 0
    is_global_zero = training = True
    validating = testing = predicting = sanity_checking = False

    def __init__(self, datamodule: Any) -> None:
        self.datamodule = datamodule

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the data module reads trainer.{name}, but shards are built without a trainer; set what it needs in "
            "source.options"
        )


def overrides(made: object, name: str) -> bool:
    """Return whether a method is defined by the user, and not by Lightning."""
    return overrides_in(type(made), name)


def overrides_in(target: type, name: str) -> bool:
    """Return whether a method of a class is defined by the user, and not by Lightning."""
    for cls in target.__mro__:
        if _is_base(cls):  # Lightning itself has classes that derive from it, such as its demos
            return False
        if name in vars(cls):
            return True
    return False


def _is_base(cls: type) -> bool:
    return cls.__name__ == "LightningDataModule" and cls.__module__.partition(".")[0] in LIGHTNING


def is_module(made: object) -> bool:
    """Return whether an object is a LightningDataModule of either package."""
    return any(map(_is_base, type(made).__mro__))


def loader_of(module: Any, split: str, what: str) -> Any:
    """Return the loader of a split.

    Raises:
        DataError: the module returns several loaders, or no loader of a dataset.
    """
    name = LOADERS[split]
    with warnings.catch_warnings():  # the loader is looked at, and starts no workers
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        found = getattr(module, name)()
    if isinstance(found, list | tuple) and len(found) == 1:
        (found,) = found
    if not hasattr(found, "dataset"):
        number = f"{len(found)} loaders" if isinstance(found, list | tuple | dict) else ""
        raise DataError(
            f"{what}: {name} returns {number or type(found).__name__}, expected one DataLoader; return one of a "
            "ConcatDataset, or make a dataset of the config for each"
        )
    return found


def notes_on(module: Any) -> Iterator[str]:
    """Yield a sentence on each hook of the module that Shardline does not call."""
    for name in _HOOKS:
        if overrides(module, name):
            yield (
                f"{name} is not called; transform single samples in data.transform, and whole batches in the model"
            )


def selected_rows(loader: Any, split: str, notes: list[str]) -> np.ndarray | None:
    """Return the rows that a loader's own sampler selects; None for all rows.

    Args:
        notes: list for sentences on what Shardline does not use.
    """
    name, dataset = LOADERS[split], loader.dataset
    collate = getattr(loader, "collate_fn", None)
    if collate is not None and not _is_of_torch(collate):
        notes.append(
            f"collate_fn of {name} ({_shown(collate)}) is not called; write data.collate: {_path(collate)}, a "
            "function of the samples, each a dict by column, and `longest`"
        )
    sampler: Any = getattr(loader, "sampler", None)
    batches: Any = getattr(loader, "batch_sampler", None)
    is_own = batches is not None and type(batches).__name__ != "BatchSampler"
    if is_own:
        sampler = (row for batch in batches for row in batch)
    elif _takes_all(sampler, len(dataset)):
        return None
    what = f"{'batch_sampler' if is_own else 'sampler'} of {name}"
    shown = _shown(batches if is_own else sampler)
    rows = [int(row) for row in islice(sampler, 2 * len(dataset) + 1)]
    if len(set(rows)) < len(rows):
        notes.append(
            f"{what} ({shown}) draws rows repeatedly, and is not used; all rows of its dataset are in the split. To "
            "draw classes by weight, set data.class_weights"
        )
        return None
    order = "Shardline shuffles the train split, and reads the others in order"
    if len(rows) == len(dataset):
        notes.append(f"{what} ({shown}) decides an order, which is not used; {order}")
        return None
    notes.append(f"{what} ({shown}) selects {len(rows):,} of {len(dataset):,} rows; {order}")
    return np.sort(np.array(rows, np.int64))


def _takes_all(sampler: Any, length: int) -> bool:
    """Return whether a sampler is one that a DataLoader makes by itself."""
    kind = type(sampler).__name__
    if kind == "RandomSampler":
        return not sampler.replacement and sampler.num_samples >= length
    return kind in ("SequentialSampler", "NoneType")


def _is_of_torch(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("torch.utils.data")


def _shown(value: Any) -> str:
    return getattr(value, "__qualname__", None) or type(value).__name__


def _path(function: Any) -> str:
    name = getattr(function, "__qualname__", "")
    if not name or "<" in name or "." in name:
        return "mypkg.data:collate"
    return f"{function.__module__}:{name}"
