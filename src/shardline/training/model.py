"""Making a run's model from its import path."""

import importlib
import inspect
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from shardline.config.run_spec import RunSpec
from shardline.core.errors import ConfigError

_MAX_FRAMES = 4


def import_class(path: str, what: str) -> Any:
    """Import `module:Class`.

    Raises:
        ConfigError: the import fails; carries the user's own frames of the
            traceback, without those of Python's import system and ours.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ConfigError(f"{what}={path} does not import: {short_traceback(error)}") from error


def short_traceback(error: BaseException) -> str:
    """Return the error's line and the user's own frames, deepest last.

    Frames of installed packages, of Python's import system and of this library
    are left out.
    """
    ours = Path(__file__).parents[1]
    frames = [
        f"{frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not {"importlib", "site-packages"} & set(Path(frame.filename).parts)
        and ours not in Path(frame.filename).parents
        and not frame.filename.startswith("<")
    ]
    if isinstance(error, SyntaxError):
        frames.append(f"{error.filename}, line {error.lineno}: {(error.text or '').strip()}")
    last = f"{type(error).__name__}: {error}"
    return "\n  ".join([last, *frames[-_MAX_FRAMES:]])


def make_model(spec: RunSpec, schema: Mapping[str, Any]) -> pl.LightningModule:
    """Create a run's model.

    The constructor gets `settings.model_args` and, where it names them,
    `num_classes` and `feature_shape` (tuple of int) from the dataset's schema, or
    `columns` (type by name, such as `int32[*]`) where it is no table's.

    Raises:
        ConfigError: the class does not import, is no LightningModule, or
            refuses its arguments.
    """
    cls = import_class(spec.model_class, f'run "{spec.title}": model')
    if not (isinstance(cls, type) and issubclass(cls, pl.LightningModule)):
        raise ConfigError(
            f'run "{spec.title}": model={spec.model_class} is not a '
            "pytorch_lightning.LightningModule; derive it from one"
        )
    arguments = arguments_of(spec, schema)
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f'run "{spec.title}": model={spec.model_class} does not take {arguments} ({error}); '
            "change the model_args columns"
        ) from None
    return cls(**arguments)


def arguments_of(spec: RunSpec, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run's model is constructed with; see `make_model`."""
    cls = import_class(spec.model_class, f'run "{spec.title}": model')
    given: dict[str, Any] = {"num_classes": len(schema["classes"])}
    if "columns" in schema:
        given["columns"] = dict(schema["columns"])
    else:
        given["feature_shape"] = tuple(schema["feature_shape"])
    parameters = inspect.signature(cls).parameters
    arguments = {key: value for key, value in given.items() if key in parameters}
    return {**arguments, **spec.settings.model_args}
