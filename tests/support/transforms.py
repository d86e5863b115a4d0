"""Transforms of tests: good ones, and one for each mistake. Worker processes import this file."""

import os
import random
import signal
import threading
import time

import numpy as np

from shardline.core.errors import DataError


class Noise:
    """Adds chance to a column, and lets more of a sample through."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __call__(self, sample, generator):
        noise = generator.normal(size=sample["x"].shape).astype(np.float32)
        return {**sample, "x": sample["x"] + self.scale * noise, "by": os.getpid()}


class Half:
    def __call__(self, sample, generator=None):
        sample["x"] = sample["x"] / 2
        return sample


class Fails:
    def __call__(self, sample, generator):
        if sample["y"] == b"3":
            return sample["missing"]
        return sample


class Refuses:
    def __call__(self, sample, generator):
        raise DataError("column y is wrong, expected another; change it")


class NoDict:
    def __call__(self, sample, generator):
        return sample["x"]


class Unsendable:
    def __call__(self, sample, generator):
        return {"x": lambda: 0}


class Ends:
    def __call__(self, sample, generator):
        os.kill(os.getpid(), signal.SIGKILL)


class Writes:
    def __call__(self, sample, generator):
        sample["x"][0] = 1
        return sample


class Alone:
    def __call__(self, sample):
        return sample


class Global:
    def __init__(self, of: str) -> None:
        self.of = of

    def __call__(self, sample, generator=None):
        if self.of == "torch":
            import torch

            torch.rand(1)
        else:
            {"random": random.random, "numpy.random": np.random.rand}[self.of]()
        return sample


class Counts:
    count = 0

    def __call__(self, sample, generator=None):
        Counts.count += 1
        return {"x": np.array([Counts.count]), "of": {"deep": [1, None]}}


class Sleeps:
    """Sleeps; `seconds` counts those of samples that sleep at one time once."""

    seconds, _asleep, _lock = 0.0, 0, threading.Lock()

    def __call__(self, sample, generator):
        with Sleeps._lock:
            Sleeps.seconds += 0.0 if Sleeps._asleep else 0.05
            Sleeps._asleep += 1
        time.sleep(0.05)
        with Sleeps._lock:
            Sleeps._asleep -= 1
        return sample


class Waits:
    """Says that it has begun, and waits."""

    has_begun, may_end = threading.Event(), threading.Event()

    def __call__(self, sample, generator):
        Waits.has_begun.set()
        assert Waits.may_end.wait(60)
        return sample
