"""What predictions hold of a model's scores: columns of rows, and lists of their tokens."""

from typing import Any

import torch

from shardline.core.errors import DataError
from shardline.data.prediction_parts import LENGTHS, OUTPUT, PROBABILITIES, PROBABILITY

# what labels are, as the config of transformers calls it
CLASSES, NUMBERS = "single_label_classification", "regression"
FLAGS = "multi_label_classification"


class NotFiniteError(DataError):
    """A model gave NaN or infinite outputs.

    Args:
        row: the first row with one, by its place in the batch.
    """

    def __init__(self, row: int) -> None:
        super().__init__(self.text(f"row {row} of a batch"))
        self.row = row

    @staticmethod
    def text(row: str) -> str:
        """Return the message, with what the row is called."""
        return (
            f"the model gave NaN or infinite outputs for {row}, expected finite logits; look at this row, or train "
            "with another rate"
        )


def predicted_rows(logits: torch.Tensor, labels: str) -> dict[str, torch.Tensor]:
    """Return the columns of rows.

    Args:
        logits: [B, C].
        labels: what they are.

    Returns:
        Of classes their places [B] and the probabilities of all [B, C]; of flags which are true [B, C]
        and the probability of each; of numbers [B], or [B, C] of several.

    Raises:
        NotFiniteError: a row's outputs are not finite.
    """
    logits = _finite(logits).double()
    if labels == CLASSES:
        shares = logits.softmax(dim=1)
        return {OUTPUT: shares.argmax(dim=1), PROBABILITIES: shares.float()}
    if labels == FLAGS:
        return {OUTPUT: logits > 0, PROBABILITY: logits.sigmoid().float()}
    return {OUTPUT: (logits.squeeze(1) if logits.shape[1] == 1 else logits).float()}


def predicted_tokens(
    logits: torch.Tensor, mask: torch.Tensor | None, lengths: Any
) -> dict[str, torch.Tensor]:
    """Return the class of each token [B, L], its probability [B, L], and the rows' lengths [B].

    Args:
        logits: [B, L, C].
        mask: [B, L], 0 for what fills a row up; None where nothing does.
        lengths: of the rows [B]; None where all have L tokens.

    Raises:
        NotFiniteError: an output of a row's own token is not finite.
    """
    if mask is not None:  # nothing is known of what the model gives there
        logits = logits.masked_fill(mask[..., None] == 0, 0.0)
    largest, places = _finite(logits).max(dim=2)
    shares = (largest - logits.logsumexp(dim=2)).exp().float()  # no second tensor [B, L, C]
    if lengths is None:
        lengths = torch.full((len(logits),), logits.shape[1])
    return {
        OUTPUT: places, OUTPUT + LENGTHS: lengths,
        PROBABILITY: shares, PROBABILITY + LENGTHS: lengths,
    }  # fmt: skip


def _finite(logits: torch.Tensor) -> torch.Tensor:
    bad = ~logits.flatten(1).isfinite().all(dim=1)
    if bad.any():
        raise NotFiniteError(int(bad.nonzero()[0]))
    return logits
