"""Checks of the settings of sources, their files, and what counts in the identity."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from msgspec import UNSET

from shardline.config import source_files
from shardline.config.checked_preprocess import check_preprocess
from shardline.config.checked_splits import WITH_FILES, WITH_SPLITS, check_splits, labels_of
from shardline.config.resolved import as_type
from shardline.config.settings import Plain
from shardline.config.settings.config import (
    DatasetSettings,
    SplitColumn,
    SplitFiles,
)
from shardline.config.settings.source_settings import (
    AnySource,
    ArraysSettings,
    ColumnsSettings,
    CsvSettings,
    DeltaSettings,
    HfSettings,
    ImageFolderSettings,
    JsonLinesSettings,
    OwnSourceSettings,
    SamplesSettings,
    TokenizedSettings,
)
from shardline.config.validate import Problems
from shardline.core.digests import FileDigests
from shardline.core.errors import ConfigError, DataError
from shardline.core.suggest import suggest
from shardline.core.urls import is_url, open_table, table_content, without_secrets

WithClasses = ArraysSettings | ColumnsSettings | HfSettings | JsonLinesSettings | SamplesSettings
BYTES = "bytes"  # the tokenizer without a file
WITH_TOKENS = ("jsonl", "text")


def check_source(source: AnySource, where: str) -> None:
    """Reject options of a source that cannot be combined.

    Raises:
        ConfigError: Options cannot be combined; the message names the key.
    """
    problems = Problems()
    for check in _checks_of(source, where):
        with problems.gather():
            check()
    problems.refuse()


def _checks_of(source: AnySource, where: str) -> Iterator[Callable[[], None]]:
    """Yield checks that do not depend on each other."""
    yield partial(_check_lists, source, where)
    match source:
        case ColumnsSettings():
            yield partial(_check_task, source, where)
            yield partial(_check_columns, source, where)
            if source.preprocess is not None:
                yield partial(check_preprocess, source, source.preprocess, where)
        case JsonLinesSettings():
            yield partial(_check_keys, source, where)
        case ArraysSettings():
            yield partial(_check_arrays, source, where)
        case SamplesSettings() | HfSettings():
            yield partial(_check_classes, source, where)
            # without columns, they are read from the files
            yield partial(_check_rename, source, source.columns or source.rename or {}, where)
        case ImageFolderSettings():
            yield partial(_check_size, source, where)
        case OwnSourceSettings():
            yield partial(_check_classes, source, where)
    if isinstance(source, TokenizedSettings) and source.tokenizer == BYTES:
        yield partial(_check_bytes, source, where)
    if isinstance(source, CsvSettings):
        yield partial(_check_delimiter, source, where)


def _check_lists(source: AnySource, where: str) -> None:
    classes = [str(name) for name in getattr(source, "classes", ()) or ()]
    for name in classes:
        if classes.count(name) > 1:
            raise ConfigError(f"{where}.source.classes lists {name} twice; drop one")
    if source.type in WITH_FILES and not getattr(source, "files", ()):
        raise ConfigError(f"{where}.source.files is empty; list at least one file")


def _check_delimiter(source: CsvSettings, where: str) -> None:
    if len(source.delimiter) != 1 or not source.delimiter.isascii():
        raise ConfigError(
            f'{where}.source.delimiter="{source.delimiter}" is not one ASCII character; give one'
        )
    if source.delimiter == source.decimal:
        raise ConfigError(
            f'{where}.source.decimal="{source.decimal}" is also the delimiter; set source.delimiter, such as ";"'
        )
    if source.thousands == source.decimal:
        raise ConfigError(
            f'{where}.source.thousands="{source.thousands}" is also the decimal mark; set source.decimal: '
            f'"{"." if source.decimal == "," else ","}", or remove thousands'
        )
    keys = {source.id_column, *(labels_of(source) if source.task == "classification" else ())}
    if same := [name for name in source.percent if name in keys]:
        raise ConfigError(
            f"{where}.source.percent contains {same[0]}, expected columns of features or of source.columns; drop it"
        )


def _check_size(source: ImageFolderSettings, where: str) -> None:
    at_build, size = source.decode == "at_build", source.size
    if at_build and size is UNSET:
        raise ConfigError(
            f"{where}.source.size is missing; add it, or keep the files' bytes with decode: at_read"
        )
    if not at_build and size is not UNSET:
        raise ConfigError(
            f"{where}.source.size={size}, but decode=at_read keeps images as they are; drop it, and resize "
            "images with data.transform"
        )
    if size is not UNSET and len(size) != 2:
        raise ConfigError(f"{where}.source.size={size} is not [height, width]; give two numbers")


def _check_bytes(source: TokenizedSettings, where: str) -> None:
    if source.special_tokens:
        raise ConfigError(
            f"{where}.source.special_tokens=true, but tokenizer=bytes has none; drop it, or name a tokenizer.json"
        )
    if isinstance(source.end, int) and source.end > 255:
        raise ConfigError(
            f"{where}.source.end={source.end} is not a byte, expected 0 to 255 for tokenizer=bytes; give one, or a text"
        )


def _given(source: WithClasses | OwnSourceSettings) -> list[str]:
    return [key for key in ("classes", "num_classes") if getattr(source, key)]


def _check_task(source: ColumnsSettings, where: str) -> None:
    given = _given(source)
    if source.label is UNSET:
        if source.columns is UNSET:
            raise ConfigError(f"{where}.source.label is missing; add it")
        if given:
            _refuse_classes(given, False, where)
        return
    if source.task == "classification" and len(given) != 1:
        _refuse_classes(given, True, where)
    _check_labels(source, given, where)


def _check_labels(
    source: ArraysSettings | ColumnsSettings | HfSettings, given: list[str], where: str
) -> None:
    has_many, weight = isinstance(source.label, list), getattr(source, "weight", UNSET)
    if (source.task == "regression" and given) or (
        source.task == "multilabel" and has_many and given
    ):
        raise ConfigError(
            f"{where}.source.{given[0]} is given for task={source.task}; drop it, or set task: classification"
        )
    if weight is not UNSET and weight in labels_of(source):
        raise ConfigError(
            f"{where}.source.weight={weight} is also the label; name another column, or drop it"
        )
    if weight is not UNSET and "weight" in (source.columns or {}):
        raise ConfigError(
            f"{where}.source.columns.weight conflicts with weight={weight}, which becomes the column `weight`; "
            "rename one of them"
        )
    if source.task == "classification" and has_many:
        raise ConfigError(
            f"{where}.source.label={source.label} lists columns for task=classification, expected one column; name "
            "one, or set task: multilabel or task: regression"
        )


def _check_classes(
    source: ArraysSettings | SamplesSettings | HfSettings | OwnSourceSettings, where: str
) -> None:
    given = _given(source)
    if len(given) > 1:
        raise ConfigError(f"{where}.source: classes and num_classes are both given; drop one")
    if isinstance(source, ArraysSettings | HfSettings):
        if given and source.label is UNSET:
            _refuse_classes(given, False, where)
        _check_labels(source, given, where)


def _check_arrays(source: ArraysSettings, where: str) -> None:
    _check_classes(source, where)
    if source.features is not UNSET and (source.label is UNSET or source.columns is not UNSET):
        found = "without a label" if source.label is UNSET else "beside columns"
        raise ConfigError(
            f"{where}.source.features={source.features} is given {found}; list the arrays to keep in columns, or drop "
            "it"
        )
    _check_rename(source, source.columns or source.rename or {}, where)


def _check_columns(source: ColumnsSettings, where: str) -> None:
    if source.columns is not UNSET:
        _check_named(source, source.columns, where)
    elif source.rename is not UNSET:
        raise ConfigError(f"{where}.source.rename is given without columns; add them, or drop it")
    for name in source.features:
        if source.features.count(name) > 1:
            raise ConfigError(f"{where}.source.features lists {name} twice; drop one")
        for key in ("label", "id_column", "weight"):
            given = getattr(source, key)
            if name in (given if isinstance(given, list) else [given]):
                raise ConfigError(
                    f"{where}.source.features contains {name}, which is {key}; drop it"
                )


def _check_keys(source: JsonLinesSettings, where: str) -> None:
    columns, tokenize, has_label = source.columns or {}, source.tokenize, source.label is not UNSET
    if not columns and not tokenize:
        raise ConfigError(
            f"{where}.source: neither columns nor tokenize is given; name what rows have, such as tokenize: "
            "{tokens: text}"
        )
    for name in tokenize:
        if name in columns:
            raise ConfigError(
                f"{where}.source.tokenize.{name} is also in source.columns; rename one of them"
            )
    if "labels" in tokenize and has_label:
        raise ConfigError(
            f"{where}.source.tokenize.labels conflicts with label={source.label}, which becomes `labels`; "
            "drop one of them"
        )
    if not tokenize and (source.tokenizer != BYTES or source.end is not UNSET):
        key = "tokenizer" if source.end is UNSET else "end"
        raise ConfigError(
            f"{where}.source.{key} is given without tokenize; add tokenize: {{tokens: KEY}}, or drop it"
        )
    _check_rename(source, columns, where)
    given = _given(source)
    if len(given) != has_label:
        _refuse_classes(given, has_label, where)


def _refuse_classes(given: list[str], has_label: bool, where: str) -> NoReturn:
    if not has_label:
        raise ConfigError(
            f"{where}.source.{given[0]} is given without a label; name the label's column, or drop it"
        )
    found = f"{' and '.join(given)} are both" if given else "neither classes nor num_classes is"
    raise ConfigError(
        f"{where}.source: {found} given; list classes, or give num_classes where labels are 0, 1, ..."
    )


def _check_named(source: ColumnsSettings, columns: Mapping[str, str], where: str) -> None:
    if source.features:
        raise ConfigError(
            f"{where}.source.features and columns are both given; list the features among the columns"
        )
    _check_rename(source, columns, where)
    for name, written in columns.items() if isinstance(source, CsvSettings) else ():
        if "[" in written or written.startswith("bytes"):
            raise ConfigError(
                f'{where}.source.columns.{name}="{written}" is not a number or text, but CSV files contain '
                "nothing else; convert them to Parquet"
            )


def _check_rename(source: WithClasses, columns: Mapping[str, str], where: str) -> None:
    rename, label = source.rename or {}, getattr(source, "label", UNSET)
    for name in rename:
        if name not in columns:
            raise ConfigError(
                f"{where}.source.rename.{name} is not a column; {suggest(name, columns)}"
            )
    in_files = [rename.get(name, name) for name in columns]
    for name in in_files:
        if in_files.count(name) > 1:
            raise ConfigError(f"{where}.source.rename: {name} is the name of two columns; drop one")
    if "labels" in columns and label:
        raise ConfigError(
            f"{where}.source.columns.labels conflicts with label={label}, which becomes `labels`; drop one of them"
        )


SHIPPED_SOURCES = {
    "csv": "shardline.data.sources.csv:Csv",
    "delta": "shardline.data.sources.delta:Delta",
    "digits": "shardline.data.sources.digits:Digits",
    "hdf5": "shardline.data.sources.hdf5:Hdf5",
    "hf": "shardline.data.sources.hf:Hf",
    "idx": "shardline.data.sources.idx:Idx",
    "image_folder": "shardline.data.sources.image_folder:ImageFolder",
    "jsonl": "shardline.data.sources.jsonl:Jsonl",
    "litdata": "shardline.data.sources.litdata:LitData",
    "mds": "shardline.data.sources.mds:Mds",
    "numpy": "shardline.data.sources.numpy:Numpy",
    "parquet": "shardline.data.sources.parquet:Parquet",
    "synthetic": "shardline.data.sources.synthetic:Synthetic",
    "text": "shardline.data.sources.text:Text",
    "webdataset": "shardline.data.sources.webdataset:WebDataset",
}
# Options that set only the place of the content, or the speed of reading.
_NOT_IN_IDENTITY = {"files", "table", "decode_threads", "workers"}


@dataclass(frozen=True, kw_only=True)
class Located:
    """A source with its files and their digests.

    Attributes:
        source: Settings, with names and splits of the files, files that are not read, and the path of
            the tokenizer.
        counted: Settings that count in the identity.
        files: Files of the source, absolute. Remote files may not be downloaded yet.
        content: Digests by name, as in the identity.
    """

    source: dict[str, object]
    counted: dict[str, object]
    files: tuple[Path, ...]
    content: dict[str, str]


def locate(
    settings: Plain, workdir: Path, downloads: Path, digests: FileDigests, where: str
) -> Located:
    """Check the source and splits of a dataset, and return its files and digests.

    This never uses the network.

    Args:
        settings: Settings of the dataset.
        workdir: Folder of the project, absolute.
        downloads: Folder for downloads of remote files.
        where: File and dataset, the start of messages.

    Raises:
        ConfigError: Options cannot be combined, or a file is missing, in no split or in two splits.
        DataError: A file or table cannot be read.
    """
    source, typed = source_files.with_paths(settings["source"]), as_type(settings, DatasetSettings)
    problems, found_files = Problems(), None
    with problems.gather():
        check_source(typed.source, where)
    with problems.gather():
        check_splits(typed, where)
    try:
        with problems.gather():
            found_files = source_files.find_files(source, workdir, downloads, where)
    except DataError:
        problems.refuse()
        raise
    problems.refuse()
    assert found_files
    files, known, not_read = found_files
    content = digests.digest_all(files, workdir=workdir, known=known)
    if isinstance(typed.source, DeltaSettings):
        content = _delta_content(typed.source, workdir, where)
    found = _found_options(typed, files, content, workdir, where)
    found |= {"not_read": not_read} if not_read else {}
    if isinstance(typed.source, TokenizedSettings) and typed.source.tokenizer != BYTES:
        tokenizer = _find_tokenizer(typed.source.tokenizer, workdir, where)
        found["tokenizer"] = str(tokenizer)
        content = {**content, f"{len(files):05d}/tokenizer": digests.digest(tokenizer)}
    return Located(
        source={**source, **found},
        counted=_counted(source),
        files=tuple(files),
        content=content,
    )


def _counted(source: Plain) -> dict[str, object]:
    """Return the settings that count in the identity; the file of a tokenizer counts by content."""
    is_file = source.get("tokenizer", BYTES) != BYTES
    left_out = _NOT_IN_IDENTITY | ({"tokenizer"} if is_file else set())
    counted = {key: value for key, value in source.items() if key not in left_out}
    if ":" in source["type"] and "columns" in source:  # they name the values of a tuple, in order
        counted["column_order"] = list(source["columns"])
    return counted


def _find_tokenizer(name: str, workdir: Path, where: str) -> Path:
    path = workdir / name
    if not path.is_file():
        hint = f"write {name.rstrip('/')}/tokenizer.json" if path.is_dir() else "check the path"
        raise ConfigError(
            f"{where}.source.tokenizer={without_secrets(name)} is neither {BYTES} nor a file; {hint}"
        )
    return path


def _delta_content(source: DeltaSettings, workdir: Path, where: str) -> dict[str, str]:
    """Return the content of a Delta table for the identity: its id and version.

    For a remote table the id must be set, since loading a config never uses the network.

    Raises:
        ConfigError: The id of a remote table is missing, or that of a local table differs.
        DataError: A local table or its version does not exist.
    """
    table, version, given = source.table, source.version, source.table_id
    if not is_url(table):
        found = str(open_table(str(workdir / table), version).metadata().id)
        if given not in (UNSET, found):
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
    settings: DatasetSettings, files: Sequence[Path], content: Mapping[str, str], workdir: Path, where: str
) -> dict[str, Any]:  # fmt: skip
    """Return further arguments of a shipped source: names and splits of its files.

    Args:
        content: `source` of the identity, whose keys contain the names of the files.

    Raises:
        ConfigError: Two files have the same name, or a file is not in exactly one split.
    """
    found: dict[str, Any] = {}
    source, splits = settings.source, settings.splits
    if source.type in WITH_FILES:
        found["names"] = [key.partition("/")[2] for key in content]
        source_files.check_names(found["names"], where)
    if isinstance(splits, SplitFiles):
        found["splits"] = source_files.splits_of_files(
            splits.files, files, found["names"], workdir, where
        )
    elif isinstance(splits, SplitColumn):
        found["splits"] = {"column": splits.column}
    columns = {key: getattr(splits, key, UNSET) for key in ("group", "stratify", "time")}
    named = {key: column for key, column in columns.items() if column is not UNSET}
    if named and source.type in WITH_SPLITS:
        found["splits"] = {**found.get("splits", {}), **named}
    if isinstance(source, DeltaSettings) and not is_url(source.table):
        found["table"] = str(workdir / source.table)
    return found
