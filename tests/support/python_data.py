"""Torch datasets and data modules of many shapes, as people write them."""

import dataclasses
import random
from collections import namedtuple
from typing import Any

import numpy as np
import torch
from PIL import Image
from pytorch_lightning import LightningDataModule
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

ROWS = 24


class Table(Dataset):
    """(features, label) as tensors and Python numbers."""

    def __init__(self, rows: int = ROWS, scale: float = 1.0) -> None:
        self.rows, self.scale = rows, scale

    def __len__(self) -> int:
        return self.rows

    def features(self, row: int) -> Any:
        return torch.tensor([row, row + 0.5]) * self.scale

    def __getitem__(self, row: int) -> Any:
        if row >= self.rows:
            raise IndexError(row)
        return self.features(row), row % 3


class Named(Table):
    def __getitem__(self, row: int) -> Any:
        return {"x": self.features(row).numpy(), "meta": {"row": row, "name": f"r{row}"}}


Pair = namedtuple("Pair", ["first", "second"])


class Pairs(Table):
    def __getitem__(self, row: int) -> Any:
        return Pair(np.float32(row), [row, row + 1])


@dataclasses.dataclass
class Record:
    weight: float
    tokens: torch.Tensor
    note: str | None


class Records(Table):
    def __getitem__(self, row: int) -> Any:
        return Record(row / 2, torch.arange(row % 4), None if row % 2 else f"é{row}")


class Alone(Table):
    def __getitem__(self, row: int) -> Any:
        return self.features(row)


class Texts(Table):
    def __getitem__(self, row: int) -> Any:
        return f"text {row}", row % 2


class Contents(Table):
    def __getitem__(self, row: int) -> Any:
        return bytes([row] * (row % 5)), float(row)


def picture(row: int, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(row).integers(0, 255, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


class Pictures(Table):
    """Images of one size, as CIFAR10 of torchvision has them."""

    classes = ["a", "b", "c"]  # noqa: RUF012

    def __init__(
        self, transform: Any = None, target_transform: Any = None, mode: str = "RGB"
    ) -> None:
        super().__init__()
        self.transform, self.target_transform, self.mode = transform, target_transform, mode

    def __getitem__(self, row: int) -> Any:
        image, label = picture(row, mode=self.mode), row % 3
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            label = self.target_transform(label)
        return image, label


class Sizes(Table):
    """Images of different sizes."""

    def __getitem__(self, row: int) -> Any:
        return picture(row, (4 + row % 3, 5)), row % 3


class Detections(Table):
    def __getitem__(self, row: int) -> Any:
        boxes = torch.arange(4.0 * (row % 3)).reshape(-1, 4)
        return picture(row), {"boxes": boxes, "labels": torch.arange(row % 3)}


class Views(Table):
    """Two random views of an image."""

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def __getitem__(self, row: int) -> Any:
        image = picture(row)
        return self.transform(image), self.transform(image), row


class Keywords(Table):
    """Calls its transform as albumentations wants it."""

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def __getitem__(self, row: int) -> Any:
        return {"image": self.transform(image=np.asarray(picture(row)))["image"], "labels": row % 3}


class WholeSample(Table):
    """Calls its transform with the whole sample, as in the tutorial of torch."""

    def __init__(self, transform: Any = None) -> None:
        super().__init__()
        self.transform = transform

    def __getitem__(self, row: int) -> Any:
        sample = {"image": np.asarray(picture(row)), "labels": row % 3}
        return self.transform(sample) if self.transform else sample


class Changed(Table):
    """Changes what its transform returns."""

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def __getitem__(self, row: int) -> Any:
        return self.transform(self.features(row)) * 2.0, row % 3


class Joint(Table):
    def __init__(self, transforms: Any) -> None:
        super().__init__()
        self.transforms = transforms

    def __getitem__(self, row: int) -> Any:
        return self.transforms(picture(row), row % 3)


class Stream(IterableDataset):
    def __init__(self, rows: int = ROWS) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        for row in range(self.rows):
            yield torch.tensor([float(row)]), f"t{row}"


def function(rows: int) -> Dataset:
    return TensorDataset(torch.arange(rows * 2.0).reshape(rows, 2), torch.arange(rows) % 2)


def chained() -> Dataset:
    return ConcatDataset([Subset(Table(), range(4, 10)), Table(3, 2.0)])


class Plus:
    """Adds chance from a global generator to an image; returns float32 [channels, height, width]."""

    def __init__(self, by: str = "torch") -> None:
        self.by = by

    def __call__(self, image: Any) -> Any:
        assert isinstance(image, Image.Image)
        chance = {
            "torch": lambda: float(torch.rand(())),
            "numpy": np.random.random,
            "python": random.random,
        }
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255 + chance[self.by]()


class Scale:
    def __call__(self, image: Any) -> Any:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


class Module(LightningDataModule):
    """The usual data module with augmentation."""

    def __init__(self, seed: int | None = 0, by: str = "torch") -> None:
        super().__init__()
        self.seed, self.by = seed, by

    def setup(self, stage: str | None = None) -> None:
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        whole = Pictures(transform=Plus(self.by))
        assert self.trainer.world_size == 1
        self.train, self.held_out = random_split(whole, [20, 4], generator=generator)

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, batch_size=4, shuffle=True)

    def val_dataloader(self) -> Any:
        return [DataLoader(self.held_out, batch_size=4)]

    def test_dataloader(self) -> Any:
        return DataLoader(Pictures(transform=Scale()), batch_size=4)


def joined(samples: Any) -> Any:
    return samples


class Peculiar(LightningDataModule):
    """Has everything that Shardline does not use."""

    def train_dataloader(self) -> Any:
        return DataLoader(
            Table(), sampler=SubsetRandomSampler(range(0, ROWS, 2)), collate_fn=joined
        )

    def val_dataloader(self) -> Any:
        weights = WeightedRandomSampler([1.0] * ROWS, 2 * ROWS)
        return DataLoader(Table(), sampler=weights, collate_fn=lambda samples: samples)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class Several(LightningDataModule):
    def train_dataloader(self) -> Any:
        return [DataLoader(Table()), DataLoader(Table())]


class Streams(LightningDataModule):
    def train_dataloader(self) -> Any:
        return DataLoader(Stream(9))

    def val_dataloader(self) -> Any:
        return DataLoader(Stream(3))


LISTED = [{"x": row} for row in range(ROWS)]


class Broken(Table):
    def __getitem__(self, row: int) -> Any:
        return 1 / 0


class Unsized(Dataset):
    def __getitem__(self, row: int) -> Any:
        return row


class Objects(Table):
    def __getitem__(self, row: int) -> Any:
        return {"x": 1j}


class Squares(Table):
    def __getitem__(self, row: int) -> Any:
        return {"x": np.zeros((1 + row % 2, 1 + row % 2))}


class Asking(LightningDataModule):
    def setup(self, stage: str | None = None) -> None:
        self.trainer.strategy.barrier()

    def train_dataloader(self) -> Any:
        return DataLoader(Table())


class Late(Table):
    def __init__(self) -> None:
        super().__init__(400)

    def __getitem__(self, row: int) -> Any:
        return {"x": [1, 2, 3] if row == 301 else [1, 2]}


FILL = 3
