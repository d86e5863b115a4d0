"""A project's dataset, built in this process by the functions that its jobs call."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardline.pipeline.datasets import build_shards, seal_dataset


def build(project: Any, dataset: Any, config: Mapping[str, Any]) -> Path:
    """Write a dataset's shards and manifest, and return the folder of its shards."""
    shards: Path = project.store / "datasets" / dataset.id
    for part in dataset.parts:
        build_shards(config, dataset.id, part, str(shards / f"parts/{part}.json"))
    seal_dataset(config, dataset.id, str(dataset.manifest), str(dataset.provenance))
    return shards
