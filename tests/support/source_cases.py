"""Sources made from a config, as jobs make them, and all that they yield."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardline.config.load import load_project
from shardline.config.plans import DatasetPlan
from shardline.data.build import make_source
from shardline.sources import SPLITS, Source

TABLE = "name\tdataset\tmodel\na\td\tmlp\n"


@dataclass(frozen=True)
class Rows:
    """All rows of a source, in the order of their ids."""

    ids: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    splits: list[str] | None


def load_dataset(folder: Path, source: dict[str, Any], **settings: Any) -> DatasetPlan:
    """Read a config that names one dataset, whose files lie below a folder."""
    (folder / "runs.tsv").write_text(TABLE)
    entry = {"source": source, "shards": 3, **settings}
    config = {"runs": "runs.tsv", "defaults": {}, "datasets": {"d": entry}}
    config["runtime"] = {"not_secret": ["datasets.d.source.files", "datasets.d.source.table"]}
    (dataset,) = load_project(config, workdir=folder).datasets.values()
    return dataset


def make(folder: Path, source: dict[str, Any], **settings: Any) -> Source:
    """Return the source of a config's dataset."""
    dataset = load_dataset(folder, source, **settings)
    return make_source(
        dataset.source_class,
        dataset.source,
        num_shards=dataset.settings.shards,
        files=dataset.files,
    )


def read(source: Source) -> Rows:
    """Read all shards of a source, the last one first."""
    tables = [t for shard in reversed(range(source.num_shards)) for t in source.iter_tables(shard)]
    ids = np.concatenate([t.ids for t in tables])
    order = np.argsort(ids)
    assert len(set(ids)) == len(ids)
    for table in tables:
        assert table.features.shape[1:] == source.schema.feature_shape
        assert table.features.dtype == source.schema.feature_dtype
        assert table.ids.dtype == np.int64
    splits = [t.splits for t in tables if t.splits is not None]
    return Rows(
        ids=ids[order],
        features=np.concatenate([t.features for t in tables])[order],
        labels=np.concatenate([t.labels for t in tables])[order],
        splits=[SPLITS[i] for i in np.concatenate(splits)[order]] if splits else None,
    )
