"""Floating types of tensors."""

import torch


def is_narrow(dtype: torch.dtype) -> bool:
    """Return whether a floating type has 16 bits, in which small changes of a sum are rounded away."""
    return dtype in (torch.bfloat16, torch.float16)
