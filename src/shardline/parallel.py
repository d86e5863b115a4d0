"""Data-parallel training whose sums do not depend on when the training was started."""

from contextlib import nullcontext
from typing import Any

import torch
from pytorch_lightning.strategies import DDPStrategy
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel


class _SteadyBuckets(DistributedDataParallel):
    """Sums gradients in buckets that are laid out once, before the first step.

    An all-reduce adds the ranks' values in an order that depends on where in its
    bucket an element lies, which decides the last bits from three ranks on. DDP lays
    its buckets out anew after its first step, so that the first step after a resume
    would add in another order than the same step of an unbroken training.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # as DDP does after its first step, and, for ranks that have run out of data, before
        self.reducer._push_all_rebuilt_params()
        self.reducer._rebuild_buckets()

    def _build_params_for_reducer(self) -> tuple[list[torch.nn.Parameter], list[bool]]:
        """Return parameters, and which have sparse gradients, the last first.

        Gradients arrive in about this order, so that full buckets are sent off during
        the rest of the backward pass.
        """
        parameters, is_sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return parameters[::-1], is_sparse[::-1]


class SteadyDDPStrategy(DDPStrategy):
    """Lightning's DDP, but a resumed training ends with the bits of an unbroken one."""

    def _setup_model(self, model: Module) -> DistributedDataParallel:
        device_ids = self.determine_ddp_device_ids()
        # on a stream of its own, see https://pytorch.org/docs/stable/notes/cuda.html#id5
        with nullcontext() if device_ids is None else torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            return _SteadyBuckets(model, device_ids=device_ids, **self._ddp_kwargs)
