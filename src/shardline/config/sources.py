"""A dataset's source: where its content lies, and what the identity holds of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardline.config import source_files
from shardline.config.source_checks import (
    BYTES,
    WITH_FILES,
    WITH_TOKENS,
    check_source,
    check_splits,
)
from shardline.core.errors import ConfigError
from shardline.core.urls import is_url, open_table, table_content, without_secrets
from shardline.identity import FileDigests

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
