"""What the process of a tracker is told, and what it leaves in the run's folder of the store."""

from typing import Any

from shardline.records.base import Record


class TrackingContext(Record, frozen=True, kw_only=True):
    """What trackers get of a training, and where its files are.

    Attributes:
        run: digest of the run's identity.
        name: the run's names.
        dataset: digest of the dataset's identity.
        dataset_name: the dataset's names.
        store: folder of what is bulky.
        work: the run's folder in the store.
        metrics: file of metric records that the training appends to.
        model: where the sealed model is to be.
        params: name -> value of each setting.
        tags: name -> value of what else distinguishes the run.
        look_s: seconds between two reads of the folder.
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
    look_s: float = 5.0
