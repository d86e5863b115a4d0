"""Options of a dataset's source and splits that do not fit together, which no type of settings can express."""

from collections.abc import Mapping
from typing import Any, NoReturn

from shardline.core.errors import ConfigError
from shardline.core.suggest import suggest

BYTES = "bytes"  # the tokenizer that is no file
WITH_COLUMNS = ("csv", "delta", "parquet")
OF_LIBRARIES = ("hf", "litdata", "mds", "webdataset")
WITH_SPLITS = ("csv", "delta", "hf", "jsonl", "parquet")  # that a column may hold
WITH_FILES = (
    "csv", "hf", "idx", "image_folder", "jsonl", "litdata", "mds", "parquet", "text", "webdataset",
)  # fmt: skip
WITH_TOKENS = ("jsonl", "text")


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
    if source["type"] == "jsonl":
        _check_keys(source, where)
    if source["type"] in OF_LIBRARIES:
        _check_classes(source, where)
        # left out, columns are found in the files
        _check_rename(source, source.get("columns", source.get("rename", {})), where)
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
    if source["type"] == "csv" and source["delimiter"] == source["decimal"]:
        raise ConfigError(
            f'{where}.source.decimal="{source["decimal"]}" is the delimiter as well; set source.delimiter, such as ";"'
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
            _refuse_classes(given, False, where)
        return
    if source["task"] == "classification" and len(given) != 1:
        _refuse_classes(given, True, where)
    if source["task"] == "regression" and given:
        raise ConfigError(
            f"{where}.source.{given[0]} is given for task=regression; drop it, or set task: classification"
        )


def _check_classes(source: Mapping[str, Any], where: str) -> None:
    given = [key for key in ("classes", "num_classes") if source.get(key)]
    if len(given) > 1:
        raise ConfigError(f"{where}.source: classes and num_classes are both given; drop one")
    if given and source["type"] == "hf":
        if "label" not in source:
            raise ConfigError(
                f"{where}.source.{given[0]} is given without a label; name the label's column, or drop it"
            )
        if source["task"] == "regression":
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


def _check_keys(source: Mapping[str, Any], where: str) -> None:
    columns, tokenize = source.get("columns", {}), source["tokenize"]
    if not columns and not tokenize:
        raise ConfigError(
            f"{where}.source: neither columns nor tokenize is given; name what rows have, such as tokenize: "
            "{tokens: text}"
        )
    for name in tokenize:
        if name in columns:
            raise ConfigError(
                f"{where}.source.tokenize.{name} is among source.columns as well; rename one of them"
            )
    if "labels" in tokenize and "label" in source:
        raise ConfigError(
            f"{where}.source.tokenize.labels is what label={source['label']} becomes; drop one of them"
        )
    if not tokenize and (source["tokenizer"] != BYTES or "end" in source):
        key = "end" if "end" in source else "tokenizer"
        raise ConfigError(
            f"{where}.source.{key} is given without tokenize; add tokenize: {{tokens: KEY}}, or drop it"
        )
    _check_rename(source, columns, where)
    given = [key for key in ("classes", "num_classes") if source.get(key)]
    if len(given) != ("label" in source):
        _refuse_classes(given, "label" in source, where)


def _refuse_classes(given: list[str], has_label: bool, where: str) -> NoReturn:
    if not has_label:
        raise ConfigError(
            f"{where}.source.{given[0]} is given without a label; name the label's column, or drop it"
        )
    found = f"{' and '.join(given)} are both" if given else "neither classes nor num_classes is"
    raise ConfigError(
        f"{where}.source: {found} given; list classes, or give num_classes where labels are 0, 1, ..."
    )


def _check_named(source: Mapping[str, Any], where: str) -> None:
    columns = source["columns"]
    if source["features"]:
        raise ConfigError(
            f"{where}.source.features and columns are both given; list the features among the columns"
        )
    _check_rename(source, columns, where)
    for name, written in columns.items() if source["type"] == "csv" else ():
        if "[" in written or written.startswith("bytes"):
            raise ConfigError(
                f'{where}.source.columns.{name}="{written}" is not a number or text, which is all that CSV files '
                "hold; convert them to Parquet"
            )


def _check_rename(source: Mapping[str, Any], columns: Mapping[str, Any], where: str) -> None:
    rename = source.get("rename", {})
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


def check_splits(source: Mapping[str, Any], splits: Mapping[str, Any], where: str) -> None:
    """Refuse shares that do not sum to 1, and splits that a source cannot tell.

    Raises:
        ConfigError: names the key.
    """
    for key, types in (("column", WITH_SPLITS), ("files", WITH_FILES)):
        if key in splits and source["type"] not in types:
            raise ConfigError(
                f"{where}.splits.{key} is for sources of type {', '.join(types)}, not {source['type']}; "
                "give shares (train, validation, test)"
            )
    if "column" in splits and splits["column"] in (
        *source.get("features", ()),
        source.get("label"),
    ):
        raise ConfigError(
            f"{where}.splits.column={splits['column']} is a feature or the label too; drop it there"
        )
    if "column" in splits or "files" in splits:
        return
    total = sum(splits.values())
    if abs(total - 1) > 1e-9:
        raise ConfigError(f"{where}.splits sum to {total:g}, not 1; change one of {dict(splits)}")
