"""Plain Lightning: `python -m benchmarks.steps.plain MODEL EPOCHS RANKS FOLDER [--bare]`, under torchrun."""

import logging
import sys
import warnings
from typing import Any

import pytorch_lightning as pl
import torch
from benchmarks.steps.timed import ACCELERATOR, EPOCH_STEPS, GLOBAL_BATCH, MODELS, rows
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset


def usual(folder: str) -> dict[str, Any]:
    """Return what most trainings add: a logger, checkpoints and early stopping."""
    return {
        "logger": CSVLogger(folder),
        "log_every_n_steps": 10,
        "callbacks": [
            ModelCheckpoint(folder, monitor="val_loss", save_last=True, every_n_epochs=1),
            EarlyStopping("val_loss", patience=100),
        ],
    }


def main() -> None:
    name, epochs, ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    bare = {"logger": False, "enable_checkpointing": False}
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    pl.seed_everything(1, verbose=False)
    train = TensorDataset(*rows(GLOBAL_BATCH * EPOCH_STEPS))
    trainer = pl.Trainer(
        accelerator=ACCELERATOR, devices=ranks, strategy="ddp" if ranks > 1 else "auto", max_epochs=epochs,
        deterministic=True, enable_progress_bar=False, enable_model_summary=False,
        **(bare if sys.argv[5:] else usual(folder)),
    )  # fmt: skip
    torch.manual_seed(1)
    trainer.fit(
        MODELS[name](),
        DataLoader(train, batch_size=GLOBAL_BATCH // ranks, shuffle=True),
        DataLoader(TensorDataset(*rows(512)), batch_size=128),
    )


if __name__ == "__main__":
    main()
