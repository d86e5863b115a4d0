"""Input of a tracker's process."""

from typing import Any

from shardline.records.base import Record


class TrackingContext(Record, frozen=True, kw_only=True):
    """A training as trackers see it.

    Attributes:
        run: Id of the run.
        name: Names of the run.
        dataset: Id of the dataset.
        dataset_name: Names of the dataset.
        store: Folder of shards and training checkpoints.
        work: Folder of the run in the store.
        metrics: File that the training appends metrics to.
        model: Path of the sealed model, once it exists.
        params: Settings of the run, by name.
        tags: Other facts about the run, by name.
        group: Name of the sweep that the run belongs to; empty if there is none.
        look_s: Seconds between two reads of the folder.
    """

    run: str
    name: str
    dataset: str
    dataset_name: str
    store: str
    work: str
    metrics: str
    model: str
    params: dict[str, Any]
    tags: dict[str, str]
    group: str = ""
    look_s: float = 5.0
