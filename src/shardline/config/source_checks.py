"""Options of a dataset's source and splits that do not fit together, which no type of settings can express."""

from collections.abc import Mapping
from typing import Any

from shardline.core.errors import ConfigError
from shardline.core.suggest import suggest

BYTES = "bytes"  # the tokenizer that is no file
WITH_COLUMNS = ("csv", "delta", "parquet")
WITH_FILES = ("csv", "idx", "image_folder", "parquet", "text")
WITH_TOKENS = ("text",)


def check_source(source: Mapping[str, Any], where: str) -> None:
    """Refuse options that do not fit together.

    Raises:
        ConfigError: names the option.
    """
    classes = [str(name) for name in source.get("classes", ())]
    for name in classes:
        if classes.count(name) > 1:
            raise ConfigError(f"{where}.source.classes lists {name} twice; drop one")
    if source["type"] in WITH_FILES and not source["files"]:
        raise ConfigError(f"{where}.source.files is empty; list at least one file")
    if source["type"] in WITH_COLUMNS:
        _check_task(source, where)
        _check_columns(source, where)
    if source["type"] == "image_folder":
        _check_size(source, where)
    if source["type"] in WITH_TOKENS and source["tokenizer"] == BYTES:
        _check_bytes(source, where)
    if source["type"] == "csv" and (
        len(source["delimiter"]) != 1 or not source["delimiter"].isascii()
    ):
        raise ConfigError(
            f'{where}.source.delimiter="{source["delimiter"]}" is not one ASCII character; give one'
        )


def _check_size(source: Mapping[str, Any], where: str) -> None:
    at_build, size = source["decode"] == "at_build", source.get("size")
    if at_build and size is None:
        raise ConfigError(
            f"{where}.source.size is missing; add it, or keep the files' bytes with decode: at_read"
        )
    if not at_build and size is not None:
        raise ConfigError(
            f"{where}.source.size={size}, but decode=at_read keeps images as they are; drop it, and bring them to a "
            "size with data.transform"
        )
    if size is not None and len(size) != 2:
        raise ConfigError(f"{where}.source.size={size} is not [height, width]; give two numbers")


def _check_bytes(source: Mapping[str, Any], where: str) -> None:
    if source["special_tokens"]:
        raise ConfigError(
            f"{where}.source.special_tokens=true, but tokenizer=bytes has none; drop it, or name a tokenizer.json"
        )
    end = source.get("end", 0)
    if isinstance(end, int) and end > 255:
        raise ConfigError(
            f"{where}.source.end={end} is not a byte, expected 0 to 255 for tokenizer=bytes; give one, or a text"
        )


def _check_task(source: Mapping[str, Any], where: str) -> None:
    given = [key for key in ("classes", "num_classes") if source.get(key)]
    if "label" not in source:
        if "columns" not in source:
            raise ConfigError(f"{where}.source.label is missing; add it")
        if given:
            raise ConfigError(
                f"{where}.source.{given[0]} is given without a label; name the label's column, or drop it"
            )
        return
    if source["task"] == "classification" and len(given) != 1:
        found = f"{' and '.join(given)} are both" if given else "neither classes nor num_classes is"
        raise ConfigError(
            f"{where}.source: {found} given; list classes, or give num_classes where labels are 0, 1, ..."
        )
    if source["task"] == "regression" and given:
        raise ConfigError(
            f"{where}.source.{given[0]} is given for task=regression; drop it, or set task: classification"
        )


def _check_columns(source: Mapping[str, Any], where: str) -> None:
    if "columns" in source:
        _check_named(source, where)
    elif "rename" in source:
        raise ConfigError(f"{where}.source.rename is given without columns; add them, or drop it")
    features = source["features"]
    for name in features:
        if features.count(name) > 1:
            raise ConfigError(f"{where}.source.features lists {name} twice; drop one")
        for key in ("label", "id_column"):
            if name == source.get(key):
                raise ConfigError(f"{where}.source.features holds {name}, which is {key}; drop it")


def _check_named(source: Mapping[str, Any], where: str) -> None:
    columns, rename = source["columns"], source.get("rename", {})
    if source["features"]:
        raise ConfigError(
            f"{where}.source.features and columns are both given; list the features among the columns"
        )
    for name in rename:
        if name not in columns:
            raise ConfigError(
                f"{where}.source.rename.{name} is not a column; {suggest(name, columns)}"
            )
    in_files = [rename.get(name, name) for name in columns]
    for name in in_files:
        if in_files.count(name) > 1:
            raise ConfigError(f"{where}.source.rename: {name} is two columns; drop one")
    if "labels" in columns and source.get("label"):
        raise ConfigError(
            f"{where}.source.columns.labels is what label={source['label']} becomes; drop one of them"
        )
    for name, written in columns.items() if source["type"] == "csv" else ():
        if "[" in written or written.startswith("bytes"):
            raise ConfigError(
                f'{where}.source.columns.{name}="{written}" is not a number or text, which is all that CSV files '
                "hold; convert them to Parquet"
            )


def check_splits(source: Mapping[str, Any], splits: Mapping[str, Any], where: str) -> None:
    """Refuse shares that do not sum to 1, and splits that a source cannot tell.

    Raises:
        ConfigError: names the key.
    """
    for key, types in (("column", WITH_COLUMNS), ("files", WITH_FILES)):
        if key in splits and source["type"] not in types:
            raise ConfigError(
                f"{where}.splits.{key} is for sources of type {', '.join(types)}, not {source['type']}; "
                "give shares (train, validation, test)"
            )
    if "column" in splits and splits["column"] in (*source["features"], source.get("label")):
        raise ConfigError(
            f"{where}.splits.column={splits['column']} is a feature or the label too; drop it there"
        )
    if "column" in splits or "files" in splits:
        return
    total = sum(splits.values())
    if abs(total - 1) > 1e-9:
        raise ConfigError(f"{where}.splits sum to {total:g}, not 1; change one of {dict(splits)}")
