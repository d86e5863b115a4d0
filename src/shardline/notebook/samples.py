"""Rows and batches of a run's splits, for use outside of a training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset as TorchDataset

from shardline.config.resolved import DatasetPlace
from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import ConfigError
from shardline.core.world import World
from shardline.data.collate import Batch
from shardline.data.datamodule import HeldOutLoader, Normalizer, ShardDataModule, model_dtype
from shardline.data.dataset import Dataset
from shardline.data.run_batches import RunBatches
from shardline.data.sample_index import RowUnits
from shardline.data.windowmap import WindowMap
from shardline.records.datasets import Manifest
from shardline_io.order.pieces import Piece

_ALONE = World(
    rank=0, local_rank=0, world_size=1, local_world_size=1, master_addr="127.0.0.1", master_port=0, launcher="local"
)  # fmt: skip


class SplitRows(TorchDataset[dict[str, Any]]):
    """The rows of a split as they are stored, by number; in a mix, the datasets one after the other.

    A row is a dict of its columns: arrays [*shape], texts and bytes as they are, None for a missing value.
    """

    def __init__(self, datasets: Sequence[Dataset], split: str) -> None:
        self._pieces = [
            (one.shards, piece) for one in datasets for piece in one.shards.pieces(split)
        ]
        self._ends = np.cumsum([piece.last - piece.first for _, piece in self._pieces])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not -len(self) <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        number %= len(self)
        at = int(np.searchsorted(self._ends, number, side="right"))
        shards, piece = self._pieces[at]
        row = piece.last - (int(self._ends[at]) - number)
        units = RowUnits(shards=shards, pieces=(one := Piece(piece.shard, row, row + 1),))
        sample = units.load(WindowMap(shards, units.rows([one])), [one]).sample(0)
        # the window is mapped memory, which ends with it
        return {
            name: of.copy() if isinstance(of, np.ndarray) else of for name, of in sample.items()
        }


class Batches:
    """Batches of a split, normalised as the model gets them; each iteration begins at the first.

    Args:
        epoch: Epoch of the train split.
    """

    def __init__(self, loader: Any, normalize: Normalizer, epoch: int = 0) -> None:
        self._loader, self._normalize, self.epoch = loader, normalize, epoch

    def __len__(self) -> int:
        if hasattr(self._loader, "set_epoch"):
            self._loader.set_epoch(self.epoch)
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        if hasattr(self._loader, "set_epoch"):
            self._loader.set_epoch(self.epoch)
        yield from map(self._normalize.batch, self._loader)


@dataclass(frozen=True, kw_only=True)
class SplitData:
    """A split of a run.

    Attributes:
        dataset: The rows as stored, see `SplitRows`.
        loader: The batches of all ranks together, see `Batches`: of the train split in the order of training, with
            `loader.epoch` to choose the epoch; of other splits all rows once.
        manifest: The sealed manifest of the (first) dataset.
    """

    dataset: SplitRows
    loader: Batches
    manifest: Manifest


def split_data(places: Sequence[DatasetPlace], settings: RunSettings, split: str) -> SplitData:
    """Return rows and batches of a split.

    Args:
        places: Datasets of the run.

    Raises:
        ConfigError: There is no such split.
        DataError: A dataset is not sealed, or its shards are missing or damaged.
    """
    batches = RunBatches(places, settings)
    if split not in batches.manifest.splits:
        known = ", ".join(batches.manifest.splits)
        raise ConfigError(f'split "{split}" is not in the dataset; expected one of {known}')
    normalize = Normalizer(batches, settings.data.normalize, model_dtype(settings.precision))
    loader: Any
    if split == "train":
        loader = ShardDataModule(settings, places, _ALONE).loader
    else:
        stream, order = batches.held_out(split, batch=settings.evaluation.batch)
        loader = HeldOutLoader(stream, order)
    return SplitData(
        dataset=SplitRows(batches.datasets, split), loader=Batches(loader, normalize),
        manifest=batches.manifest,
    )  # fmt: skip
