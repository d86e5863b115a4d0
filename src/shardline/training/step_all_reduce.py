"""What ranks agree on at each step: the worst loss of any, and whether any was asked to stop.

Both go into one all-reduce, which is begun as a step ends and read as the next one does: no step
waits for it, and all ranks act at the same step. Memory is allocated once.
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
# A GPU works behind the program, which does not wait for the step that it has just begun.
_LAG_CPU, _LAG_GPU = 1, 2
_MAX = dist.AllreduceOptions()
_MAX.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]  # its stub lacks the names


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the ranks agree on of one step.

    Attributes:
        own: this rank's worst loss.
        largest: that of all ranks; infinity in the place of NaN.
        lr: learning rate of the step; None where no optimiser has taken one.
    """

    step: int
    epoch: int
    lr: Any
    own: float
    largest: float


class StepAllReduce:
    """One all-reduce a step.

    Attributes:
        stop_reason: one of `heartbeat_memory.REASONS` once all ranks know that one of them was asked to stop.
    """

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self._group: Any = None
        self._lag = _LAG_CPU
        self._free: deque[_Words] = deque()
        self._under_way: deque[_Words] = deque()

    def start(self, device: torch.device) -> None:
        """Begin a training; every rank calls this at the same place."""
        self.stop_reason = None
        self._under_way.clear()
        on_gpu = device.type == "cuda"
        if self._group is None and dist.is_initialized() and dist.get_world_size() > 1:
            # gloo's has its own threads, so that it waits for no gradients
            self._group = dist.group.WORLD if on_gpu else dist.new_group(backend="gloo")
        self._lag = _LAG_GPU if on_gpu else _LAG_CPU
        words = _GpuWords if on_gpu else _Words
        self._free = deque(words(device) for _ in range(self._lag + 1))

    def begin(self, loss: float | torch.Tensor, *, step: int, epoch: int, lr: Any) -> None:
        """Begin to agree on a step, and wait for nothing.

        Args:
            loss: this rank's worst one of the step: a number, or a scalar on a GPU.
        """
        words = self._free.popleft()
        words.about = step, epoch, lr
        reason = mine().stop_reason()
        words.host[_STOP] = REASONS.index(reason) + 1 if reason else 0
        words.begin(loss, self._group)
        self._under_way.append(words)

    def read(self) -> Reading | None:
        """Return what was begun a step before, two steps before on a GPU; None if nothing was."""
        return self._take() if len(self._under_way) >= self._lag else None

    def read_all(self) -> list[Reading]:
        """Wait for all that was begun and return it, the oldest first."""
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
    """One reduction under way: a loss, and the code of a reason to stop.

    Attributes:
        about: step, epoch and learning rate.
        host: both as the program reads and writes them [2] float32.
        own: this rank's loss as it is.
    """

    def __init__(self, device: torch.device) -> None:
        self.about: tuple[int, int, Any] = (0, 0, None)
        self.own: float | torch.Tensor = NO_LOSS
        self._reduced = torch.zeros(2)
        self.host: np.ndarray = self._reduced.numpy()
        self._work: Any = None

    def begin(self, loss: Any, group: Any) -> None:
        """Reduce it over a process group, None for one rank."""
        self.own = loss
        self.host[_LOSS] = math.inf if math.isnan(loss) else loss
        self._work = None if group is None else group.allreduce([self._reduced], _MAX)

    def wait(self) -> None:
        """Return when `host` holds what the ranks agree on."""
        if self._work is not None:
            self._work.wait()


class _GpuWords(_Words):
    """The same beside a GPU, for which only `wait` waits."""

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
            group.allreduce([self._reduced], _MAX).wait()  # has the device wait, not this program
        self._pinned.copy_(self._reduced, non_blocking=True)
        self._arrived.record()

    def wait(self) -> None:
        self._arrived.synchronize()
