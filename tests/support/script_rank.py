"""A rank that Shardline has started, as a program that imports `shardline_io` sees it, in this process."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from shardline.config.settings.run_settings import RunSettings, Trainer
from shardline.core.world import World
from shardline_io import batches, heartbeat_memory, order, own_run, results, stopping
from tests.support.columns import Given, manifest_of

CACHED = ("_run_batches", "_shards", "_train", "_held_out", "_rank")


@contextmanager
def as_rank(
    folder: Path, rank: int = 0, world_size: int = 1, **variables: str
) -> Iterator[pytest.MonkeyPatch]:
    """Be a rank that Shardline has started, in this process."""
    for name in ("work", "output"):
        (folder / name).mkdir(exist_ok=True)
    given_here = {
        "RUN_JSON": folder / "run.json",
        "MANIFEST": folder / "manifest.json",
        "SHARDS": folder,
        "WORK": folder / "work",
        "OUTPUT": folder / "output",
        "WINDOW_ROWS": "1000",
        **variables,
    }
    place = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": world_size,
    }
    for known in (
        own_run.world,
        own_run.settings,
        own_run.manifest,
        own_run.reads,
        *map(vars(batches).get, CACHED),
    ):
        known.cache_clear()  # type: ignore[union-attr]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given_here.items():
            patch.setenv(f"SHARDLINE_{name}", str(value))
        for name, number in place.items():
            patch.setenv(name, str(number))
        patch.setattr(stopping, "_began", True)  # no signal handlers in pytest
        patch.setattr(heartbeat_memory, "_mine", heartbeat_memory.HeartbeatMemory())
        patch.setattr(results, "_log", None)
        yield patch


def write_run(folder: Path, settings: RunSettings, **others: Any) -> None:
    document = {
        "order": order.VERSION,
        "settings": msgspec.to_builtins(settings, enc_hook=str),
        **others,
    }
    (folder / "run.json").write_text(json.dumps(document))


def world_of(rank: int, world_size: int) -> World:
    return World(
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        local_world_size=world_size,
        master_addr="127.0.0.1",
        master_port=0,
        launcher="none",
    )


class Project:
    """A small dataset, and a run of it, in a folder."""

    def __init__(self, folder: Path, rows: int = 24) -> None:
        source = Given(
            {"features": "float32[3]", "labels": "int64"},
            [
                [
                    (
                        (place % 3 and 1) or 0,
                        {"features": np.full(3, place, np.float32), "labels": place % 2},
                    )
                    for place in range(rows)
                ]
            ],
        )
        for _, values in source.rows[0]:
            values["features"] = values["features"].tolist()
        self.folder = folder
        manifest_of(source, folder)
        write_run(folder, RunSettings(global_batch=2, trainer=Trainer(max_epochs=2)))
