"""A copy of a training state in memory, so that the training can go on while it is written."""

from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection


class Snapshot:
    """Copies states of one shape into the same memory, again and again.

    New memory would have to be mapped page by page at each save, which takes longer than the
    copy. A GPU's tensors are copied to page-locked memory on a stream of their own; the program
    continues, and the GPU's next kernels wait for the copy alone.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._used = 0
        self._copied: dict[tuple[Any, ...], torch.Tensor] = {}
        self._stream: Any = None
        self._done: Any = None

    def take(self, state: Any) -> Any:
        """Return the state with every tensor copied; the copy before this one is overwritten."""
        self._used = 0
        self._copied.clear()
        self._done = None
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return apply_to_collection(state, torch.Tensor, self._copy)
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        now = torch.cuda.current_stream()
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            copy = apply_to_collection(state, torch.Tensor, self._copy)
        self._done = self._stream.record_event()
        now.wait_event(self._done)  # what comes next may change what is being copied
        return copy

    def wait(self) -> None:
        """Return when the copy is complete."""
        if self._done is not None:
            self._done.synchronize()

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        # two names of one tensor stay one
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and key in self._copied:
            return self._copied[key]
        buffer = self._buffer(tensor)
        buffer.copy_(tensor, non_blocking=True)
        self._copied[key] = buffer
        return buffer

    def _buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        index, self._used = self._used, self._used + 1
        if index < len(self._buffers):
            known = self._buffers[index]
            if known.shape == tensor.shape and known.dtype == tensor.dtype:
                return known
        new = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._buffers[index : index + 1] = [new]
        return new
