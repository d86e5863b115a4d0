"""What a tracker is asked to do; each has a process of its own, which `follow` is the program of."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from shardline.tracking.records import Batch
from shardline.tracking.run_links import Note


class Tracker(ABC):
    """Shows a training in one place. Whatever a method raises is told, and tried again.

    Attributes:
        label: what users call it.
        takes_model, takes_checkpoints: whether it wants these files.
        values_at_once: most values in a batch, unless a single step has more.
        files: names of the files that it has.
        closing: what `close` sends, as users are told where it does not return.
        warning: what users are to know once it is open; empty for nothing.

    Args:
        story: the fields of `shardline.tracking.Story`.
        note: what the run's folder says of it.
    """

    label: ClassVar[str]
    takes_model: ClassVar[bool] = False
    takes_checkpoints: ClassVar[bool] = False
    values_at_once: ClassVar[int] = 10_000

    def __init__(self, story: Mapping[str, Any], note: Note) -> None:
        self._story = story
        self.note = note
        self.files: list[str] = []
        self.closing = "how the training has ended"
        self.warning = ""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the training is found, as users are told."""

    @abstractmethod
    def open(self) -> int:
        """Begin, or go on after a failure; returns the last step that it has, -1 for none."""

    @abstractmethod
    def send(self, batch: Batch, started: float | None) -> None:
        """Send a batch of values.

        Args:
            started: time in seconds at which a training without pauses would have begun.
        """

    def upload(self, file: Path, folder: str = "") -> None:
        """Send a file, which the tracker has said that it takes."""
        raise NotImplementedError

    @abstractmethod
    def close(self, how: str) -> None:
        """Say how the training has ended, and return once all has arrived."""
