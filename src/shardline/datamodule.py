"""Reading shards: the same global batches, in the same order, at any world size.

The batch sequence is a function of (dataset, seed, epoch). Rank r of W takes
the r-th of W equal slices of each global batch, so neither W nor the number of
loading processes changes which samples a step consumes.
"""

import hashlib
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


def epoch_order(num_rows: int, *, dataset_id: str, seed: int, epoch: int) -> np.ndarray:
    """Return the order [num_rows] in which an epoch visits a split.

    A function of its arguments alone: never of rank, world size or history.
    The dataset counts by its identity digest, so renaming it changes nothing.
    """
    text = f"{dataset_id[-12:]}/{seed}/{epoch}".encode()
    key = np.frombuffer(hashlib.sha256(text).digest()[:16], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(num_rows)


class TrainBatches(Sampler[list[int]]):
    """This rank's part of each global batch; the last partial global batch is dropped.

    Args:
        global_batch: samples per optimiser step over all ranks.
        accumulate: parts into which a rank splits its share.

    Attributes:
        start: parts of the epoch `start_epoch` already consumed, after a resume.
    """

    def __init__(
        self, dataset: ShardDataset, *, global_batch: int, seed: int, rank: int = 0,
        world_size: int = 1, accumulate: int = 1,
    ) -> None:  # fmt: skip
        self.dataset = dataset
        self.global_batch, self.seed = global_batch, seed
        self.rank, self.world_size, self.accumulate = rank, world_size, accumulate
        self.epoch, self.start_epoch, self.start = 0, 0, 0
        if len(dataset) < global_batch:
            raise DataError(
                f"global_batch={global_batch} is more than the {len(dataset)} train rows of "
                f"{dataset.dataset_id}; use a smaller batch or more data"
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration takes."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset) // self.global_batch * self.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        order = epoch_order(
            len(self.dataset), dataset_id=self.dataset.dataset_id, seed=self.seed, epoch=self.epoch
        )
        share = self.global_batch // self.world_size
        part = share // self.accumulate
        first = self.start if self.epoch == self.start_epoch else 0
        for index in range(first, len(self)):
            step, piece = divmod(index, self.accumulate)
            begin = step * self.global_batch + self.rank * share + piece * part
            yield order[begin : begin + part].tolist()


class HeldOutBatches(Sampler[list[int]]):
    """This rank's part of a held-out split: every row once, equally many batches on each rank.

    The rows are cut into almost equal global batches and those into almost
    equal slices, so that no rank waits for another and none is given padding.
    """

    def __init__(
        self, num_rows: int, *, global_batch: int, rank: int = 0, world_size: int = 1
    ) -> None:
        if num_rows < world_size:
            raise DataError(
                f"{num_rows} held-out rows cannot be shared by {world_size} ranks; enlarge the split"
            )
        self.num_rows, self.rank, self.world_size = num_rows, rank, world_size
        self.num_batches = max(1, min(-(-num_rows // global_batch), num_rows // world_size))

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        slices = self.num_batches * self.world_size
        for batch in range(self.num_batches):
            piece = batch * self.world_size + self.rank
            first, last = self.num_rows * piece // slices, self.num_rows * (piece + 1) // slices
            yield list(range(first, last))


class TrainLoader:
    """Iterates the train batches and remembers where it is, for mid-epoch resume.

    Lightning stores `state_dict()` in each training checkpoint and calls
    `set_epoch` of `sampler` before each epoch.
    """

    def __init__(self, sampler: TrainBatches, num_workers: int) -> None:
        self.sampler = sampler
        self._num_workers = num_workers
        self._position = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        sampler = self.sampler
        self._position = sampler.start if sampler.epoch == sampler.start_epoch else 0
        for batch in make_loader(sampler.dataset, sampler, self._num_workers):
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
            TrainBatches(
                self.train,
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
