"""Settings, dataset and folders of the run that started this process, and the process's rank."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardline_io.errors import ConfigError, DataError
from shardline_io.order import VERSION
from shardline_io.order.folds import of_fold

_BY_SHARDLINE = ("transform", "eval_transform", "collate", "pack", "class_weights")

_PREFIX = "SHARDLINE_"


@dataclass(frozen=True)
class RankPlace:
    """Rank of this process.

    Attributes:
        rank: rank, from 0 to world_size - 1.
        world_size: number of ranks.
        local_rank: rank on this node, from 0 to local_world_size - 1.
        local_world_size: number of ranks on this node.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def variable(name: str) -> str:
    """Return the value of `SHARDLINE_{name}`.

    Raises:
        ConfigError: the variable is not set, so Shardline has not started this process.
    """
    value = os.environ.get(_PREFIX + name)
    if not value:
        raise ConfigError(
            f"{_PREFIX}{name} is not set, expected the value that Shardline sets for each rank of a run; write "
            "`script: FILE` into the column `model` of config/runs.tsv and run the pipeline"
        )
    return value


@lru_cache(maxsize=1)
def world() -> RankPlace:
    """Return the rank of this process and the number of ranks.

    Raises:
        ConfigError: RANK, WORLD_SIZE, LOCAL_RANK or LOCAL_WORLD_SIZE is missing or not a number.
    """
    numbers = []
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        text = os.environ.get(name, "")
        if not text.isdigit():
            raise ConfigError(
                f"{name}={text!r} is not a number, expected the number that Shardline sets for each rank; write "
                "`script: FILE` into the column `model` of config/runs.tsv and run the pipeline"
            )
        numbers.append(int(text))
    return RankPlace(*numbers)


@lru_cache(maxsize=1)
def settings() -> dict[str, Any]:
    """Return the run's settings as nested dicts: `settings()["optim"]["lr"]`.

    Raises:
        ConfigError: Shardline has not started this process.
        DataError: the run was resolved with another version of the sample order.
    """
    path = variable("RUN_JSON")
    document = json.loads(Path(path).read_bytes())
    if (order := document.get("order", 1)) != VERSION:
        raise DataError(
            f"{path} requires version {order} of the sample order, expected {VERSION}, the version of this "
            "shardline_io; install the shardline_io of the Shardline that resolved the run, or resolve the run again"
        )
    return dict(document["settings"])


@lru_cache(maxsize=1)
def reads() -> dict[str, Any]:
    """Return how the rank wants data to be read: `datasets`, `data` and `verify`; empty without a rank."""
    return dict(json.loads(os.environ.get(_PREFIX + "READS") or "{}"))


def data_settings() -> dict[str, Any]:
    """Return the current `data` settings; code that they name may have moved since the run was resolved."""
    return dict(reads().get("data") or settings().get("data", {}))


def datasets() -> list[dict[str, str]]:
    """Return `manifest`, `shards` and `weight` of each dataset, in the order of the mix."""
    one = {"manifest": variable("MANIFEST"), "shards": variable("SHARDS"), "weight": "1"}
    return reads().get("datasets") or [one]


def setting_for_shardline(data: Mapping[str, Any], num_datasets: int) -> str | None:
    """Return a setting that only Shardline's own code applies; None if rows are used as stored.

    Args:
        data: the run's `data` settings.
        num_datasets: number of datasets that the run reads.
    """
    for key in _BY_SHARDLINE:
        value = data.get(key)
        if value is not None and not (key == "collate" and _pads_alone(value)):
            return f"data.{key}"
    return "a mix of datasets" if num_datasets > 1 else None


def _pads_alone(collate: Any) -> bool:
    if isinstance(collate, dict):
        return not collate.get("lengths") and collate.get("multiple", 1) == 1
    return bool(collate == "pad")


def model_args() -> dict[str, Any]:
    """Return the run's `model_args.*` by name."""
    return dict(settings().get("model_args") or {})


def fold() -> int | None:
    """Return the fold that the run tests on; None if the run has no `fold`."""
    found = settings().get("fold")
    return None if found is None else int(found)


@lru_cache(maxsize=1)
def manifest() -> dict[str, Any]:
    """Return the dataset's manifest with `shards`, `splits`, `schema` and `statistics`.

    With folds, `splits` and `statistics` are those of the run's fold, and the rows of each of the
    `shards` are numbers by block, see `shardline_io.order.folds`.
    """
    found = json.loads(Path(variable("MANIFEST")).read_bytes())
    return of_fold(found, fold()) if found.get("folds") else dict(found)


def schema() -> dict[str, Any]:
    """Return the dataset's schema: columns and, if there are any, classes."""
    return dict(manifest()["schema"])


def work_folder() -> Path:
    """Return the folder that all attempts of this run share."""
    return Path(variable("WORK"))


def output_folder() -> Path:
    """Return the folder for the results of this attempt."""
    return Path(variable("OUTPUT"))
