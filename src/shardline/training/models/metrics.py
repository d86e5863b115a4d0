"""Metrics that the shipped models log."""

import torch
from torchmetrics import MeanMetric


class Perplexity(MeanMetric):
    """exp of the mean loss: the losses are there already, and torchmetrics' own takes logits."""

    def compute(self) -> torch.Tensor:
        """Return the perplexity of all tokens that were given."""
        return super().compute().exp()
