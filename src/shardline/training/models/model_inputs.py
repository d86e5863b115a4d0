"""Inputs of the shipped models: check columns of a dataset, and bring images into one layout."""

from collections.abc import Mapping

import torch

from shardline.core.errors import ConfigError, DataError
from shardline.core.suggest import did_you_mean
from shardline.data.collate import NamedBatch
from shardline.data.columns import Column
from shardline_io.column_names import WEIGHT

SampleColumns = Mapping[str, str | None] | None
FEATURES = "features"  # of a table


def column_of(columns: SampleColumns, name: str, key: str) -> Column | None:
    """Return a column of the samples; None if its type is unknown before samples are made.

    Args:
        columns: Columns of the samples, see `shardline.data.sample_columns`.
        name: Name of the column.
        key: Setting that names the column, for the message.

    Raises:
        ConfigError: The samples have no such column; the message lists their columns.
    """
    if columns is None:
        return None
    if name not in columns:
        remedy = did_you_mean(name, columns, otherwise=f"set {key} to one of these")
        raise ConfigError(
            f"{key}={name} is not a column of the samples, which have {', '.join(columns) or 'none'}; {remedy}"
        )
    written = columns[name]
    return None if written is None else Column.parse(name, written)


def token_column(
    columns: SampleColumns, name: str, example: str = "int32[*]", remedy: str = ""
) -> Column | None:
    """Return a column of tokens; None if its type is unknown before samples are made.

    Args:
        example: Example of a valid type, for the message.
        remedy: Remedy for a column of text or bytes.

    Raises:
        ConfigError: There is no such column, or its values are not one-dimensional integers.
    """
    column = column_of(columns, name, "model_args.column")
    if column is None or columns is None:
        return None
    is_number = column.dtype.removeprefix("u").startswith("int")
    is_table, is_array = columns.keys() == {"features", "labels"}, column.kind == "array"
    if column.varies + len(column.shape) != 1 or not is_number or not is_array or is_table:
        remedy = "set model_args.column to a column of tokens" if is_array or not remedy else remedy
        raise ConfigError(
            f"model_args.column={name} is {column}{' (features of a table)' if is_table else ''}, expected integers "
            f"such as {example}; {remedy}"
        )
    return column


def checked_tokens(
    batch: NamedBatch, name: str, *, vocab: int, most: int, vocab_key: str, most_key: str
) -> torch.Tensor:
    """Return the tokens of a batch [B, L] as int64.

    Args:
        name: Column of the tokens.
        vocab: Number of tokens in the model's vocabulary.
        most: Longest row in tokens.
        vocab_key: Setting of `vocab`, for messages.
        most_key: Setting of `most`, for messages.

    Raises:
        DataError: A token is not in the vocabulary, or a row is longer than `most`.
    """
    tokens: torch.Tensor = batch[name].long()
    if tokens.shape[1] > most:
        raise DataError(
            f"column {name} has a row of {tokens.shape[1]:,} values, expected at most {most:,} ({most_key}); raise "
            "this limit, or cut the rows by data.pack or in the source"
        )
    if torch.compiler.is_exporting():
        return tokens  # a traced program cannot raise errors about data
    # worth the wait: on a GPU the embedding's own check would kill the process
    least, largest = (int(of) for of in tokens.aminmax())
    if least < 0 or largest >= vocab:
        raise DataError(
            f"column {name} has the token {least if least < 0 else largest}, expected 0 to {vocab - 1:,}; set "
            f"{vocab_key} to the tokenizer's number of tokens"
        )
    return tokens


def image_shape(columns: SampleColumns, name: str, key: str) -> tuple[int, int, int] | None:
    """Return the (channels, height, width) of an image column; None if unknown before samples are made.

    In three dimensions, the smaller one of the first and the last is the channels.

    Raises:
        ConfigError: There is no such column, or its values are not images.
    """
    column = column_of(columns, name, key)
    if column is None:
        return None
    shape = column.shape
    if column.kind != "array" or column.varies or column.optional or len(shape) not in (2, 3):
        raise ConfigError(
            f"{key}={name} is {column}, expected an image such as uint8[height,width,3], float32[3,height,width] or "
            f"float32[height,width] in each sample; {_remedy(column)}"
        )
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if shape[0] <= shape[2]:
        return shape[0], shape[1], shape[2]
    return shape[2], shape[0], shape[1]


def is_table(columns: SampleColumns) -> bool:
    """Return whether samples are rows of a table: features, labels and possibly a weight."""
    return columns is not None and columns.keys() - {WEIGHT} == {FEATURES, "labels"}


def labelled_images(
    columns: SampleColumns, column: str, num_classes: int, model: str, num_targets: int = 0
) -> tuple[int, int, int] | None:
    """Return the (channels, height, width) of images with labels; None if unknown before samples are made.

    Args:
        column: Column of the images; in a table the images are its features.
        num_classes: Number of classes of the dataset.
        model: Name of the model, for messages.
        num_targets: Numbers or flags in a row's labels, which need no classes.

    Raises:
        ConfigError: The dataset has no classes, no labels or no images.
    """
    if num_classes < 2 and not num_targets:
        raise ConfigError(
            f"model={model} needs at least 2 classes, but the dataset has {num_classes}; set `classes` or "
            "`num_classes` of the source, or use another model"
        )
    if is_table(columns):
        column = FEATURES
    elif columns is not None and "labels" not in columns:
        raise ConfigError(
            f"model={model} needs a column `labels`, but the samples have {', '.join(columns)}; rename the column of "
            "the classes to labels in the source"
        )
    return image_shape(columns, column, "model_args.column")


def _remedy(column: Column) -> str:
    if column.kind == "bytes":
        return "decode it by data.transform and data.eval_transform"
    if column.varies or column.optional:
        return "bring all images to one size by a transform"
    return "use a model for flat features, such as mlp"


def as_images(images: torch.Tensor, channels: int, dtype: torch.dtype) -> torch.Tensor:
    """Convert images to [B, channels, H, W] of a type; uint8 values are divided by 255.

    Args:
        images: Images [B, channels, H, W], [B, H, W, channels] or, with one channel, [B, H, W].

    Raises:
        DataError: The images have another shape.
    """
    shape = list(images.shape)
    scaled = images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)
    if len(shape) == 3 and channels == 1:
        return scaled.unsqueeze(1)
    if len(shape) == 4 and shape[1] == channels:
        return scaled
    if len(shape) == 4 and shape[3] == channels:
        return scaled.permute(0, 3, 1, 2)
    raise DataError(
        f"images have shape {shape}, expected [B, {channels}, H, W] or [B, H, W, {channels}]; set "
        "model_args.channels to their number of channels, or fix the source or the transform"
    )
