"""Losses of tokens, averaged over a step's global batch: ranks have different numbers of tokens."""

import torch
import torch.distributed as dist


def token_mean(
    losses: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    total: int | float | torch.Tensor | None = None,
    parts: int = 1,
) -> torch.Tensor:
    """Return what makes a step's gradient that of the mean over all tokens of the global batch.

    Gradients are averaged over the ranks, and over the batches that are accumulated. The mean over
    a rank's own tokens would therefore weigh a token more, the fewer others its batch has. This is
    `parts * sum(losses * mask) / total`, whose average over all `parts` is the mean over all tokens;
    so is the average of the values that are logged.

    Without `total`, the tokens of the present batch are counted over all ranks (`all_reduce` of
    one number, where `torch.distributed` is initialised). That is exact for `trainer.accumulate: 1`.
    With more, each accumulated batch weighs alike, whichever tokens it has; give `total` and `parts`
    then, which needs no communication.

    Args:
        losses: of each token, of any shape.
        mask: what each token counts, 0 for none, of the same shape; None where all count.
        total: sum of the mask over the global batch: all ranks, and all batches that a step accumulates.
        parts: batches that a step's global batch is made of: ranks times `trainer.accumulate`.
            Only used with `total`.

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
    if total is None:
        total, parts = mask.sum(dtype=torch.int64 if mask.dtype == torch.bool else dtype), 1
        if dist.is_available() and dist.is_initialized():
            parts = dist.get_world_size()
            dist.all_reduce(total)
    count = torch.as_tensor(total, dtype=dtype, device=losses.device)
    return summed * parts / torch.where(count > 0, count, 1)
