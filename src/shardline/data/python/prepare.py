"""The call of `prepare_data` of a LightningDataModule, once for a dataset."""

from pathlib import Path

from shardline.config.resolved import PythonObject
from shardline.core.error_texts import import_class
from shardline.data.python.loaders import StubTrainer, is_module, overrides, overrides_in
from shardline.data.python.opened import called, make
from shardline.data.python.seeds import seed_globals
from shardline.data.sources import Source


def is_unprepared(path: str, shards: Path) -> bool:
    """Return whether a data module has a `prepare_data` that its job has not called yet.

    Args:
        path: import path of the source.
        shards: folder of the dataset's shards.
    """
    if (shards / "prepared.json").exists():
        return False
    target = import_class(path, "source.type")
    names = {cls.__name__ for cls in getattr(target, "__mro__", ())}
    return "LightningDataModule" in names and overrides_in(target, "prepare_data")


def prepare(given: PythonObject) -> None:
    """Call `prepare_data` of an object that is a LightningDataModule; other objects need no preparation.

    Raises:
        DataError: the code of the user fails.
    """
    target = import_class(given.path, "source.type")
    if isinstance(target, type) and issubclass(target, Source):
        return
    seed_globals(0)
    made = make(given)
    if is_module(made) and overrides(made, "prepare_data"):
        made.trainer = StubTrainer(made)
        called(made.prepare_data, f"source {given.path}: prepare_data fails")
