"""How long a training waits for each batch, with steps as long as a real one's."""

import time
from collections.abc import Callable, Iterator

import torch
from benchmarks.reader.task import Batch

STEP_S = 0.005


def trace(stream: Iterator[Batch], num_batches: int, step: str) -> dict[str, list[float]]:
    """Return, for each batch, the wait for it and the time since the previous batch was requested.

    Args:
        step: `sleep` leaves the processor alone, as a step on a GPU does;
            `compute` keeps one core busy.

    Returns:
        Seconds: `waits_s` and `periods_s` [num_batches]; period i is the step
        after batch i - 1 and the wait for batch i.
    """
    run_step = {"sleep": _sleep, "compute": _make_compute()}[step]
    waits, periods = [], []
    before = time.perf_counter()
    for _ in range(num_batches):
        start = time.perf_counter()
        next(stream)
        end = time.perf_counter()
        waits.append(end - start)
        periods.append(end - before)
        before = end
        run_step()
    return {"waits_s": waits, "periods_s": periods}


def _sleep() -> None:
    time.sleep(STEP_S)


def _make_compute() -> Callable[[], None]:
    left, right, product = (torch.rand(256, 256) for _ in range(3))

    def compute() -> None:
        end = time.perf_counter() + STEP_S
        while time.perf_counter() < end:
            torch.mm(left, right, out=product)

    return compute
