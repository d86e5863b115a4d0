"""Exchange each step's worst loss and stop requests between ranks, without waiting.

Both values are in one all-reduce, which starts when a step ends and is read when the next step ends.
So no step waits, and all ranks act at the same step. Memory is allocated once.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from shardline_io.heartbeat_memory import REASONS, mine

NO_LOSS = float(np.finfo(np.float32).min)
_LOSS, _STOP = 0, 1
# A GPU runs behind the program, which does not wait for the step that it has just started.
_LAG_CPU, _LAG_GPU = 1, 2
_MAX = dist.AllreduceOptions()
_MAX.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]  # its stub lacks the names


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The reduced values of one step.

    Attributes:
        step: Optimiser step.
        epoch: Epoch of the step.
        lr: Learning rate of the step; None if no optimiser step was made.
        own: Worst loss of this rank.
        largest: Worst loss of all ranks, with infinity instead of NaN.
    """

    step: int
    epoch: int
    lr: Any
    own: float
    largest: float


class StepAllReduce:
    """One all-reduce per step, of a loss and a stop request.

    Attributes:
        stop_reason: One of `heartbeat_memory.REASONS`, once all ranks know of a stop request; else None.
    """

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self._group: Any = None
        self._lag = _LAG_CPU
        self._free: deque[_Words] = deque()
        self._under_way: deque[_Words] = deque()

    def start(self, device: torch.device) -> None:
        """Prepare for a training; every rank must call this."""
        self.stop_reason = None
        self._under_way.clear()
        on_gpu = device.type == "cuda"
        if self._group is None and dist.is_initialized() and dist.get_world_size() > 1:
            # a gloo group of its own has its own threads, so it does not wait for gradients
            self._group = dist.group.WORLD if on_gpu else dist.new_group(backend="gloo")
        self._lag = _LAG_GPU if on_gpu else _LAG_CPU
        words = _GpuWords if on_gpu else _Words
        self._free = deque(words(device) for _ in range(self._lag + 1))

    def begin(self, loss: float | torch.Tensor, *, step: int, epoch: int, lr: Any) -> None:
        """Start the all-reduce of a step, without waiting.

        Args:
            loss: Worst loss of this rank in the step: a number, or a scalar tensor on a GPU.
            step: Optimiser step.
            epoch: Epoch of the step.
            lr: Learning rate of the step.
        """
        words = self._free.popleft()
        words.about = step, epoch, lr
        reason = mine().stop_reason()
        words.host[_STOP] = REASONS.index(reason) + 1 if reason else 0
        words.begin(loss, self._group)
        self._under_way.append(words)

    def read(self) -> Reading | None:
        """Return the reading of the last step (on a GPU, the step before); None if there is none."""
        return self._take() if len(self._under_way) >= self._lag else None

    def read_all(self) -> list[Reading]:
        """Wait for all started reductions and return their readings, oldest first."""
        return [self._take() for _ in range(len(self._under_way))]

    def _take(self) -> Reading:
        words = self._under_way.popleft()
        words.wait()
        self._free.append(words)
        if code := int(words.host[_STOP]):
            self.stop_reason = REASONS[code - 1]
        step, epoch, lr = words.about
        largest = float(words.host[_LOSS])
        return Reading(step=step, epoch=epoch, lr=lr, own=float(words.own), largest=largest)


class _Words:
    """The buffers of one reduction: a loss, and the code of a stop reason.

    Attributes:
        about: Step, epoch and learning rate.
        host: Both values in CPU memory [2] float32.
        own: This rank's loss, possibly NaN.
    """

    def __init__(self, device: torch.device) -> None:
        self.about: tuple[int, int, Any] = (0, 0, None)
        self.own: float | torch.Tensor = NO_LOSS
        self._reduced = torch.zeros(2)
        self.host: np.ndarray = self._reduced.numpy()
        self._work: Any = None

    def begin(self, loss: Any, group: Any) -> None:
        """Start to reduce the loss over a process group; None for one rank."""
        self.own = loss
        self.host[_LOSS] = math.inf if math.isnan(loss) else loss
        self._work = None if group is None else group.allreduce([self._reduced], _MAX)

    def wait(self) -> None:
        """Wait until `host` contains the reduced values."""
        if self._work is not None:
            self._work.wait()


class _GpuWords(_Words):
    """The buffers of one reduction on a GPU; only `wait` waits for the GPU."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._reduced = torch.zeros(2, device=device)
        self._pinned = torch.zeros(2, pin_memory=True)
        self.host = self._pinned.numpy()
        self._arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def begin(self, loss: Any, group: Any) -> None:
        self.own = torch.as_tensor(loss, dtype=torch.float32, device=self._reduced.device)
        self._reduced.copy_(self._pinned, non_blocking=True)
        self._reduced[_LOSS] = torch.nan_to_num(self.own, nan=math.inf, posinf=math.inf)
        if group is not None:
            group.allreduce([self._reduced], _MAX).wait()  # makes the device wait, not this program
        self._pinned.copy_(self._reduced, non_blocking=True)
        self._arrived.record()

    def wait(self) -> None:
        self._arrived.synchronize()
