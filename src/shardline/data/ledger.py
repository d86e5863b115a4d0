"""Sample ledger: the rows that each global step consumed, written by every rank.

There is one file per rank and attempt, `from-{step}-rank-{r}-of-{W}.jsonl`, with a line per batch: the
ids of its rows. For mixed, transformed or packed samples, the line also has each sample's part
(index of its dataset or class) and its pass over that part. A batch that `on_train_batch_start` skips has
no line. The file name contains the step from which the attempt resumed. An attempt replaces the steps of
earlier ones that it repeats: it removes the files of attempts that began behind it, and readers leave out the
steps of others that it began before.
"""

import json
from pathlib import Path
from typing import Any, TextIO

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from shardline.core.files import read_json_lines, writing
from shardline.core.world import World
from shardline_io.ledger_files import files_of, open_file


class SampleLedger(Callback):
    """Callback that records the row ids of each batch that this rank trains on.

    Args:
        folder: folder of the ledger's files.
        world: rank of this process.
    """

    def __init__(self, folder: Path, world: World) -> None:
        self._folder, self._world = folder, world
        self._file: TextIO | None = None
        self._line: dict[str, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open this attempt's file."""
        with writing(self._folder):
            self._file = open_file(
                self._folder,
                start=trainer.global_step,
                rank=self._world.rank,
                world_size=self._world.world_size,
            )

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note the batch's row ids, before the next ones are read."""
        stream = trainer.datamodule.loader.stream  # type: ignore[attr-defined]
        ids = stream.batch_ids.tolist()
        line = {"step": trainer.global_step + 1, "epoch": trainer.current_epoch, "ids": ids}
        if (parts := stream.batch_parts) is not None:
            line |= {"parts": parts.tolist(), "passes": stream.batch_passes.tolist()}
        self._line = line

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Record the batch's row ids under their optimiser step."""
        if self._file is None:
            return
        with writing(Path(self._file.name)):
            print(json.dumps(self._line), file=self._file)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read_ledger(folder: Path | str) -> dict[int, list[int]]:
    """Return the row ids of each global step, in the order of ranks and their batches."""
    return {step: [row for _, _, row in samples] for step, samples in read_samples(folder).items()}


def read_samples(folder: Path | str) -> dict[int, list[tuple[int, int, int]]]:
    """Return (part, pass, row id) of each sample of each global step, in the order of ranks.

    Part and pass are 0 if the ledger has none, for a single dataset whose rows are used as stored.
    """
    files = sorted(
        (int(found["start"]), int(found["rank"]), path) for path, found in files_of(Path(folder))
    )
    starts = sorted({start for start, _, _ in files})
    steps: dict[int, list[tuple[int, int, int]]] = {}
    for start, _, path in files:
        end = next((later for later in starts if later > start), None)
        for record in read_json_lines(path):
            if end is None or record["step"] <= end:
                ids, none = record["ids"], [0] * len(record["ids"])
                parts, passes = record.get("parts", none), record.get("passes", none)
                samples = zip(parts, passes, ids, strict=True)
                steps.setdefault(record["step"], []).extend(samples)
    return dict(sorted(steps.items()))
