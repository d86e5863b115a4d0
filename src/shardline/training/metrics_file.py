"""Write metrics as JSON lines, and print progress as plain lines."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.loggers.logger import rank_zero_experiment
from msgspec import structs
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from shardline.core.errors import ConfigError
from shardline.core.files import read_json_lines, write_bytes, writing
from shardline.records.metrics import MetricLine


class NoWriterError(ConfigError, AttributeError):
    """A model uses a method of a tracker's client, which Shardline does not provide."""


class NoWriter:
    """The value of `self.logger.experiment`: a placeholder, since trackers run in other processes."""

    def __getattr__(self, name: str) -> Any:
        """Reject any attribute.

        Raises:
            NoWriterError: The message names the attribute; `hasattr` returns False.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        raise NoWriterError(
            f"the model uses self.logger.experiment.{name}, expected self.log, since trackers run in other processes; "
            "log numbers with self.log, and choose trackers with runtime.tracking"
        )


class JsonLinesLogger(Logger):
    """Appends one JSON object per record to a file, on rank 0 only.

    A record contains `step` (optimiser steps), `epoch`, `wall_s` (seconds of training, all attempts
    together) and the metrics by name. NaN and infinity, which JSON lacks, become null.

    Args:
        path: The file; `rewind` drops records after the resumed step.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._started = time.monotonic()
        self._last: MetricLine | None = None

    @property
    def name(self) -> str:
        """Name for Lightning; unused."""
        return "metrics"

    @property
    def version(self) -> str:
        """Version for Lightning; unused."""
        return ""

    @property
    @rank_zero_experiment
    def experiment(self) -> NoWriter:
        """An object whose errors point models to `self.log`."""
        return NoWriter()

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the settings are in run.json."""

    @rank_zero_only
    def rewind(self, step: int) -> None:
        """Drop the records after `step`, since a resumed training writes them again."""
        records = read_json_lines(self._path) if self._path.exists() else []
        lines = [line for line in map(MetricLine.of, records) if line and line.step <= step]
        # all or nothing: a full disk must not lose the records of hours; and a new file, so that
        # programs that follow the file read it again from the start
        write_bytes(
            self._path, "".join(json.dumps(line.to_json()) + "\n" for line in lines).encode()
        )
        # the last line may be the record of an epoch that ends with the resumed step
        self._last = lines[-1] if lines else None
        self._started = time.monotonic() - ((self._last and self._last.wall_s) or 0.0)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append one record, unless it repeats the last one."""
        values = {
            # Lightning appends `_step` and `_epoch` to metrics that are logged at both intervals
            key: float(value) if math.isfinite(value) else None
            for key, value in metrics.items()
            if key != "epoch"
        }
        line = MetricLine(
            step=(step or 0) + 1,
            epoch=int(metrics.get("epoch", 0)),
            wall_s=round(time.monotonic() - self._started, 3),
            values=values,
        )
        if self._last and structs.replace(self._last, wall_s=line.wall_s) == line:
            return
        self._last = line
        with writing(self._path), self._path.open("a") as file:
            file.write(json.dumps(line.to_json()) + "\n")


class PlainProgress(pl.Callback):
    """Prints a progress line at most every `every_s` seconds, for logs and progress bars."""

    def __init__(self, every_s: float = 2.0) -> None:
        self._every_s = every_s
        self._last = 0.0

    @rank_zero_only
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the number of ranks, nodes and batches, and the first step."""
        start = f"resuming from step {trainer.global_step}" if trainer.global_step else "starting"
        print(
            f"{start}: {trainer.world_size} ranks on {trainer.num_nodes} nodes, "
            f"{type(trainer.accelerator).__name__}, {trainer.num_training_batches} batches an epoch",
            flush=True,
        )

    @rank_zero_only
    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Print a progress line if the last one is old enough."""
        if time.monotonic() - self._last >= self._every_s:
            self._print(trainer)

    @rank_zero_only
    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Print the last progress line."""
        self._print(trainer)

    def _print(self, trainer: pl.Trainer) -> None:
        self._last = time.monotonic()
        metrics = "".join(
            f" {name}={value:.4g}"
            for name, value in sorted(trainer.logged_metrics.items())
            if name != "epoch"
        )
        total = trainer.datamodule.total_steps  # type: ignore[attr-defined]
        epoch = min(trainer.current_epoch + 1, trainer.max_epochs or 0)
        print(
            f"progress step={trainer.global_step}/{total} epoch={epoch}/{trainer.max_epochs}{metrics}",
            flush=True,
        )
