"""How many shards `shards: auto` is: as many as make files of about 64 MB, from the sizes of what a source reads.

No data is read and no source is imported, and what an identity holds decides it: the digest of a
file stands for its size.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardline.config.source_files import sizes_of_files
from shardline.core.errors import ConfigError
from shardline.core.urls import is_url, open_table, without_secrets

SHARD_BYTES = 64_000_000
_PACKED = 4  # what a byte of a gzip file unpacks to: 4.7 of MNIST, 3 to 5 of CSV
_ROW_BYTES = 16  # label and id


def count_shards(
    source: Mapping[str, Any], files: Sequence[Path], workdir: Path, downloads: Path, where: str
) -> int:
    """Return the number of shards of about 64 MB that a source fills.

    Images that are brought to one size are counted. What any other source reads is taken to
    fill as many bytes of shards as it has in its files, a gzip file four times as many.

    Args:
        source: its settings, as `sources.locate` found them.
        files: that it reads, absolute; remote ones may not be fetched yet.
        workdir: the project's folder.
        downloads: folder that remote files are fetched to.
        where: file and dataset, as messages begin.

    Raises:
        ConfigError: nothing is known before rows are read; asks for a number.
        DataError: a file or table cannot be read.
    """
    if source["type"] == "delta":
        num_bytes = _bytes_of_table(source, workdir, where)
    elif source["type"] == "image_folder" and "size" in source:
        height, width = source["size"]
        channels = 1 if source["mode"] == "L" else 3
        num_bytes = len(files) * (height * width * channels + _ROW_BYTES)
    elif files:
        sizes = sizes_of_files(source, files, downloads, where)
        factors = [_PACKED if path.suffix == ".gz" else 1 for path in files]
        num_bytes = sum(size * factor for size, factor in zip(sizes, factors, strict=True))
    else:
        reads = "draws rows for each shard" if source["type"] == "synthetic" else "lists no files"
        raise _unknown(f"its source {source['type']} {reads}", where)
    return max(1, (num_bytes + SHARD_BYTES // 2) // SHARD_BYTES)


def _bytes_of_table(source: Mapping[str, Any], workdir: Path, where: str) -> int:
    """Return the size of a Delta table's files at its version, which its log records."""
    if is_url(source["table"]):
        shown = without_secrets(source["table"])
        raise _unknown(f"{shown} is not read before its rows are", where)
    # absolute already where `locate` found it
    table = open_table(str(workdir / source["table"]), source["version"])
    return int(sum(table.get_add_actions(flatten=True).column("size_bytes").to_pylist()))


def _unknown(reason: str, where: str) -> ConfigError:
    return ConfigError(
        f"{where}.shards=auto, but {reason}, so that its size is not known, expected a number; "
        "give one that makes files of about 64 MB"
    )
