"""Interface of the trackers; each tracker runs in its own process, `tracker_process`."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from shardline.core.redaction import mask
from shardline.records.tracking import TrackingContext
from shardline.tracking.metric_batches import MetricBatch
from shardline.tracking.run_links import RunLinks

Say = Callable[[str, bool], None]  # text, whether it is a warning

_SECRET_VARIABLES = (
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "AZUREML_RUN_TOKEN",
    "WANDB_API_KEY",
)
_REASON_CHARACTERS = 300


class Tracker(ABC):
    """Tracker that shows a training. If a method raises an error, the error is reported and the method retried.

    Attributes:
        label: name for messages.
        takes_model, takes_checkpoints: whether the tracker accepts these files.
        values_at_once: maximum number of values in a batch; a single step may have more.
        files: names of the files already sent.
        closing: what `close` sends, for the message if `close` does not return.
        warning: warning for users after `open`; empty for none.

    Args:
        links: links of the run for this tracker.
    """

    label: ClassVar[str]
    takes_model: ClassVar[bool] = False
    takes_checkpoints: ClassVar[bool] = False
    values_at_once: ClassVar[int] = 10_000

    def __init__(self, context: TrackingContext, links: RunLinks) -> None:
        self._context = context
        self.links = links
        self.files: list[str] = []
        self.closing = "the final status of the training"
        self.warning = ""

    @property
    @abstractmethod
    def place(self) -> str:
        """Location of the training in the tracker, for users."""

    @abstractmethod
    def open(self) -> int:
        """Start or resume, and return the last step that the tracker has; -1 for none."""

    @abstractmethod
    def send(self, batch: MetricBatch, started: float | None) -> None:
        """Send a batch of values.

        Args:
            started: start time of a training without pauses, in seconds since the epoch.
        """

    def upload(self, file: Path, folder: str = "") -> None:
        """Send a file."""
        raise NotImplementedError

    @abstractmethod
    def close(self, how: str) -> None:
        """Record how the training ended, and return when everything has arrived."""


def shorten(error: Exception) -> str:
    """Return an error as one short line without secrets."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    # mask these variables at any length; for others, short values would hide ordinary words
    text = mask(text, [os.environ.get(name, "") for name in _SECRET_VARIABLES])
    half = _REASON_CHARACTERS // 2  # the cause is at the end
    return text if len(text) <= 2 * half else f"{text[:half]} ... {text[-half:]}"
