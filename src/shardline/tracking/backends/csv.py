"""CSV tracker: one row per step, one column per metric."""

import csv
from collections.abc import Iterable, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from shardline.core.files import atomic_writer
from shardline.records.tracking import TrackingContext
from shardline.tracking.metric_batches import MetricBatch
from shardline.tracking.run_links import FOLDER, RunLinks
from shardline.tracking.tracker import Tracker

_FIRST = ("step", "wall_s")


class CsvFile(Tracker):
    """Tracker that writes `work/{run}/tracking/metrics.csv` again at each start of a training.

    Columns have the order in which the metrics first appear. A new metric becomes the last column.
    """

    label = "CSV"

    def __init__(self, context: TrackingContext, links: RunLinks) -> None:
        super().__init__(context, links)
        self._path = Path(context.work, FOLDER, "metrics.csv")
        self._columns = list(_FIRST)
        links.write(where={"file": str(self._path)})

    @property
    def place(self) -> str:
        """Path of the file."""
        return f"file {self._path}"

    def open(self) -> int:
        """Start an empty file; metrics.jsonl still contains the earlier rows."""
        self._columns = list(_FIRST)
        self._rewrite([])
        return -1

    def send(self, batch: MetricBatch, started: float | None) -> None:
        """Append one row per step, and add columns for new metrics."""
        rows = list(batch.rows())
        names = dict.fromkeys(name for row in rows for name in row)
        if new := [name for name in names if name not in self._columns]:
            self._columns += new
            with self._path.open(newline="") as file:
                self._rewrite(csv.DictReader(file))
        with self._path.open("a", newline="") as file:
            self._writer(file).writerows(rows)

    def close(self, how: str) -> None:
        """Do nothing, since the file already contains every batch."""

    def _rewrite(self, rows: Iterable[Mapping[str, str]]) -> None:
        with atomic_writer(self._path) as file:
            text = TextIOWrapper(file, newline="", encoding="utf-8")
            writer = self._writer(text)
            writer.writeheader()
            writer.writerows(rows)
            text.detach()  # flushes and leaves the file open

    def _writer(self, file: TextIO) -> "csv.DictWriter[str]":
        return csv.DictWriter(file, self._columns, lineterminator="\n")
