"""Small models of batches by column, and a transform."""

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy

from shardline.losses import token_mean


class Hide:
    """Hides some tokens from the model."""

    def __call__(self, sample, generator):
        hidden = generator.random(len(sample["tokens"])) < 0.2
        return {**sample, "seen": sample["tokens"] * ~hidden}


class Validated(LightningModule):
    """Logs its loss."""

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        size = len(next(iter(batch.values())))
        self.log("val_loss", self.loss(batch), batch_size=size)


class Language(Validated):
    """Predicts a token from the one before."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)

    def loss(self, batch):
        seen, tokens = batch.get("seen", batch["tokens"]).long(), batch["tokens"].long()
        logits = self.head(self.embed(seen[:, :-1])).transpose(1, 2)
        losses = cross_entropy(logits, tokens[:, 1:], reduction="none")
        return token_mean(losses, batch["tokens.positions"][:, 1:] > 0)


class Lengths(Validated):
    """Learns how a number follows from the tokens."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def loss(self, batch):
        inputs = torch.stack([batch["tokens"].sum(1), batch["tokens.lengths"]], 1).float()
        return ((inputs @ self.weight - batch["n"]) ** 2).mean()


class Photos(Validated):
    """Tells bright photos from dark ones."""

    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(3, num_classes)

    def loss(self, batch):
        return cross_entropy(self.head(batch["image"].mean((2, 3))), batch["labels"])
