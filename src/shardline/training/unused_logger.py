"""The logger of an evaluation, which keeps nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.utilities import rank_zero_only

from shardline.records.metrics import Logged
from shardline.training.metrics_file import JsonLinesLogger


class UnusedLogger(JsonLinesLogger):
    """Logger of an evaluation: it accepts the calls of `JsonLinesLogger`, and records nothing."""

    def __init__(self) -> None:
        super().__init__(Path())

    @property
    def save_dir(self) -> None:  # type: ignore[override]
        """Folder for files of callbacks: none."""
        return None

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Do nothing: the evaluation records what `self.log` gets."""

    def _log(self, items: list[Logged], step: int | None) -> None:
        if items[0].name not in self._told:
            self._told.add(items[0].name)
            self._tell(
                f"{items[0].name!r} is not recorded:",
                "an evaluation keeps no images, tables and texts; log them in validation_step",
            )
