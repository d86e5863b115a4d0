"""The run that this process is a rank of: its settings, its dataset, its folders, and its place."""

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

_BY_SHARDLINE = ("transform", "eval_transform", "collate", "pack", "class_weights")

_PREFIX = "SHARDLINE_"


@dataclass(frozen=True)
class RankPlace:
    """This process's place among the ranks.

    Attributes:
        rank: from 0 to world_size - 1.
        world_size: number of ranks.
        local_rank: number among the ranks of this node.
        local_world_size: number of ranks of this node.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def variable(name: str) -> str:
    """Return the value of `SHARDLINE_{name}`.

    Raises:
        ConfigError: it is not set: Shardline has not started this process.
    """
    value = os.environ.get(_PREFIX + name)
    if not value:
        raise ConfigError(
            f"{_PREFIX}{name} is not set, expected the value that Shardline gives to the ranks of a run; start "
            "the program by `script: FILE` in the column `model` of config/runs.tsv"
        )
    return value


@lru_cache(maxsize=1)
def world() -> RankPlace:
    """Return this process's place among the ranks.

    Raises:
        ConfigError: one of RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE is missing or no number.
    """
    numbers = []
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        text = os.environ.get(name, "")
        if not text.isdigit():
            raise ConfigError(
                f"{name}={text!r} is not a number, expected the place that Shardline gives to a rank; start the "
                "program by `script: FILE` in the column `model` of config/runs.tsv"
            )
        numbers.append(int(text))
    return RankPlace(*numbers)


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    path = variable("RUN_JSON")
    found: dict[str, Any] = json.loads(Path(path).read_bytes())
    if (order := found.get("order", 1)) != VERSION:
        raise DataError(
            f"{path} has the order of samples of version {order}, expected {VERSION}, which this shardline_io has; "
            "install the shardline_io of the Shardline that resolved the run, or resolve the run again"
        )
    return found


def settings() -> dict[str, Any]:
    """Return the run's settings, as tables: `settings()["optim"]["lr"]`.

    Raises:
        ConfigError: Shardline has not started this process.
        DataError: the run was resolved with another version of the order of samples.
    """
    found: dict[str, Any] = _document()["settings"]
    return found


@lru_cache(maxsize=1)
def reads() -> dict[str, Any]:
    """Return how the rank says that the data is read: `datasets`, `data` settings and `verify`; empty without one."""
    found: dict[str, Any] = json.loads(os.environ.get(_PREFIX + "READS") or "{}")
    return found


def data_settings() -> dict[str, Any]:
    """Return the `data` settings as they are now: code that they name may have moved since the run was resolved."""
    found: dict[str, Any] = reads().get("data") or settings().get("data", {})
    return found


def datasets() -> list[dict[str, str]]:
    """Return `manifest`, `shards` and `weight` of each dataset, in the order in which weights are added up."""
    one = {"manifest": variable("MANIFEST"), "shards": variable("SHARDS"), "weight": "1"}
    return reads().get("datasets") or [one]


def setting_for_shardline(data: Mapping[str, Any], num_datasets: int) -> str | None:
    """Return a setting of a run that Shardline's own code applies; None where rows come as they are stored.

    Args:
        data: the run's `data` settings.
        num_datasets: how many datasets it reads.
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
    """Return the columns `model_args.*` of the run, by name."""
    return dict(settings().get("model_args") or {})


@lru_cache(maxsize=1)
def manifest() -> dict[str, Any]:
    """Return the manifest of the dataset: `shards`, `splits`, `schema`, `statistics`."""
    found: dict[str, Any] = json.loads(Path(variable("MANIFEST")).read_bytes())
    return found


def schema() -> dict[str, Any]:
    """Return the dataset's schema: its columns, and the classes if it has any."""
    found: dict[str, Any] = manifest()["schema"]
    return found


def work_folder() -> Path:
    """Return the folder that every attempt at this run finds again."""
    return Path(variable("WORK"))


def output_folder() -> Path:
    """Return the folder of this attempt for the results."""
    return Path(variable("OUTPUT"))
