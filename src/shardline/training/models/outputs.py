"""Turn a model's scores into the columns of a prediction, for rows and for tokens."""

from typing import Any

import torch

from shardline.core.errors import DataError
from shardline.data.prediction_parts import LENGTHS, OUTPUT, PROBABILITIES, PROBABILITY

# kinds of labels, by their names in transformers' configs
CLASSES, NUMBERS = "single_label_classification", "regression"
FLAGS = "multi_label_classification"


class NotFiniteError(DataError):
    """A model returned NaN or infinite outputs.

    Args:
        row: Index in the batch of the first row with such an output.
    """

    def __init__(self, row: int) -> None:
        super().__init__(self.text(f"row {row} of a batch"))
        self.row = row

    @staticmethod
    def text(row: str) -> str:
        """Return the message with a name of the row."""
        return (
            f"the model returned NaN or infinite outputs for {row}, expected finite outputs; check the values of this "
            "row, or train with a lower optim.lr"
        )


def predicted_rows(logits: torch.Tensor, labels: str) -> dict[str, torch.Tensor]:
    """Return the predicted columns of rows.

    Args:
        logits: Outputs of the model [B, C].
        labels: Kind of the labels: `CLASSES`, `FLAGS` or `NUMBERS`.

    Returns:
        For classes: index [B] and probabilities of all classes [B, C]. For flags: booleans [B, C] and
        probability of each [B, C]. For numbers: values [B] or, for several numbers, [B, C].

    Raises:
        NotFiniteError: The outputs of a row are not finite.
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
        logits: Outputs of the model [B, L, C].
        mask: 0 for padding [B, L]; None if there is no padding.
        lengths: Lengths of the rows [B]; None if all rows have L tokens.

    Raises:
        NotFiniteError: An output of a token that is not padding is not finite.
    """
    if mask is not None:  # outputs of padding may be anything
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
