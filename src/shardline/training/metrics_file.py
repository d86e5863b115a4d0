"""Metrics as JSON lines, and progress as plain lines."""

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
    """A model calls a tracker's own method; `hasattr` finds none."""


class NoWriter:
    """The value of `self.logger.experiment`: no tracker's object, since trackers are processes of their own."""

    def __getattr__(self, name: str) -> Any:
        """Refuse a tracker's own method.

        Raises:
            NoWriterError: names it.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        raise NoWriterError(
            f"the model uses self.logger.experiment.{name}, expected self.log, since trackers run in processes of "
            "their own; log numbers with self.log, and choose who shows them with runtime.tracking"
        )


class JsonLinesLogger(Logger):
    """Appends one JSON object per record to a file, on rank 0 only.

    A record holds `step` (optimiser steps), `epoch`, `wall_s` (seconds of
    training, all attempts together) and the metrics by name. NaN and infinity,
    which JSON lacks, are written as null.

    Args:
        path: the file; records after the resumed step are dropped by `rewind`.
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
        """An object that names `self.log` to a model that calls a method of a tracker."""
        return NoWriter()

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: settings stand in run.json."""

    @rank_zero_only
    def rewind(self, step: int) -> None:
        """Drop the records after `step`, which a resumed training writes again."""
        records = read_json_lines(self._path) if self._path.exists() else []
        lines = [line for line in map(MetricLine.of, records) if line and line.step <= step]
        # all or nothing: a full disk must not cost the records of hours; and another file of that
        # name, so that who follows it begins at the beginning again
        write_bytes(
            self._path, "".join(json.dumps(line.to_json()) + "\n" for line in lines).encode()
        )
        # an epoch's own record may already stand behind the step that is resumed from
        self._last = lines[-1] if lines else None
        self._started = time.monotonic() - ((self._last and self._last.wall_s) or 0.0)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append one record, unless it is the last one again."""
        values = {
            # `_step` and `_epoch` are Lightning's marks for one metric logged at both paces
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
    """Prints a line at most every `every_s` seconds: what a log, or a bar made of it, needs."""

    def __init__(self, every_s: float = 2.0) -> None:
        self._every_s = every_s
        self._last = 0.0

    @rank_zero_only
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print what trains, and from where."""
        start = f"resuming from step {trainer.global_step}" if trainer.global_step else "starting"
        print(
            f"{start}: {trainer.world_size} ranks on {trainer.num_nodes} nodes, "
            f"{type(trainer.accelerator).__name__}, {trainer.num_training_batches} batches an epoch",
            flush=True,
        )

    @rank_zero_only
    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Print the step if the last line is old enough."""
        if time.monotonic() - self._last >= self._every_s:
            self._print(trainer)

    @rank_zero_only
    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Print the final line."""
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
