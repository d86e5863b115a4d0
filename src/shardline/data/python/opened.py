"""Opened Python data: the object that a source names, and the datasets of its splits."""

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from shardline.config.resolved import PythonObject
from shardline.core.error_texts import check_arguments, import_class, short_traceback
from shardline.core.errors import DataError, ShardlineError
from shardline.data.python.loaders import (
    LOADERS,
    StubTrainer,
    is_module,
    loader_of,
    notes_on,
    overrides,
    selected_rows,
)
from shardline.data.python.recorded import all_below, children_of
from shardline.data.python.seeds import seed_globals

ALL = "all"  # the only split of a dataset that does not have splits of its own


def row_name(split: str, row: int) -> str:
    """Return the name of a row in messages."""
    return f"row {row:,}" if split == ALL else f"row {row:,} of {split}"


@dataclass(frozen=True, kw_only=True)
class SplitRows:
    """Rows of a split.

    Attributes:
        dataset: The dataset of torch.
        selected: Indices of the rows in the dataset, if a sampler selects some.
    """

    dataset: Any
    selected: np.ndarray | None = None

    @property
    def is_iterable(self) -> bool:
        """Whether rows come only in the dataset's own order."""
        return any(cls.__name__ == "IterableDataset" for cls in type(self.dataset).__mro__) or not (
            hasattr(self.dataset, "__getitem__")
        )

    @property
    def length(self) -> int | None:
        """Number of rows; None if it is unknown until they are read."""
        if self.is_iterable:
            return None
        return len(self.dataset) if self.selected is None else len(self.selected)

    def index(self, row: int) -> int:
        """Return the index in the dataset of a row of the split."""
        return row if self.selected is None else int(self.selected[row])

    @property
    def digest(self) -> str:
        """Digest of which rows are in the split: its length, and indices of subsets and samplers."""
        digest = hashlib.sha256(f"{self.length}".encode())
        if self.selected is not None:
            digest.update(self.selected.tobytes())
        for one in all_below(self.dataset):
            digest.update(f"/{type(one).__qualname__}".encode())
            indices = getattr(one, "indices", None)
            if indices is not None and children_of(one):
                digest.update(np.asarray(indices, np.int64).tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A constructed object, and what it contains.

    Attributes:
        path: Import path, for messages.
        made: The object.
        splits: Rows by split; only `ALL` for a dataset.
        notes: Sentences on what Shardline does not use.
    """

    path: str
    made: Any
    splits: dict[str, SplitRows]
    notes: list[str] = field(default_factory=list)

    @property
    def has_splits(self) -> bool:
        """Whether the splits are the object's own."""
        return ALL not in self.splits

    @property
    def is_iterable(self) -> bool:
        """Whether a split can be read only in order."""
        return any(one.is_iterable for one in self.splits.values())

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digest of the rows of each split."""
        return {split: rows.digest for split, rows in self.splits.items()}

    @property
    def classes(self) -> tuple[tuple[str, ...], str]:
        """Names of classes, and where they are from; empty if no attribute contains them."""
        datasets = [one for rows in self.splits.values() for one in all_below(rows.dataset)]
        for one in (*datasets, self.made):
            names = getattr(one, "classes", None)
            if isinstance(names, list | tuple) and names and not callable(names):
                return tuple(map(str, names)), f"classes of {type(one).__name__}"
        for one in (self.made, *datasets):
            number = getattr(one, "num_classes", None)
            if isinstance(number, int) and number > 1:
                return tuple(map(str, range(number))), f"num_classes of {type(one).__name__}"
        return (), ""


def make(given: PythonObject) -> Any:
    """Import and construct the object of a source.

    Raises:
        ConfigError: the import fails.
        DataError: the object rejects its options, or is no dataset; names the remedy.
    """
    what, target = f"source {given.path}", import_class(given.path, "source.type")
    if not callable(target):
        if given.options:
            raise DataError(f"{what} is an object, which takes no options; remove source.options")
        return _checked(target, what)
    options = dict(given.options)
    if given.files and "files" in _parameters(target) and "files" not in options:
        options["files"] = list(given.files)
    check_arguments(
        target, options, what, "change source.options", kind=DataError, written=given.options
    )
    return _checked(called(lambda: target(**options), f"{what} cannot be made"), what)


def _checked(made: Any, what: str) -> Any:
    if not (is_module(made) or hasattr(made, "__getitem__") or hasattr(made, "__iter__")):
        raise DataError(
            f"{what} gives {type(made).__name__}, expected a subclass of shardline.sources.Source, a torch Dataset, a "
            "function that returns one, or a LightningDataModule; name one of these"
        )
    return made


def _parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):
        return {}


def called(work: Callable[[], Any], what: str) -> Any:
    """Call code of the user.

    Raises:
        DataError: the code fails; contains the frames of its traceback.
    """
    try:
        return work()
    except ShardlineError:
        raise
    except Exception as error:
        raise DataError(f"{what}: {short_traceback(error)}") from error


def open_data(given: PythonObject, seed: int) -> Opened:
    """Construct the object of a source, and find the rows of its splits.

    The global generators are seeded, and not restored.

    Args:
        seed: seed of the global generators; jobs have different seeds, so that their rows differ if they
            depend on chance.

    Raises:
        DataError: the code of the user fails, or the object has no rows that can be read.
    """
    what, notes = f"source {given.path}", list[str]()
    seed_globals(seed)
    made = make(given)
    if not is_module(made):
        rows = SplitRows(dataset=made)
        _check_length(rows, what)
        return Opened(path=given.path, made=made, splits={ALL: rows})
    notes += notes_on(made)
    splits = called(lambda: dict(_splits_of(made, what, notes)), f"{what} cannot be set up")
    for rows in splits.values():
        _check_length(rows, what)
    if "train" not in splits:
        raise DataError(f"{what} has no train_dataloader, expected one with the rows to train on")
    return Opened(path=given.path, made=made, splits=splits, notes=notes)


def _splits_of(module: Any, what: str, notes: list[str]) -> Iterator[tuple[str, SplitRows]]:
    module.trainer = StubTrainer(module)
    done = ""
    for split, name in LOADERS.items():
        if not overrides(module, name):
            key = "evaluation.split: validation" if split == "test" else "another module"
            notes.append(f"there is no {name}, so the {split} split has no rows; use {key}")
            continue
        stage = "test" if split == "test" else "fit"
        if stage != done:
            module.setup(stage)
            done = stage
        loader = loader_of(module, split, what)
        rows = SplitRows(dataset=loader.dataset)
        selected = None if rows.is_iterable else selected_rows(loader, split, notes)
        yield split, SplitRows(dataset=loader.dataset, selected=selected)


def _check_length(rows: SplitRows, what: str) -> None:
    if not rows.is_iterable and not hasattr(rows.dataset, "__len__"):
        raise DataError(
            f"{what}: {type(rows.dataset).__name__} has no __len__, so its rows cannot be counted; define __len__, or "
            "derive it from IterableDataset"
        )
