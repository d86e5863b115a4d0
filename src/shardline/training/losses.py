"""Losses of tokens, averaged over a step's global batch: ranks have different numbers of tokens."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist


def token_mean(
    losses: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    mean_count: float | torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what makes a step's gradient that of the mean over all tokens of the global batch.

    Gradients are averaged over the ranks, and over the batches that are accumulated. The mean over
    a rank's own tokens would therefore weigh a token more, the fewer others its batch has. This is
    `sum(losses * mask) / mean_count`, whose average over all batches of a step is the sum over the
    global batch, divided by its count; so is the average of the values that are logged.

    Without `mean_count`, what the mask has of the present batch is counted over all ranks
    (`all_reduce` of one number, where `torch.distributed` is initialised). That is exact for
    `trainer.accumulate: 1`. With more, each accumulated batch weighs alike, whichever tokens it has.

    Args:
        losses: of each token, of any shape.
        mask: what each token counts, 0 for none, of the same shape; None where all count.
        mean_count: count of the step's global batch, divided by the batches that it is made of
            (ranks times `trainer.accumulate`), such as `batch["tokens.mean_count"]`: the same
            number in all of them, so that each token weighs alike, whatever is counted.

    Returns:
        A scalar, in float32 at least; 0 where no token counts.

    Raises:
        ValueError: losses and mask differ in shape.
    """
    mask = torch.ones_like(losses, dtype=torch.bool) if mask is None else mask
    if losses.shape != mask.shape:
        raise ValueError(
            f"losses have the shape {list(losses.shape)} and their mask {list(mask.shape)}, expected one shape; give "
            "each token a loss and what it counts"
        )
    dtype = torch.promote_types(losses.dtype, torch.float32)
    # a masked token's loss may be NaN
    summed = torch.where(mask > 0, losses * mask, 0).sum(dtype=dtype)
    if mean_count is None:
        mean_count = mask.sum(dtype=torch.int64 if mask.dtype == torch.bool else dtype)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(mean_count)
            mean_count = mean_count / dist.get_world_size()
    count = torch.as_tensor(mean_count, dtype=dtype, device=losses.device)
    return summed / torch.where(count > 0, count, 1)


def batch_mean(
    losses: torch.Tensor, counts: torch.Tensor, batch: Mapping[str, Any], column: str
) -> torch.Tensor:
    """Return `token_mean` of a batch by column, whose count the feed gives, or full blocks have.

    Args:
        losses: of each token.
        counts: what each token counts, 0 for none, of the same shape.
        column: the tokens.
    """
    mean_count = batch.get(f"{column}.mean_count")
    if mean_count is None and "weights" not in batch:
        mean_count = losses.numel()  # blocks are full, on each rank
    return token_mean(losses, counts, mean_count=mean_count)
