"""What a tracker is asked to do; each runs in a process of its own, `tracker_process`."""

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
    """Shows a training in one place. Whatever a method raises is reported, and tried again.

    Attributes:
        label: what users call it.
        takes_model, takes_checkpoints: whether it wants these files.
        values_at_once: most values in a batch, unless a single step has more.
        files: names of the files that it has.
        closing: what `close` sends, for the message where `close` does not return.
        warning: what users are to know once it is open; empty for nothing.

    Args:
        links: the run's links of this tracker.
    """

    label: ClassVar[str]
    takes_model: ClassVar[bool] = False
    takes_checkpoints: ClassVar[bool] = False
    values_at_once: ClassVar[int] = 10_000

    def __init__(self, context: TrackingContext, links: RunLinks) -> None:
        self._context = context
        self.links = links
        self.files: list[str] = []
        self.closing = "how the training has ended"
        self.warning = ""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the training is found, for users."""

    @abstractmethod
    def open(self) -> int:
        """Start, or resume after a failure; returns the last step that the tracker has, -1 for none."""

    @abstractmethod
    def send(self, batch: MetricBatch, started: float | None) -> None:
        """Send a batch of values.

        Args:
            started: time in seconds at which a training without pauses would have begun.
        """

    def upload(self, file: Path, folder: str = "") -> None:
        """Send a file of a kind that the tracker takes."""
        raise NotImplementedError

    @abstractmethod
    def close(self, how: str) -> None:
        """Record how the training has ended, and return once everything has arrived."""


def shorten(error: Exception) -> str:
    """Return an error as one line of limited length, without secrets."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    # of any length, which of other variables would hide ordinary words
    text = mask(text, [os.environ.get(name, "") for name in _SECRET_VARIABLES])
    half = _REASON_CHARACTERS // 2  # the cause stands at the end
    return text if len(text) <= 2 * half else f"{text[:half]} ... {text[-half:]}"
