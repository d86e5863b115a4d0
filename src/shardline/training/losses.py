"""Average losses over all tokens of a global batch, where ranks have different numbers of tokens."""

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
    """Return a loss whose averaged gradient is that of the mean over all tokens of the global batch.

    Gradients are averaged over ranks and accumulated batches. With the mean over a rank's own tokens,
    a token in a short batch would count more. This function returns
    `sum(losses * mask) / mean_count` instead. Its average over all batches of a step is the mean over
    the global batch.

    Without `mean_count`, the mask of the current batch is summed over all ranks (`all_reduce` of one
    number, if `torch.distributed` is initialised). This is exact for `trainer.accumulate: 1`. For
    larger values, each accumulated batch has the same weight, however many tokens it has.

    Args:
        losses: Loss of each token, of any shape.
        mask: Weight of each token, 0 for none, of the same shape; None: all tokens count.
        mean_count: Weight of the step's global batch, divided by its number of batches (ranks times
            `trainer.accumulate`), such as `batch["tokens.mean_count"]`. The number must be the same
            in all of these batches.

    Returns:
        A scalar, in float32 at least; 0 if no token counts.

    Raises:
        ValueError: `losses` and `mask` differ in shape.
    """
    mask = torch.ones_like(losses, dtype=torch.bool) if mask is None else mask
    if losses.shape != mask.shape:
        raise ValueError(
            f"losses have shape {list(losses.shape)} and mask has shape {list(mask.shape)}, expected the same shape; "
            "pass a loss and a weight for each token"
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
    """Return `token_mean` of a batch by column, with the count that the batch contains.

    Args:
        losses: Loss of each token.
        counts: Weight of each token, 0 for none, of the same shape.
        batch: The batch; without `{column}.mean_count` and `weights` its blocks are full.
        column: Column of the tokens.
    """
    mean_count = batch.get(f"{column}.mean_count")
    if mean_count is None and "weights" not in batch:
        mean_count = losses.numel()  # blocks are full, on each rank
    return token_mean(losses, counts, mean_count=mean_count)
