"""Reading shards: the same global batches, in the same order, at any world size.

Which rows a step consumes is decided in `shardline.sampling`; here they are
fetched from memory-mapped shards, a batch at a time.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset, Sampler

from shardline.errors import DataError
from shardline.files import read_json
from shardline.sampling import HeldOutBatches, TrainBatches

Batch = tuple[torch.Tensor, torch.Tensor]


class ShardDataset(Dataset[Batch]):
    """One split of a sealed dataset, memory-mapped.

    Args:
        manifest_path: the sealed `manifest.json`.
        folder: folder of the shards in the store.
        split: `train`, `validation` or `test`.
        normalize: `standard`, `global` or `none`.

    Raises:
        DataError: the manifest or a shard is missing, or a shard has the wrong size.
    """

    def __init__(
        self, manifest_path: Path, folder: Path, split: str, *, normalize: str = "none"
    ) -> None:
        self.manifest = read_json(
            manifest_path, remedy="run the pipeline again to seal the dataset"
        )
        self.dataset_id: str = self.manifest["dataset"]
        self.shape = tuple(self.manifest["schema"]["feature_shape"])
        order = list(self.manifest["splits"])
        before = order[: order.index(split)]
        self._features, self._labels, self._ids = [], [], []
        for record in self.manifest["shards"]:
            columns = _map_shard(folder / record["file"], record, self.dataset_id)
            first = sum(record["rows"][name] for name in before)
            rows = slice(first, first + record["rows"][split])
            self._features.append(columns["features"][rows])
            self._labels.append(columns["labels"][rows])
            self._ids.append(columns["ids"][rows])
        self._starts = np.cumsum([0, *(len(labels) for labels in self._labels)])
        self._shift, self._scale = _normalizer(self.manifest, normalize, self.shape)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Batch:
        features, labels = self.__getitems__([index])
        return features[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return the rows at `indices`: features [B, *shape] float32 and labels [B]."""
        rows = np.asarray(indices, dtype=np.int64)
        features = np.empty((len(rows), *self.shape), dtype=np.float32)
        labels = np.empty(len(rows), dtype=self.manifest_label_dtype)
        for shard, where, local in self._by_shard(rows):
            features[where] = self._features[shard][local]
            labels[where] = self._labels[shard][local]
        if self._scale is not None:
            features -= self._shift
            features *= self._scale
        return torch.from_numpy(features), torch.from_numpy(labels)

    def ids(self, indices: Sequence[int]) -> np.ndarray:
        """Return the row ids [B] int64 at `indices`."""
        rows = np.asarray(indices, dtype=np.int64)
        ids = np.empty(len(rows), dtype=np.int64)
        for shard, where, local in self._by_shard(rows):
            ids[where] = self._ids[shard][local]
        return ids

    @property
    def manifest_label_dtype(self) -> str:
        """NumPy name of the labels' type."""
        return "int64" if self.manifest["schema"]["task"] == "classification" else "float32"

    def _by_shard(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        for shard in np.unique(shards):
            where = np.flatnonzero(shards == shard)
            yield int(shard), where, rows[where] - self._starts[shard]


def _map_shard(path: Path, record: Mapping[str, Any], dataset_id: str) -> dict[str, np.ndarray]:
    """Map a safetensors file: 8 bytes of header length, a JSON header, then the tensors' bytes."""
    remedy = (
        f"delete the folders {path.parent} and results/datasets/{dataset_id}, "
        "and run the pipeline again to rebuild them"
    )
    try:
        size = path.stat().st_size
        if size != record["bytes"]:
            raise DataError(
                f"shard {path} has {size:,} bytes, its manifest says {record['bytes']:,}; {remedy}"
            )
        raw = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)  # indexes faster
    except OSError as error:
        raise DataError(f"shard {path} cannot be read ({error.strerror}); {remedy}") from None
    length = int(raw[:8].view("<u8")[0])
    try:
        header = json.loads(bytes(raw[8 : 8 + length]))
    except ValueError:
        raise DataError(f"shard {path} has a damaged header; {remedy}") from None
    columns = {}
    for name in ("features", "labels", "ids"):
        first, last = header[name]["data_offsets"]
        block = raw[8 + length + first : 8 + length + last]
        columns[name] = block.view(_DTYPES[header[name]["dtype"]]).reshape(header[name]["shape"])
    return columns


_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1"}


def _normalizer(
    manifest: Mapping[str, Any], normalize: str, shape: tuple[int, ...]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    if normalize == "none":
        return None, None
    statistics = manifest["statistics"]["features"]
    mean, std = np.array(statistics["mean"]), np.array(statistics["std"])
    if normalize == "global":
        # variance over all features: the mean of the variances and the variance of the means
        overall = np.sqrt((std**2).mean() + mean.var())
        mean, std = np.full_like(mean, mean.mean()), np.full_like(std, overall)
    scale = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
    return mean.astype(np.float32).reshape(shape), scale.astype(np.float32).reshape(shape)


class TrainLoader:
    """Iterates the train batches and remembers where it is, for mid-epoch resume.

    Lightning stores `state_dict()` in each training checkpoint and calls
    `set_epoch` of `sampler` before each epoch.
    """

    def __init__(self, dataset: ShardDataset, sampler: TrainBatches, num_workers: int) -> None:
        self._dataset = dataset
        self.sampler = sampler
        self._num_workers = num_workers
        self._position = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        sampler = self.sampler
        self._position = sampler.start if sampler.epoch == sampler.start_epoch else 0
        for batch in make_loader(self._dataset, sampler, self._num_workers):
            self._position += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the samples of it that all ranks together have consumed."""
        samples = self._position * self.sampler.global_batch // self.sampler.accumulate
        return {"epoch": self.sampler.epoch, "samples": samples}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue after the samples that were consumed, at this or another world size."""
        self.sampler.start_epoch = self.sampler.epoch = state["epoch"]
        self.sampler.start = state["samples"] * self.sampler.accumulate // self.sampler.global_batch


def make_loader(
    dataset: ShardDataset, batches: Sampler[list[int]], num_workers: int
) -> DataLoader[Batch]:
    """Return a DataLoader that fetches whole batches at a time."""
    return DataLoader(
        dataset,
        batch_sampler=batches,
        collate_fn=_as_is,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
    )


def _as_is(batch: Any) -> Any:
    return batch


class ShardDataModule(LightningDataModule):
    """Train and validation data of one run, for one rank.

    Args:
        spec: the run's `run.json`.
        manifest_path: the sealed manifest of its dataset.
        folder: folder of the shards in the store.
    """

    def __init__(
        self, spec: Mapping[str, Any], manifest_path: Path, folder: Path, *, rank: int = 0,
        world_size: int = 1, num_workers: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self._settings = spec["settings"]
        self._rank, self._world_size, self._num_workers = rank, world_size, num_workers
        normalize = self._settings["data"]["normalize"]
        self.train = ShardDataset(manifest_path, folder, "train", normalize=normalize)
        self.validation = ShardDataset(manifest_path, folder, "validation", normalize=normalize)
        self.loader = TrainLoader(
            self.train,
            TrainBatches(
                len(self.train),
                dataset_id=self.train.dataset_id,
                global_batch=self._settings["global_batch"],
                seed=self._settings["seed"],
                rank=rank,
                world_size=world_size,
                accumulate=self._settings["trainer"]["accumulate"],
            ),
            num_workers,
        )

    def train_dataloader(self) -> TrainLoader:
        """Return this rank's train batches."""
        return self.loader

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return this rank's validation batches."""
        batches = HeldOutBatches(
            len(self.validation),
            global_batch=4 * self._settings["global_batch"],
            rank=self._rank,
            world_size=self._world_size,
        )
        return make_loader(self.validation, batches, self._num_workers)
