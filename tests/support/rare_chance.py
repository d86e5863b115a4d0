"""Transforms with chance of all kinds, for few samples only. Other processes import this file."""

import os
import random
import time

import numpy as np

AT_IMPORT = int.from_bytes(os.urandom(4), "little")
CALLS = 0
CACHE: dict[str, float] = {}


KINDS = {
    "random": random.random,
    "numpy.random": np.random.rand,
    "default_rng": lambda: np.random.default_rng().random(),
    "time": time.time,
    "urandom": lambda: int.from_bytes(os.urandom(4), "little"),
    "module": lambda: CALLS,
    "import": lambda: AT_IMPORT,
    "cache": lambda: CACHE.setdefault("value", random.SystemRandom().random()),
}


class Rare:
    """Adds chance of a kind to x.

    Args:
        kind: one of KINDS, or `object`: how often the object was called.
        share: of the samples, by the generator that is given.
        rows: values of x that have it in any case.
    """

    def __init__(self, kind: str, share: float = 0.0, rows: list | None = None) -> None:
        self.kind, self.share, self.rows, self.calls = kind, share, rows or [], 0

    def __call__(self, sample, generator=None):
        global CALLS
        CALLS += 1
        self.calls += 1
        is_one = generator is not None and generator.random() < self.share
        added = 0.0
        if is_one or sample["x"][0] in self.rows:
            added = self.calls if self.kind == "object" else KINDS[self.kind]()
        return {**sample, "x": sample["x"].astype(np.float64) + added}


class Noise:
    """Adds chance of the generator to x."""

    def __call__(self, sample, generator):
        return {**sample, "x": sample["x"] + generator.normal()}
