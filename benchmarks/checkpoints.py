"""What a training checkpoint costs: steps with an asynchronous save, a synchronous one and none.

One training; its steps are taken in blocks, which begin in turn with no save, an
asynchronous save, and a synchronous one. A block is longer than a write takes, so that it
bears the whole cost: the copy, and the cores and disk that the writer takes from the steps. The
model is a multilayer perceptron with Adam, whose state is three times its weights. `--store`
names the folder, and so the disk, that is written to.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shardline.checkpoints.best import BestCheckpoint, ValidatedWeights
from shardline.checkpoints.folder import list_saved
from shardline.checkpoints.manager import CheckpointManager
from shardline.checkpoints.manifest import CheckpointPolicy

MODES = ("none", "asynchronous", "synchronous")
DEFAULT_STEPS, TARGET = 200, 0.02


class Model(pl.LightningModule):
    """Five square layers of this width, and a batch that keeps the cores busy."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [layer for _ in range(5) for layer in (nn.Linear(width, width), nn.ReLU())]
        self.layers = nn.Sequential(*layers)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-4)


class Blocks(pl.Callback):
    """Times each block, and begins it with the save of its mode."""

    def __init__(self, manager: CheckpointManager, length: int) -> None:
        self._manager, self._length = manager, length
        self.seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
        self.stalls: dict[str, list[float]] = {mode: [] for mode in MODES}
        self._block, self._started = -1, 0.0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step % self._length:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if self._block > 0:  # the first two come before the memory of the copies is there
            mode = MODES[self._block % 3]
            if self._block > 2:
                self.seconds[mode].append(time.perf_counter() - self._started)
        self._block += 1
        self._begin(trainer, MODES[self._block % 3])

    def _begin(self, trainer: pl.Trainer, mode: str) -> None:
        self._manager._background.wait()
        before, self._started = self._manager.seconds, time.perf_counter()
        if mode != "none":
            self._manager.save(trainer, wait=mode == "synchronous")
            self.stalls[mode].append(self._manager.seconds - before)


def measure(width: int, batch: int, length: int, rounds: int, store: str) -> None:
    model, steps = Model(width), (3 * rounds + 4) * length
    with tempfile.TemporaryDirectory(dir=store) as place:
        folder = Path(place, "checkpoints")
        best = BestCheckpoint(folder, ValidatedWeights(), monitor="loss", mode="min", top_k=1)
        manager = CheckpointManager(folder, "0" * 64, CheckpointPolicy(), best)
        blocks, writes = Blocks(manager, length), time_writes(manager)
        trainer = pl.Trainer(
            max_epochs=1, accelerator="auto", devices=1, callbacks=[manager, blocks, best], logger=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        manager.resume_from(trainer)
        rows, order = TensorDataset(torch.randn(batch, width)), [*range(batch)] * steps
        trainer.fit(model, DataLoader(rows, batch_size=batch, sampler=order))
        size = list_saved(folder)[0].bytes
    show(model, size, blocks, writes, length)


def time_writes(manager: CheckpointManager) -> list[float]:
    """Return a list that each write adds its seconds to."""
    seconds, write = [], manager._write

    def timed(*args: Any, **kwargs: Any) -> None:
        started = time.perf_counter()
        write(*args, **kwargs)
        seconds.append(time.perf_counter() - started)

    manager._write = timed  # type: ignore[method-assign]
    return seconds


def show(model: nn.Module, size: int, blocks: Blocks, writes: list[float], length: int) -> None:
    millions = sum(weight.numel() for weight in model.parameters()) / 1e6
    plain = statistics.median(blocks.seconds["none"])
    print(
        f"{millions:.0f} M parameters, a state of {size / 1e6:,.0f} MB, {1e3 * plain / length:.0f} ms a step"
    )
    print(
        f"{'':14}{'stall':>10}{'a save costs':>14}{f'every {length}':>11}{f'every {DEFAULT_STEPS}':>11}{'2 % at':>12}"
    )
    for mode in MODES[1:]:
        # of neighbours, so that a machine that slows down counts in both
        pairs = zip(blocks.seconds[mode], blocks.seconds["none"], strict=False)
        cost = statistics.median(one - none for one, none in pairs)
        stall = statistics.median(blocks.stalls[mode])
        print(
            f"{mode:14}{1e3 * stall:7.0f} ms{1e3 * cost:11.0f} ms{cost / plain:11.2%}"
            f"{cost / plain * length / DEFAULT_STEPS:11.2%}{cost / (TARGET * plain / length):6.0f} steps"
        )
    print(f"a write takes {statistics.median(writes):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=50, help="steps of a block")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", default=None, help="folder to write to")
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    measure(args.width, args.batch, args.length, args.rounds, args.store)


if __name__ == "__main__":
    main()
