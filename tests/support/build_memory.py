"""Builds of torch datasets in a process of its own, which prints its peak memory and that of its readers, in bytes.

Run as `python -m tests.support.build_memory ROWS FOLDER`.
"""

import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset

from shardline.data.build import build_shards, describe_part, make_source
from shardline.data.python.source import PythonSource

ROW_BYTES = 1 << 17
SHARD = 50
SHARES = {"train": 1.0, "validation": 0.0, "test": 0.0}


def row_of(row: int) -> dict[str, Any]:
    return {"x": np.full(ROW_BYTES, row % 256, np.uint8), "name": f"row {row}", "labels": row % 3}


class Map(Dataset):  # type: ignore[type-arg]
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        return row_of(row)


class Iterable(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(row_of, range(self.rows))


def build(kind: str, rows: int, folder: Path) -> None:
    folder.mkdir()
    settings = {"options": {"rows": rows}, "workers": 1}
    source = make_source(f"{__spec__.name}:{kind}", settings, num_shards=rows // SHARD, files=[])
    assert isinstance(source, PythonSource)
    shards = range(source.num_shards)
    with source.job("build", shards, folder):
        part = describe_part("d", build_shards(source, shards, SHARES, folder), {})
    assert sum(sum(shard.rows.values()) for shard in part.shards) == rows


if __name__ == "__main__":
    for kind in ("Map", "Iterable"):
        build(kind, int(sys.argv[1]), Path(sys.argv[2]) / kind)
    of = {"own": resource.RUSAGE_SELF, "children": resource.RUSAGE_CHILDREN}
    print(json.dumps({key: 1024 * resource.getrusage(who).ru_maxrss for key, who in of.items()}))
