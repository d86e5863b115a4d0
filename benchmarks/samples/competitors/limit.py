"""Limits: photos decoded and cropped from memory in a loop; tokens, or boxes, copied in their order."""

from collections.abc import Iterator
from itertools import count, cycle, pairwise
from typing import Any

import numpy as np
import torch
from benchmarks.samples.task import BLOCK, PHOTOS, TOKENS, Task, boxes_of, photo_files, tokens_of

from shardline.transforms import RandomResizedCrop


def batches(task: Task) -> Iterator[Any]:
    """Yield batches, in the order of the files."""
    if task.work == PHOTOS:
        yield from _photos(task)
    elif task.work == TOKENS:
        yield from _tokens(task)
    else:
        yield from _boxes(task)


def _photos(task: Task) -> Iterator[Any]:
    contents = cycle([path.read_bytes() for path in photo_files(task.plain)])
    crop, rng = RandomResizedCrop(224), np.random.default_rng(0)
    while True:
        yield [crop({"image": next(contents)}, rng)["image"] for _ in range(task.batch)]


def _tokens(task: Task) -> Iterator[Any]:
    tokens, size = torch.from_numpy(np.array(tokens_of(task.plain))), task.batch * BLOCK
    for number in count():
        first = number % (len(tokens) // size) * size
        yield tokens[first : first + size].clone().view(task.batch, BLOCK)


def _boxes(task: Task) -> Iterator[Any]:
    boxes, offsets = boxes_of(task.plain)
    whole, bounds = torch.from_numpy(boxes), offsets[:: task.batch].tolist()
    while True:
        for first, last in pairwise(bounds):
            yield whole[first:last].clone()
