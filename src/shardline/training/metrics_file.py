"""The logger of a training: metrics, images, tables and texts as JSON lines."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytorch_lightning as pl
from lightning_fabric.loggers.logger import rank_zero_experiment
from msgspec import structs
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from shardline.core.errors import ConfigError
from shardline.core.files import read_json_lines, write_bytes, writing
from shardline.core.lightning_compat import current_step, is_in_hook
from shardline.records.metrics import Logged, MetricLine
from shardline.training.logged_items import images_of, table_of, text_of

MAX_ITEMS = 1000  # images, tables and texts of a run
MAX_BYTES = 16_000_000  # of their lines in the file
MAX_ENTRY_BYTES = 8_000_000  # of one call
_NAMES = "self.log for numbers, and self.logger.log_image, log_table or log_text for all else"


class NoWriterError(ConfigError, AttributeError):
    """A model uses a method of a tracker's client, which Shardline does not provide."""


class NoWriter:
    """The value of `self.logger.experiment`: a placeholder, since trackers run in other processes."""

    def __getattr__(self, name: str) -> Any:
        """Reject any attribute.

        Raises:
            NoWriterError: The message names the attribute; `hasattr` returns False.
        """
        _reject(f"self.logger.experiment.{name}", name)


class JsonLinesLogger(Logger):
    """Appends one JSON object per record to a file, on rank 0 only.

    A record contains `step` (optimiser steps), `epoch`, `wall_s` (seconds of training, all attempts
    together) and the metrics by name. NaN and infinity, which JSON lacks, become null. Images, tables and
    texts have records of their own.

    A training checkpoint contains the number of records. A resumed training keeps so many, and repeats the calls
    behind them. Until its state is restored, it ignores calls, since the hooks of a start are called in each attempt.

    Args:
        path: The file; `rewind` drops records after the resumed state.

    Attributes:
        trainer: The trainer of the present attempt.
        num_records: Number of records in the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._started = time.monotonic()
        self._last: MetricLine | None = None
        self._last_step = 0
        self._items = self._bytes = 0
        self._is_full = self._is_repeating = False
        self._told: set[str] = set()
        self.trainer: pl.Trainer | None = None
        self.num_records = 0

    def __getattr__(self, name: str) -> Any:
        """Reject methods of other loggers.

        Raises:
            NoWriterError: The message names the method; `hasattr` returns False.
        """
        _reject(f"self.logger.{name}", name)

    @property
    def name(self) -> str:
        """Name for Lightning; unused."""
        return "metrics"

    @property
    def version(self) -> str:
        """Version for Lightning; unused."""
        return ""

    @property
    def save_dir(self) -> str:
        """Folder in which callbacks of a model write their files: the run's folder in the store."""
        return str(self._path.parent)

    @property
    @rank_zero_experiment
    def experiment(self) -> NoWriter:
        """An object whose errors point models to the methods of this logger."""
        return NoWriter()

    @rank_zero_only
    def rewind(self, step: int, num_records: int | None = None) -> None:
        """Drop the records after a state, since a resumed training writes them again.

        Args:
            step: Last recorded step before the state, for states without `num_records`; 0 for a new training.
            num_records: Number of records at the time of the state.
        """
        records = read_json_lines(self._path) if self._path.exists() else []
        lines = [line for line in map(MetricLine.of, records) if line]
        if num_records is None:
            lines = [line for line in lines if line.step <= step]
        texts = [json.dumps(line.to_json()) for line in lines[:num_records]]
        # all or nothing: a full disk must not lose the records of hours; and a new file, so that
        # programs that follow the file read it again from the start
        write_bytes(self._path, "".join(f"{text}\n" for text in texts).encode())
        kept = lines[:num_records]
        self._is_repeating = step > 0
        self.num_records = len(kept)
        self._last_step = max((line.step for line in kept), default=0)
        # the last line may be the record of an epoch that ends with the resumed step
        self._last = next((line for line in reversed(kept) if not line.logged), None)
        self._started = time.monotonic() - ((kept and kept[-1].wall_s) or 0.0)
        logged = [
            (line.logged, text) for line, text in zip(kept, texts, strict=True) if line.logged
        ]
        self._items = sum(len(items) for items, _ in logged)
        self._bytes = sum(len(text) for _, text in logged)
        self._is_full = any(one.left_out == "bound" for items, _ in logged for one in items)

    def continue_training(self) -> None:
        """Record calls again, now that the state of the resumed training is restored."""
        self._is_repeating = False

    # ---- what models call

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the settings are in run.json."""
        self._tell_once("log_hyperparams", "run.json already contains the model's arguments")

    @rank_zero_only
    def log_graph(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: no page shows a graph."""
        self._tell_once("log_graph", "neither the report nor a tracker gets a graph of the model")

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append one record, unless it repeats the last one.

        Args:
            metrics: Numbers by name.
            step: Number of the optimiser step, from 0. A record of a model's or a callback's own call has the step
                of the training instead.
        """
        epoch = int(metrics.get("epoch", 0))
        step = (step or 0) + 1
        if "epoch" not in metrics and self._is_in_hook():
            step, epoch = self._place()
        values = {key: _number(key, value) for key, value in metrics.items() if key != "epoch"}
        line = MetricLine(step=step, epoch=epoch, wall_s=self._wall_s(), values=values)
        if self._last and structs.replace(self._last, wall_s=line.wall_s) == line:
            return
        if self._append(line):
            self._last = line

    @rank_zero_only
    def log_image(
        self, key: str, images: Any, step: int | None = None, caption: Any = None, **kwargs: Any
    ) -> None:
        """Record images, see `logged_items.images_of`."""
        if kwargs:
            raise ConfigError(
                f"log_image({key!r}) got {', '.join(kwargs)}, expected caption alone; draw masks and boxes into it"
            )
        self._log(images_of(key, images, caption), step)

    @rank_zero_only
    def log_table(
        self, key: str, columns: Any = None, data: Any = None, dataframe: Any = None,
        step: int | None = None,
    ) -> None:  # fmt: skip
        """Record a table, given as columns and rows or as a data frame."""
        self._log([table_of(key, columns, data, dataframe, "log_table")], step)

    @rank_zero_only
    def log_text(
        self, key: str, columns: Any = None, data: Any = None, dataframe: Any = None,
        step: int | None = None, *, text: str | None = None,
    ) -> None:  # fmt: skip
        """Record a text, or a table of texts as Lightning's logger of W&B does."""
        if text is None and isinstance(columns, str):
            text = columns
        if text is not None:
            self._log([text_of(key, text)], step)
        else:
            self._log([table_of(key, columns, data, dataframe, "log_text")], step)

    def _log(self, items: list[Logged], step: int | None) -> None:
        if self._is_full or self._is_repeating or not items:
            return
        at, epoch = self._place()
        if step not in (None, at, at - 1):
            self._tell(f"step={step}", f"entries have the training's optimiser steps, here {at}")
        line = MetricLine(step=at, epoch=epoch, wall_s=self._wall_s(), values={}, logged=items)
        num_bytes = len(json.dumps(line.to_json()))
        if left_out := self._left_out(items, at, num_bytes):
            items = [Logged(name=items[0].name, left_out=left_out)]
            line = structs.replace(line, logged=items)
            num_bytes = len(json.dumps(line.to_json()))
        if self._append(line):
            self._items, self._bytes = self._items + len(items), self._bytes + num_bytes

    def _left_out(
        self, items: list[Logged], step: int, num_bytes: int
    ) -> Literal["size", "bound", ""]:
        """Return which bound an entry would exceed, and report it."""
        entry = f"the entry {items[0].name!r} of step {step}"
        if self._items + len(items) > MAX_ITEMS or self._bytes + num_bytes > MAX_BYTES:
            self._is_full = True
            self._tell(
                f"{entry} and all later images, tables and texts are left out, since",
                f"a run keeps {MAX_ITEMS:,} of them in {MAX_BYTES / 1e6:.0f} MB; log fewer or smaller ones",
            )
            return "bound"
        if num_bytes > MAX_ENTRY_BYTES:
            self._tell(
                f"{entry} is left out, since it has {num_bytes / 1e6:.1f} MB;",
                f"at most {MAX_ENTRY_BYTES / 1e6:.0f} MB are kept, so make it smaller",
            )
            return "size"
        return ""

    # ---- records

    def _append(self, line: MetricLine) -> bool:
        if self._is_repeating:
            return False
        with writing(self._path), self._path.open("a") as file:
            file.write(json.dumps(line.to_json()) + "\n")
        self.num_records += 1
        self._last_step = max(self._last_step, line.step)
        return True

    def _wall_s(self) -> float:
        return round(time.monotonic() - self._started, 3)

    def _is_in_hook(self) -> bool:
        return self.trainer is not None and is_in_hook(self.trainer)

    def _place(self) -> tuple[int, int]:
        """Return the step that is being done, or that was done last, and the epoch."""
        if self.trainer is None:
            return self._last_step, 0
        # trackers read the steps in order
        return max(current_step(self.trainer), self._last_step), self.trainer.current_epoch

    def _tell_once(self, call: str, reason: str) -> None:
        """Report a call that does nothing; Lightning itself calls these methods outside of hooks."""
        if self._is_in_hook() and call not in self._told:
            self._told.add(call)
            self._tell(f"self.logger.{call} does nothing here:", reason)

    def _tell(self, what: str, reason: str) -> None:
        print(f"warning: {what} {reason}", flush=True)


def _reject(what: str, name: str) -> NoReturn:
    if name.startswith("_"):
        raise AttributeError(name)
    raise NoWriterError(
        f"the model uses {what}, expected {_NAMES}, since trackers run in other processes; call one of these, and "
        "choose trackers with runtime.tracking"
    )


def _number(name: str, value: Any) -> float | None:
    try:
        return float(value) if math.isfinite(value) else None
    except (TypeError, ValueError):
        raise ConfigError(
            f"log_metrics got {name}={value!r}, expected a number; call self.logger.log_text or log_table for all else"
        ) from None
