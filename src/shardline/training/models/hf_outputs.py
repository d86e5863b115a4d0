"""What predictions hold of models of transformers: columns of rows, and lists of their tokens."""

from typing import Any

import torch

from shardline.core.errors import DataError

# as the config of transformers calls them
CLASSES, NUMBERS = "single_label_classification", "regression"
FLAGS = "multi_label_classification"


def predicted_rows(logits: torch.Tensor, problem: str) -> dict[str, torch.Tensor]:
    """Return the columns of rows.

    Args:
        logits: [B, C].
        problem: what the labels are.

    Returns:
        Of classes their places [B] and the shares of all [B, C]; of flags which are true [B, C] and
        the probability of each; of numbers [B], or [B, C] of several.

    Raises:
        DataError: an output is not finite.
    """
    logits = _finite(logits).double()
    if problem == CLASSES:
        shares = logits.softmax(dim=1)
        return {"prediction": shares.argmax(dim=1), "probabilities": shares.float()}
    if problem == FLAGS:
        return {"prediction": logits > 0, "probability": logits.sigmoid().float()}
    return {"prediction": (logits.squeeze(1) if logits.shape[1] == 1 else logits).float()}


def predicted_tokens(
    logits: torch.Tensor, mask: torch.Tensor | None, lengths: Any
) -> dict[str, torch.Tensor]:
    """Return the class of each token [B, L], its probability [B, L], and the rows' lengths [B].

    Args:
        logits: [B, L, C].
        mask: [B, L], 0 for what fills a row up; None where nothing does.
        lengths: of the rows [B]; None where all have L tokens.

    Raises:
        DataError: an output of a row's own token is not finite.
    """
    if mask is not None:  # nothing is known of what the model gives there
        logits = logits.masked_fill(mask[..., None] == 0, 0.0)
    largest, places = _finite(logits).max(dim=2)
    shares = (largest - logits.logsumexp(dim=2)).exp().float()  # no second tensor [B, L, C]
    if lengths is None:
        lengths = torch.full((len(logits),), logits.shape[1])
    return {
        "prediction": places, "prediction.row_lengths": lengths,
        "probability": shares, "probability.row_lengths": lengths,
    }  # fmt: skip


def _finite(logits: torch.Tensor) -> torch.Tensor:
    bad = ~logits.flatten(1).isfinite().all(dim=1)
    if bad.any():
        raise DataError(
            f"the model gave NaN or infinite outputs for {int(bad.sum())} of {len(bad)} rows of a batch, expected "
            "finite logits; train with another rate"
        )
    return logits
