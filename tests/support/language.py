"""A language model over rows of bytes of varying length."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional
from torchmetrics import MeanMetric

from shardline.losses import token_mean


class Language(pl.LightningModule):
    """Predicts each byte of a line from those before."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.layers = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)
        self.test_loss = MeanMetric()

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens.long()))[0])

    def losses(self, batch):
        """Return the loss [B, longest - 1] of each next byte, and which of them count."""
        tokens = batch["tokens"].long()
        logits = self(tokens[:, :-1]).transpose(1, 2)
        place = torch.arange(1, tokens.shape[1], device=self.device)
        counts = place < batch["tokens.lengths"][:, None].to(self.device)
        return functional.cross_entropy(logits, tokens[:, 1:], reduction="none"), counts

    def training_step(self, batch, batch_idx):
        losses, counts = self.losses(batch)
        loss = token_mean(losses, counts, mean_count=batch["tokens.mean_count"])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        losses, counts = self.losses(batch)
        self.log("val_loss", losses[counts].mean(), batch_size=int(counts.sum()), sync_dist=True)

    def test_step(self, batch, batch_idx):
        losses, counts = self.losses(batch)
        self.test_loss.update(losses[counts])

    def on_test_epoch_end(self):
        loss = self.test_loss.compute()
        self.log_dict({"test_loss": loss, "perplexity": loss.exp()})
