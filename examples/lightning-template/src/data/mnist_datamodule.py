"""Images of handwritten digits, split at random."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule
from PIL import Image
from torch.utils.data import DataLoader, Dataset, random_split


class Digits(Dataset):
    """Images of 8 x 8 pixels, with the interface of torchvision's datasets."""

    classes = tuple("0123456789")

    def __init__(
        self, file: Path, transform: Callable[[Image.Image], torch.Tensor] | None = None
    ) -> None:
        arrays = np.load(file)
        self.images, self.labels = arrays["images"], arrays["labels"]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = Image.fromarray(self.images[index])
        if self.transform is not None:
            image = self.transform(image)
        return image, int(self.labels[index])


def to_normalized_tensor(image: Image.Image) -> torch.Tensor:
    """Return pixels [1, 8, 8] with mean 0 and deviation 1 over the digits."""
    pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 255)
    return ((pixels - 0.305) / 0.376).unsqueeze(0)


class MNISTDataModule(LightningDataModule):
    """The digits, with a random split that a seed decides."""

    def __init__(
        self,
        data_dir: str = "data/",
        train_val_test_split: tuple[int, int, int] = (1400, 200, 197),
        batch_size: int = 50,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.data_train: Dataset | None = None
        self.data_val: Dataset | None = None
        self.data_test: Dataset | None = None
        self.batch_size_per_device = batch_size

    @property
    def num_classes(self) -> int:
        return 10

    @property
    def file(self) -> Path:
        return Path(self.hparams["data_dir"]) / "digits.npz"

    def prepare_data(self) -> None:
        """Write the digits that scikit-learn ships; another project would download its data."""
        if self.file.exists():
            return
        from sklearn.datasets import load_digits

        found = load_digits()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        images = (found.images * (255 / 16)).astype(np.uint8)
        np.savez(self.file, images=images, labels=found.target)

    def setup(self, stage: str | None = None) -> None:
        if self.trainer is not None:
            if self.hparams["batch_size"] % self.trainer.world_size:
                raise RuntimeError(
                    f"Batch size ({self.hparams['batch_size']}) is not divisible by the number of "
                    f"devices ({self.trainer.world_size})."
                )
            self.batch_size_per_device = self.hparams["batch_size"] // self.trainer.world_size
        if self.data_train is None:
            self.data_train, self.data_val, self.data_test = random_split(
                Digits(self.file, to_normalized_tensor),
                self.hparams["train_val_test_split"],
                generator=torch.Generator().manual_seed(42),
            )

    def train_dataloader(self) -> DataLoader:
        return self._loader(self.data_train, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return self._loader(self.data_val)

    def test_dataloader(self) -> DataLoader:
        return self._loader(self.data_test)

    def _loader(self, dataset: Dataset | None, *, shuffle: bool = False) -> DataLoader:
        assert dataset is not None
        return DataLoader(
            dataset,
            batch_size=self.batch_size_per_device,
            num_workers=self.hparams["num_workers"],
            pin_memory=self.hparams["pin_memory"],
            shuffle=shuffle,
        )
