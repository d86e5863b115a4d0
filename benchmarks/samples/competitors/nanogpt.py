"""nanoGPT's `get_batch`: slices of a memory map at random places, stacked.

`as written` gives inputs and targets, cast from uint16 to int64; `alone` gives the inputs, in the type
that is stored.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from benchmarks.samples.task import BLOCK, Task, tokens_of


def batches(task: Task) -> Iterator[Any]:
    """Yield batches at random places."""
    if task.options["loop"] == "as written":
        # taken from https://github.com/karpathy/nanoGPT, train.py
        while True:
            data = np.memmap(task.plain / "tokens.bin", dtype=np.uint16, mode="r")
            ix = torch.randint(len(data) - BLOCK, (task.batch,))
            x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in ix])
            y = torch.stack(
                [torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in ix]
            )
            yield x, y
    data = tokens_of(task.plain)
    while True:
        ix = torch.randint(len(data) - BLOCK, (task.batch,)).tolist()
        yield torch.stack([torch.from_numpy(data[i : i + BLOCK]) for i in ix])
