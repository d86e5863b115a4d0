"""Make a run's model from its import path."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from safetensors.torch import load_file

from shardline.checkpoints.weights import load_weights
from shardline.config.resolved import RunSpec
from shardline.config.settings.run_settings import Ensemble
from shardline.core.construct import make_values
from shardline.core.error_texts import check_arguments, import_class
from shardline.core.errors import ConfigError
from shardline.data.collate import ColumnTuple
from shardline.data.columns import columns_of, features_of
from shardline.data.sample_columns import sample_columns
from shardline.identity import watch_reads
from shardline.records.datasets import DatasetSchema
from shardline.training.ensembles import join_outputs
from shardline.training.models.classifier_base import Classifier


def make_model(spec: RunSpec, schema: DatasetSchema) -> pl.LightningModule:
    """Make a run's model.

    The constructor gets `settings.model_args` and each of these arguments that it has:

    - `num_classes`: Number of classes of the dataset.
    - `feature_shape`: Shape of a row's features (tuple of int), if a row is features and a label.
    - `category_sizes`: Number of indices of each column of `categories` (tuple of int), with 0 for unknown values.
    - `task` and `num_targets`: `regression` or `multilabel`, and the numbers or flags in a row's labels, for
      a `Classifier` of labels that are no classes.
    - `columns`: Type by column, such as `int32[*]`, if the source names columns.
    - `sample_columns`: Columns after `data.pack` and `data.transform`, see `data.sample_columns`.

    Tables in `model_args` that name objects are constructed first, see `core.objects`.
    A constructor with `**kwargs` also gets the arguments that its base classes require.

    Raises:
        ConfigError: The class cannot be imported, is not a LightningModule, or rejects its arguments.
    """
    cls = import_class(spec.model_class, f'run "{spec.title}": model')
    if not (isinstance(cls, type) and issubclass(cls, pl.LightningModule)):
        found, remedy = _what(cls)
        raise ConfigError(
            f'run "{spec.title}": model={spec.model_class} is {found}, expected a LightningModule of lightning or '
            f"pytorch_lightning; {remedy}"
        )
    arguments, what = arguments_of(spec, schema), f'run "{spec.title}": model={spec.model_class}'
    is_shipped = cls.__module__.startswith("shardline.training.models.")
    if is_shipped and schema.categories and "category_sizes" not in _parameters(cls):
        raise ConfigError(
            f"{what} does not read the column categories of {', '.join(schema.categories)}; set encode: onehot in "
            "source.preprocess, or use a model with the argument category_sizes"
        )
    passed = [*(["feature_shape"] if features_of(schema) else []), "num_classes"]
    passed += ["feature_shape", "category_sizes"] if schema.categories else []
    passed += ["columns", "sample_columns"] if schema.columns else []
    passed += [name for name in ("task", "num_targets") if name in arguments]
    check_arguments(cls, arguments, what, "change the model_args columns", passed=passed)
    where = f'run "{spec.title}"'
    made = make_values(spec.settings.model_args, "model_args", where)
    model: pl.LightningModule = cls(**{**arguments, **made})
    watch_reads.look()  # finds weights that compiled code has mapped into memory
    return model


def _what(found: object) -> tuple[str, str]:
    """Return what an object is that is no class of LightningModules, and the remedy, for messages."""
    if isinstance(found, pl.LightningModule):
        return f"an object of {type(found).__qualname__}, not its class", "name the class"
    if not isinstance(found, type):
        kind = type(found).__name__
        return f"a {kind}", "name a class; for a program with its own loop, write a script"
    if issubclass(found, pl.LightningDataModule):
        return "a LightningDataModule", "name it in source.type of a dataset, and your model here"
    if issubclass(found, torch.nn.Module):
        return (
            "a torch.nn.Module",
            "derive it from LightningModule, with a training_step that returns the loss",
        )
    bases = (f"{one.__module__}.{one.__qualname__}" for one in found.__bases__ if one is not object)
    listed = ", ".join(bases)
    return f"a class of {listed}" if listed else "a class without a base", "derive it from one"


def sealed_model(spec: RunSpec, schema: DatasetSchema, weights: Path) -> pl.LightningModule:
    """Return a run's model in evaluation mode, with sealed weights; see `make_model`.

    The model of an ensemble has the weights of its members, and averages their outputs.
    """
    if isinstance(spec.settings.combined, Ensemble):
        members = [_loaded(spec, schema, one.file) for one in spec.members]
        return join_outputs(members, schema.task, spec.settings.combined.outputs, spec.title)
    return _loaded(spec, schema, weights)


def _loaded(spec: RunSpec, schema: DatasetSchema, weights: Path) -> pl.LightningModule:
    model = make_model(spec, schema)
    load_weights(model, load_file(weights))
    return model.eval()


def arguments_of(spec: RunSpec, schema: DatasetSchema) -> dict[str, Any]:
    """Return the constructor arguments of a run's model; see `make_model`."""
    cls = import_class(spec.model_class, f'run "{spec.title}": model')
    given: dict[str, Any] = {"num_classes": len(schema.classes)}
    if schema.columns:
        given["columns"] = dict(schema.columns)
    if features := features_of(schema):
        given["feature_shape"] = features.shape
    if schema.categories:
        given["category_sizes"] = tuple(schema.categories.values())
        if features := columns_of(schema).get("features"):
            given["feature_shape"] = features.shape
    parameters = _parameters(cls)
    if "sample_columns" in parameters:
        given["sample_columns"] = sample_columns(schema, spec.settings.data)
    if issubclass(cls, Classifier) and schema.task in ("regression", "multilabel"):
        given |= {"task": schema.task, "num_targets": len(schema.targets or [""])}
    arguments = {key: value for key, value in given.items() if key in parameters}
    return {**arguments, **spec.settings.model_args}


def inputs_of(model: pl.LightningModule, batch: Mapping[str, Any]) -> list[Any]:
    """Return the inputs of `forward` in a batch by column; the whole batch if it lacks their columns."""
    names = _input_columns(model, batch)
    return [batch[name] for name in names] if batch.keys() >= set(names) else [batch]


def is_scorable(
    model: pl.LightningModule, batch: tuple[Any, ...] | Mapping[str, Any], schema: DatasetSchema
) -> bool:
    """Return whether Shardline knows what `forward` gets, and can score what it returns.

    Args:
        batch: Batch of the dataset: features and labels, or values by column.
        schema: Schema of the dataset.
    """
    if isinstance(batch, ColumnTuple):
        return "labels" in batch.named
    if not isinstance(batch, Mapping):
        return True
    is_known = isinstance(model, Classifier) or (
        bool(schema.weighted) and bool(features_of(schema))
    )
    return is_known and batch.keys() >= set(_input_columns(model, batch))


def _input_columns(model: pl.LightningModule, batch: Mapping[str, Any]) -> tuple[str, ...]:
    return model.input_columns(batch) if isinstance(model, Classifier) else ("features",)


def _parameters(cls: type) -> set[str]:
    """Return the constructor's parameter names and, if it has `**kwargs`, those that its bases require."""
    own = inspect.signature(cls).parameters
    names = set(own)
    if not _has_kwargs(own):
        return names
    for base in cls.__mro__[1:]:
        if base is pl.LightningModule:
            break
        if "__init__" not in vars(base):
            continue
        below = inspect.signature(base).parameters
        # optional parameters of bases keep their defaults, so that existing models do not change
        names |= {name for name, one in below.items() if one.default is one.empty}
        if not _has_kwargs(below):
            break
    return names


def _has_kwargs(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in parameters.values())
