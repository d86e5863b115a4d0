"""The sealed rows, read without Shardline: a peer's environment does not have it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.reader.task import Rows
from safetensors.numpy import load_file


def records(folder: Path) -> list[dict[str, Any]]:
    """Return each shard's record in the manifest of a dataset's folder."""
    return json.loads((folder / "manifest.json").read_bytes())["shards"]


def read_rows(folder: Path) -> Iterator[Rows]:
    """Yield the train rows of each shard: features [N, F] and labels [N]."""
    for record in records(folder):
        columns, rows = load_file(folder / record["file"]), record["rows"]["train"]
        yield columns["features"][:rows], columns["labels"][:rows]
