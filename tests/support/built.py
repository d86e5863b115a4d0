"""A project's dataset, built in this process by the functions that its jobs call."""

from pathlib import Path
from typing import Any

from shardline.pipeline.dataset_jobs import build_shards, seal_dataset


def build(project: Any, dataset: Any) -> Path:
    """Write a dataset's shards and manifest, and return the folder of its shards."""
    plan = project.part(datasets=[dataset.id])
    shards: Path = project.store / "datasets" / dataset.id
    for part in dataset.parts:
        build_shards(plan, part, str(shards / f"parts/{part}.json"))
    seal_dataset(plan, str(dataset.manifest), str(dataset.provenance))
    return shards
