"""Trains on two ranks with Lightning; resumes from the last checkpoint where there is one."""

import argparse
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    """The model of the other side: three layers, dropout, Adam."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(8, 128), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 2),
        )  # fmt: skip

    def training_step(self, batch, batch_idx):
        features, labels = batch
        return nn.functional.cross_entropy(self.net(features), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def rows() -> DataLoader:
    """Return 640 rows in batches of 16 for each of two ranks: 20 steps an epoch."""
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(640, 8, generator=generator)
    labels = (features.sum(1) > 0).long()
    return DataLoader(TensorDataset(features, labels), batch_size=16, shuffle=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    args = parser.parse_args()
    pl.seed_everything(0, workers=True)
    from faults import Faults  # the pause and the record of steps are the same on both sides

    saving = ModelCheckpoint(args.checkpoints, save_last=True, every_n_train_steps=7)
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=3, deterministic=True,
        callbacks=[saving, Faults()], logger=False, enable_progress_bar=False,
    )  # fmt: skip
    model = Net()
    trainer.fit(model, rows(), ckpt_path="last")
    if trainer.is_global_zero:
        torch.save(model.state_dict(), args.model)


if __name__ == "__main__":
    main()
