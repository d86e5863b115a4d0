"""A small anchor-free detector, after Zhou et al. 2019, "Objects as Points"."""

import torch
from pytorch_lightning import LightningModule
from shardline.losses import token_mean
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, l1_loss
from torchmetrics import MeanMetric

STRIDE = 8  # side of a grid cell in pixels
KINDS = ("disc", "square")


class Detector(LightningModule):
    """Predicts for each grid cell whether a box of each kind has its centre there, and the box."""

    def __init__(self, kinds=2, width=32):
        super().__init__()
        self.kinds = kinds
        layers = []
        for before, after in ((1, width), (width, width), (width, 2 * width)):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(8, after), nn.ReLU(),
                nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU(),
            ]  # fmt: skip
        self.net = nn.Sequential(*layers, nn.Conv2d(2 * width, kinds + 4, 1))
        nn.init.constant_(self.net[-1].bias[:kinds], -3.0)  # most cells are empty
        self.val_loss = MeanMetric()
        self.val_found, self.val_right = MeanMetric(), MeanMetric()
        self.test_found, self.test_right = MeanMetric(), MeanMetric()

    def forward(self, images_BHW: torch.Tensor) -> torch.Tensor:
        """Return [B, kinds + 4, H / 8, W / 8]: logits of the kinds, then centre and size in cells."""
        return self.net(images_BHW[:, None].float() / 255)

    def targets(self, batch, grid):
        """Return the targets of `forward`, and which cells contain a centre [B, rows, columns].

        All images of a global batch are padded to the same number of boxes; `boxes.lengths` is the
        real number of boxes of each image.
        """
        boxes, lengths = batch["boxes"] / STRIDE, batch["boxes.lengths"]
        wanted = torch.zeros_like(grid)
        held = torch.zeros_like(grid[:, 0])
        for place in range(boxes.shape[1]):
            image = torch.nonzero(place < lengths).flatten()
            left, top, right, bottom = boxes[image, place].unbind(1)
            x, y = (left + right) / 2, (top + bottom) / 2
            column, row = x.long(), y.long()
            wanted[image, :, row, column] = 0
            wanted[image, batch["kinds"][image, place], row, column] = 1
            box = torch.stack([x - column, y - row, right - left, bottom - top], dim=1)
            wanted[image, self.kinds :, row, column] = box
            held[image, row, column] = 1
        return wanted, held

    def losses(self, batch):
        """Return the loss of each cell [B, rows, columns], the outputs, the targets and the centres."""
        grid = self(batch["image"])
        wanted, held = self.targets(batch, grid)
        kinds = slice(None, self.kinds)
        score = binary_cross_entropy_with_logits(grid[:, kinds], wanted[:, kinds], reduction="none")
        shift = l1_loss(grid[:, self.kinds :], wanted[:, self.kinds :], reduction="none")
        return score.sum(1) + held * shift.sum(1), grid, wanted, held

    def training_step(self, batch, batch_idx):
        losses, *_ = self.losses(batch)
        loss = token_mean(losses, torch.ones_like(losses), mean_count=losses.numel())
        self.log("train_loss", loss, batch_size=len(losses))
        return loss

    def validation_step(self, batch, batch_idx):
        losses, *found = self.losses(batch)
        self.val_loss.update(losses)
        self.log("val_loss", self.val_loss, batch_size=len(losses))
        self.measure("val", *found)

    def test_step(self, batch, batch_idx):
        losses, *found = self.losses(batch)
        self.measure("test", *found)
        return {"sample_losses": losses.flatten(1).mean(1)}

    def describe_sample(self, batch):
        """Return the true and the predicted boxes of a batch of one image, in pixels."""
        count = int(batch["boxes.lengths"][0])
        grid = self(batch["image"])[0]
        score, kind = grid[: self.kinds].sigmoid().max(0)
        row, column = torch.nonzero(score > 0.5, as_tuple=True)
        x, y, wide, high = grid[self.kinds :, row, column] * STRIDE
        x, y = x + column * STRIDE, y + row * STRIDE
        corners = [x - wide / 2, y - high / 2, x + wide / 2, y + high / 2]
        return {
            "boxes": {"true": batch["boxes"][0, :count], "predicted": torch.stack(corners, dim=1)},
            "labels": {
                "true": [KINDS[number] for number in batch["kinds"][0, :count]],
                "predicted": [KINDS[number] for number in kind[row, column]],
            },
            "scores": score[row, column],
        }

    def measure(self, split, grid, wanted, held):
        """Log recall (found boxes of all boxes) and precision (right boxes of all predictions).

        A box is found if its cell predicts the right kind with probability > 0.5 and a box with IoU > 0.5.
        """
        predicted = grid[:, : self.kinds].sigmoid().amax(1) > 0.5
        kind = grid[:, : self.kinds].argmax(1) == wanted[:, : self.kinds].argmax(1)
        right = (held > 0) & predicted & kind & (iou(grid, wanted, self.kinds) > 0.5)
        found, precise = getattr(self, f"{split}_found"), getattr(self, f"{split}_right")
        found.update(right[held > 0].float())
        precise.update(right[predicted].float())
        values = {f"{split}_recall": found, f"{split}_precision": precise}
        self.log_dict(values, batch_size=len(grid))


def iou(grid, wanted, kinds):
    """Return the intersection over union of two boxes in each cell [B, rows, columns]."""
    (x, y, wide, high), (u, v, broad, tall) = grid[:, kinds:].unbind(1), wanted[:, kinds:].unbind(1)
    across = (
        torch.minimum(x + wide / 2, u + broad / 2) - torch.maximum(x - wide / 2, u - broad / 2)
    ).clamp(0)
    down = (
        torch.minimum(y + high / 2, v + tall / 2) - torch.maximum(y - high / 2, v - tall / 2)
    ).clamp(0)
    union = wide.clamp(0) * high.clamp(0) + broad * tall - across * down
    return across * down / union.clamp(min=1e-6)
