"""Sources by their settings: what is refused, the files that they read, and what of them counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from shardline.config import source_files
from shardline.core.errors import ConfigError
from shardline.core.suggest import suggest
from shardline.core.urls import is_url, open_table, table_content, without_secrets
from shardline.identity import FileDigests

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


SHIPPED_SOURCES = {
    "csv": "shardline.data.sources.csv:Csv",
    "delta": "shardline.data.sources.delta:Delta",
    "digits": "shardline.data.sources.digits:Digits",
    "hf": "shardline.data.sources.hf:Hf",
    "idx": "shardline.data.sources.idx:Idx",
    "image_folder": "shardline.data.sources.image_folder:ImageFolder",
    "jsonl": "shardline.data.sources.jsonl:Jsonl",
    "litdata": "shardline.data.sources.litdata:LitData",
    "mds": "shardline.data.sources.mds:Mds",
    "parquet": "shardline.data.sources.parquet:Parquet",
    "synthetic": "shardline.data.sources.synthetic:Synthetic",
    "text": "shardline.data.sources.text:Text",
    "webdataset": "shardline.data.sources.webdataset:WebDataset",
}
# Options that say where the content lies or how fast it is read, and not what it is.
_NOT_IN_IDENTITY = {"files", "table", "decode_threads"}


@dataclass(frozen=True, kw_only=True)
class Located:
    """A source whose content was found.

    Attributes:
        source: its settings, with what it gets of its files: their names and splits, what lies beside them and is not
            read, where its tokenizer lies.
        counted: those of its settings that the identity holds.
        files: the files that it reads, absolute; remote ones may not be fetched yet.
        content: digests by name, as the identity holds them.
    """

    source: dict[str, Any]
    counted: dict[str, Any]
    files: tuple[Path, ...]
    content: dict[str, str]


def locate(
    settings: Mapping[str, Any], workdir: Path, downloads: Path, digests: FileDigests, where: str
) -> Located:
    """Check a dataset's source and splits, and find the files and their digests.

    No network is touched, whatever the source.

    Args:
        settings: the dataset's settings.
        workdir: the project's folder, absolute.
        downloads: folder that remote files are fetched to.
        where: file and dataset, as messages begin.

    Raises:
        ConfigError: options do not fit together, a file is not there, or is in no
            split or in two; names the key.
        DataError: a file or table cannot be read.
    """
    source, splits = source_files.with_paths(settings["source"]), settings["splits"]
    check_source(source, where)
    check_splits(source, splits, where)
    files, known, not_read = source_files.find_files(source, workdir, downloads, where)
    content = digests.digest_all(files, workdir=workdir, known=known)
    if source["type"] == "delta":
        content = _delta_content(source, workdir, where)
    found = _found_options(source, splits, files, content, workdir, where)
    found |= {"not_read": not_read} if not_read else {}
    if source["type"] in WITH_TOKENS and source["tokenizer"] != BYTES:
        tokenizer = _find_tokenizer(source["tokenizer"], workdir, where)
        found["tokenizer"] = str(tokenizer)
        content = {**content, f"{len(files):05d}/tokenizer": digests.digest(tokenizer)}
    return Located(
        source={**source, **found},
        counted=_counted(source),
        files=tuple(files),
        content=content,
    )


def _counted(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the identity holds; a tokenizer's file counts by its content instead."""
    is_file = source.get("tokenizer", BYTES) != BYTES
    left_out = _NOT_IN_IDENTITY | ({"tokenizer"} if is_file else set())
    return {key: value for key, value in source.items() if key not in left_out}


def _find_tokenizer(name: str, workdir: Path, where: str) -> Path:
    path = workdir / name
    if not path.is_file():
        hint = f"write {name.rstrip('/')}/tokenizer.json" if path.is_dir() else "check the path"
        raise ConfigError(
            f"{where}.source.tokenizer={without_secrets(name)} is neither {BYTES} nor a file; {hint}"
        )
    return path


def _delta_content(source: Mapping[str, Any], workdir: Path, where: str) -> dict[str, str]:
    """Return what the identity holds of a Delta table: its id and the version.

    A local table is asked for its id; of a remote one it must be given, since
    reading the config touches no network.

    Raises:
        ConfigError: a remote table's id is not given.
        DataError: a local table, or its version, does not exist, or has another id.
    """
    table, version, given = source["table"], source["version"], source.get("table_id")
    if not is_url(table):
        found = str(open_table(str(workdir / table), version).metadata().id)
        if given not in (None, found):
            raise ConfigError(
                f"{where}.source.table_id={given}, but {table} has {found}; it was created again, so correct the id"
            )
        given = found
    elif not given:
        raise ConfigError(
            f"{where}.source.table_id is missing for {without_secrets(table)}; add what `shardline digest` "
            "prints for it"
        )
    return {"00000/Delta table": table_content(given, version)}


def _found_options(
    source: Mapping[str, Any], splits: Mapping[str, Any], files: Sequence[Path],
    content: Mapping[str, str], workdir: Path, where: str,
) -> dict[str, Any]:  # fmt: skip
    """Return what a shipped source gets beside its options: names and splits of its files.

    Args:
        content: the identity's `source`, whose keys hold the files' names.

    Raises:
        ConfigError: two files have one name, or a file is not in one split.
    """
    found: dict[str, Any] = {}
    if source["type"] in WITH_FILES:
        found["names"] = [key.partition("/")[2] for key in content]
        source_files.check_names(found["names"], where)
    if "files" in splits:
        found["splits"] = source_files.splits_of_files(
            splits["files"], files, found["names"], workdir, where
        )
    elif "column" in splits:
        found["splits"] = dict(splits)
    if source["type"] == "delta" and not is_url(source["table"]):
        found["table"] = str(workdir / source["table"])
    return found
